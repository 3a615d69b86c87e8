"""Weights from one machine to many: each node of a group pulls them from the one before it, while that still pulls."""
