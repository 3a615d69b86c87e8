"""Two actor processes, one learner, one prioritized replay table: the first program of the README.

Needs gymnasium: pip install di-store gymnasium
"""

import multiprocessing

import gymnasium as gym
import numpy as np

import di_store


def actor(replay: di_store.Table) -> None:
    env = gym.make("CartPole-v1")
    obs, _ = env.reset()
    with replay.writer() as writer:
        while True:
            action = env.action_space.sample()  # your policy
            next_obs, reward, terminated, truncated, _ = env.step(action)
            step = {"obs": obs, "action": action, "reward": reward}
            step |= {"terminated": terminated, "truncated": truncated}
            writer.append(step, next={"obs": next_obs})
            obs = env.reset()[0] if terminated or truncated else next_obs


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
        multiprocessing.Process(target=actor, args=(replay,), daemon=True).start()
    for _ in range(200):
        batch = replay.sample(256)  # batch.data: obs, action, reward, next_obs, discount; batch.weights
        td_errors = np.random.rand(256)  # from your learner
        replay.update_priorities(batch.keys, td_errors + 1e-6)
    print(f"{len(replay):,} transitions, {replay.stats()['samples']:,} samples")
