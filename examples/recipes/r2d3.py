"""R2D3 on a MountainCar where exploring costs fuel: demonstrations beside the replayed sequences of R2D2.

Paine et al. 2019, "Making efficient use of demonstrations to solve hard exploration problems". The reward is 1 at the
flag, and a little below 0 for every push. The engine is weak, so the car must first swing to and fro many times: an
agent that has not seen the flag learns to save fuel, and stays where it is. The network must remember, since an
observation is only where the car is. A second table holds episodes of a scripted driver; each sequence of a batch is
one of these with probability `--ratio`, else one of the agent's (section 3). All else is r2d2.py, and `--ratio 0` is
R2D2 alone.

Needs torch, Gymnasium and matplotlib: pip install 'di-store[demo]'
"""

import sys

import gymnasium as gym
import numpy as np
from harness import Run
from r2d2 import ACTORS, HIDDEN, VIEW, actor, learner

import di_store

REPEAT, STEPS = 4, 400  # steps of the car for each action, and in an episode
FORCE, FUEL = 0.0004, 0.005  # of the engine, where Gymnasium's has 0.001; reward that a push costs
LEFT, COAST, RIGHT = 0, 1, 2
DEMONSTRATIONS = 50  # episodes


class WeakEngine(gym.Wrapper):
    """MountainCar as the position only, scaled to about -1 … 1; the reward is 1 at the flag, and pushes cost fuel."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        env.unwrapped.force = FORCE

    def _position(self, observation: np.ndarray) -> np.ndarray:
        return (observation[:1] + np.float32(0.3)) / np.float32(0.9)

    def reset(self, **options: object) -> tuple[np.ndarray, dict]:
        observation, info = self.env.reset(**options)
        return self._position(observation), info

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        for _ in range(REPEAT):
            observation, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                break
        reward = float(terminated) - FUEL * (action != COAST)
        return self._position(observation), reward, terminated, truncated, info


def make_env() -> gym.Env:
    return WeakEngine(gym.make("MountainCar-v0", max_episode_steps=STEPS))


def demonstrate(demonstrations: di_store.Table, episodes: int, seed: int) -> None:
    """Write episodes of a driver who sees the velocity, and pushes the way the car goes."""
    env = make_env()
    with demonstrations.writer() as writer:
        for episode in range(episodes):
            obs, _ = env.reset(seed=seed + episode)
            ended = False
            while not ended:
                action = RIGHT if env.unwrapped.state[1] >= 0 else LEFT
                next_obs, reward, terminated, truncated, _ = env.step(action)
                # The driver has no recurrent state: zeros, which the burn-in brings up to date.
                row = {"obs": obs, "state": np.zeros((2, HIDDEN), np.float32), "action": action, "reward": reward}
                row |= {"terminated": terminated, "truncated": truncated}
                writer.append(row, next={"obs": next_obs})
                obs, ended = next_obs, terminated or truncated


def main() -> int:
    run = Run(__doc__, threshold=0.5, minutes=5, ratio=0.0625)
    prioritized = di_store.Prioritized(alpha=0.9, beta=0.6)
    with di_store.open(memory="256MiB", seed=run.seed) as store:
        replay = store.create_table(
            "replay",
            capacity=20_000,
            view=VIEW,
            sampler=prioritized,
            limiter=di_store.SamplesPerInsert(8, min_size=32 if run.small else 200, tolerance=0.2),
        )
        demonstrations = store.create_table("demonstrations", capacity=2_000, view=VIEW, sampler=prioritized)
        demonstrate(demonstrations, 5 if run.small else DEMONSTRATIONS, seed=run.seed)
        ratio = float(run.more["ratio"])
        mixture = store.mix({"replay": 1 - ratio, "demonstrations": ratio}, seed=run.seed)
        with run.processes(actor, ACTORS, make_env, run.seed, store):
            learner(run, make_env, store, mixture, [replay, demonstrations])
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
