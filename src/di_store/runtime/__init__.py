"""The package's own threads, and the one way in which a call waits."""
