"""Columns and schemas."""
