"""Weights from one agent to a group."""
