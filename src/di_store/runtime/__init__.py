"""The package's own threads, and the mechanism by which calls wait."""
