"""Tables, writers, loaders and mixtures."""
