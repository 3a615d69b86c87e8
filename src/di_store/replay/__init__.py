"""Tables as this process sees them: writers, draws, batches, loaders, mixtures."""
