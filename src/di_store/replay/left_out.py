"""Steps that make no item, because their episode ended without a final observation."""

from __future__ import annotations

from di_store.base.warned import warn
from di_store.replay.handle import TableHandle


def warn_left_out(handle: TableHandle) -> None:
    """Warn once if a table has such steps."""
    if not handle.left_out_warned and (steps := handle.native.steps_left_out):
        handle.left_out_warned = True
        warn(
            f"table {handle.name!r}: {steps} steps have no item, because their episodes ended by "
            "'truncated' or end_episode() without a final observation, which their items need; give it as "
            "final= or next= of the last step, or of end_episode(); `steps_left_out` in table.stats() "
            "counts them"
        )
