"""Objects: refs, values to bytes and back, versions of weights."""
