"""Saves large trees of tensors to files and loads them, at the speed of the disk: `di_store.save`, `di_store.load`.

A checkpoint is a folder with one file for each rank that saved its part, and a manifest that names these files and is
written last (docs/checkpoint_format.md). No store is needed.
"""
