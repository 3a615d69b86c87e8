"""Errors with Reverb's names."""

from __future__ import annotations


class ReverbError(Exception):
    """A call to a server failed."""


class DeadlineExceededError(ReverbError):
    """A call did not complete within its timeout."""
