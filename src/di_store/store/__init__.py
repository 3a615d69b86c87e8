"""A store of this machine: its handle, and how a process opens, makes or restores it."""
