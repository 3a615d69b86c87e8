"""The versions of TransferQueue whose interface for storage backends this adapter implements."""

from __future__ import annotations

_OLDEST = (0, 1, 10)


def refusal(version: str) -> str | None:
    """Why a version is not supported; None: it is."""
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if numbers >= _OLDEST and numbers[:2] == _OLDEST[:2]:
        return None
    return (
        "di_store.adapters.transfer_queue works with TransferQueue 0.1.10 and later 0.1 versions, and "
        f"{version} is installed: pip install 'TransferQueue>=0.1.10,<0.2'"
    )
