"""A store of this machine: its handle, and opening, making and restoring it."""
