"""Each adapter beside the framework's own buffer."""
