"""Checkpoints: files from which data comes back. `store`: of whole stores; `tree`: of large trees of tensors."""
