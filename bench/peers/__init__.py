"""The peers, each measured by its own script in its own environment (see bench/README.md)."""
