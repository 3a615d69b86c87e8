"""Atari frames stored once and drawn in stacks of four; prints how much memory that saves.

Needs nothing but di-store: pip install di-store
"""

import numpy as np

import di_store

STEPS = 2_000

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    with di_store.open(memory="256MiB") as store:
        replay = store.create_table(
            "frames",
            capacity=STEPS,
            view=di_store.Transition(n_step=3, gamma=0.99, frame_stack={"obs": 4}),
        )
        with replay.writer() as writer:
            frame = rng.integers(0, 255, (84, 84), dtype=np.uint8)
            for step in range(STEPS):
                next_frame = rng.integers(0, 255, (84, 84), dtype=np.uint8)
                row = {"obs": frame, "action": step % 6, "reward": 1.0, "terminated": False, "truncated": False}
                writer.append(row, next={"obs": next_frame})
                frame = next_frame
        batch = replay.sample(32)
        assert batch.data["obs"].shape == batch.data["next_obs"].shape == (32, 4, 84, 84)
        stats = replay.stats()
        stored, logical = stats["bytes_stored"], stats["bytes_logical"]
        print(f"{len(replay):,} transitions: {stored:,} bytes; without sharing {logical:,}, {logical / stored:.1f}x")
