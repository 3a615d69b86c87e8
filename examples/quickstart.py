"""Two actor processes, one learner, one prioritized replay table: the program of the README."""

import multiprocessing as mp

import gymnasium as gym
import numpy as np

import di_store


def actor(replay: di_store.Table) -> None:
    env = gym.make("CartPole-v1")
    obs, _ = env.reset()
    with replay.writer() as writer:
        while True:
            action = env.action_space.sample()
            nxt, reward, terminated, truncated, _ = env.step(action)
            step = {"obs": obs, "action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
            writer.append(step, next={"obs": nxt})
            obs = env.reset()[0] if terminated or truncated else nxt


if __name__ == "__main__":
    store = di_store.open(memory="256MiB")
    replay = store.create_table(
        "replay",
        capacity=100_000,
        view=di_store.Transition(n_step=3, gamma=0.99),
        sampler=di_store.Prioritized(alpha=0.6, beta=0.4),
        limiter=di_store.SamplesPerInsert(8, min_size=1_000, tolerance=0.1),
    )
    for _ in range(2):
        mp.Process(target=actor, args=(replay,), daemon=True).start()
    for _ in range(200):
        batch = replay.sample(256)  # batch.data: obs, action, reward, next_obs, discount; batch.weights
        td_error = np.random.rand(256)  # your learner
        replay.update_priorities(batch.keys, np.abs(td_error) + 1e-6)
    print(f"{len(replay):,} transitions, {replay.stats()['samples']:,} samples")
