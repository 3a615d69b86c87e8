"""Checkpoints: files from which data is restored. `store`: of whole stores; `tree`: of large trees of tensors."""
