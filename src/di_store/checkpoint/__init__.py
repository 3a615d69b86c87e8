"""Large trees of tensors to files and back, at the speed of the disk: `di_store.save`, `di_store.load`.

A checkpoint is a folder: one file for each rank that saved its part, and a manifest that names them, written last
(docs/checkpoints.md). No store is needed.
"""
