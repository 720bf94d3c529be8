"""The paper's experiments: how they are run, drawn, judged and documented."""
