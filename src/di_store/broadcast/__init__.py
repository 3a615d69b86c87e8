"""Weights from one machine to many: each node of a group pulls from the node before it, which may still be pulling."""
