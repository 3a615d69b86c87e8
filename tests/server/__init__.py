"""Agents and what they serve."""
