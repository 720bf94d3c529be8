"""The paper's experiments: what is run, drawn, decided and documented."""
