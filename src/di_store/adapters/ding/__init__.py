"""DI-engine's replay buffer with its data in a Di-store table.

`Buffer` replaces `ding.data.DequeBuffer`, with the same middleware. It draws the same data as DI-engine's buffer: with
the same seed, a training run is the same.
"""

from importlib.metadata import version

try:
    from ding.data.buffer import DequeBuffer as _DequeBuffer  # noqa: F401
except ImportError as error:
    raise ImportError("di_store.adapters.ding needs DI-engine: pip install di-store[ding]") from error
if not version("DI-engine").startswith("0.5."):
    raise ImportError(
        f"di_store.adapters.ding was tested with DI-engine 0.5 and this is {version('DI-engine')}: "
        "pip install di-store[ding]"
    )

from di_store.adapters.ding.buffer import Buffer

__all__ = ["Buffer"]
