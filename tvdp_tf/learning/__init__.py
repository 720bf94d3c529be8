"""Models, client data and local training: TensorFlow, no federation."""
