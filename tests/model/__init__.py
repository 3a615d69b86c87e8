"""A plain-Python model of tables, writers and views, written from the public contract alone.

It is meant to be obviously right, not fast: an item holds its own copy of its example, a batch is
drawn one item at a time, and an append is planned on copies of its lanes before it is committed.
Nothing here imports the store; `harness.py` drives store and model side by side.

Where the contract leaves room, the model takes these readings (tests that depend on one say so):

* A `discount` of exactly 0 ends a transition's window: `steps` counts up to that row, and the item
  appears as soon as the row after it (or the final observation) is known.
* After a termination without a final observation, `next_<obs>` of a stacked column repeats the
  stack of the last row.
* `Sequence` pads missing earlier frames of a `frame_stack` by repeating the first frame.
* `Sequence(tail="shift")` of an episode shorter than one sequence behaves as `"pad"`.
* The bootstrap row of a padded sequence or episode lies right behind its last valid row.
* `Sequence(cross_episodes=True)` sees only appended rows; its tail is handled when the lane closes.
* Rows whose `next=` is known need no other final observation: `end_episode()` uses it.
* An append that completes no item of a table does not ask that table's limiter.
* `Queue` and `Stack` count what lies in the table; every other removal gives its insert back.
* A changed limiter starts as if `min(items, min_size)` inserts and no samples had been made.
* The largest priority ever given survives `reset()`.
* `Once` opens the next epoch only when a draw finds nothing left in the present one.
* `times_sampled` of a batch counts the draw that delivers it.
* An item that arrives in a full table finds room made before it is inserted, one by one.
"""
