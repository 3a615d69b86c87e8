"""A job on three nodes, what is killed beside it, and what must hold at the end."""
