"""RLlib beside the kills: DQN on CartPole, whose runners are killed with their nodes. Its steps are checked."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from typing import Any

import gymnasium
import numpy as np
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from cluster.chaos.world import commands
from di_store.adapters.rllib import PrioritizedEpisodeReplayBuffer

ROUND_SECONDS = 300.0
"""No round of training may take longer, whatever was killed: on a busy machine Ray takes minutes to start runners."""
ROUNDS_BETWEEN = 3
TOLERANCE = 1e-4


class Learning(threading.Thread):
    """Trains until `end`; kills some of its own runners."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        config = DQNConfig().environment("CartPole-v1")
        config.training(
            train_batch_size=32,
            num_steps_sampled_before_learning_starts=200,
            replay_buffer_config={
                "type": PrioritizedEpisodeReplayBuffer,
                "capacity": 5_000,
                "alpha": 0.6,
                "beta": 0.4,
            },
        )
        config.env_runners(num_env_runners=2, rollout_fragment_length=8, num_cpus_per_env_runner=0)
        config.fault_tolerance(restart_failed_env_runners=True)
        config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16]))
        config.reporting(min_sample_timesteps_per_iteration=80, min_time_s_per_iteration=0)
        self._algorithm = config.debugging(seed=seed, log_level="ERROR").build_algo()
        self._choice, self._done = random.Random(seed), False
        self._enough = ROUNDS_BETWEEN
        self.slowest, self.rounds, self.steps = 0.0, 0, list[int]()
        self.hits: Counter[str] = Counter()
        self.fault: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._done:
                began = time.monotonic()
                self._algorithm.train()
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.rounds += 1
                self.steps.append(int(self._buffer.get_added_timesteps()))
        except Exception as error:
            self.fault = error

    @property
    def _buffer(self) -> Any:
        return self._algorithm.local_replay_buffer

    def hit(self) -> None:
        """Kill one of its runners, if it has learned since the last time: Ray may take long to start another one."""
        runners = [pid for pid, words in commands() if "SingleAgentEnvRunner" in words[0]]
        if runners and self.rounds >= self._enough:
            self._enough = self.rounds + ROUNDS_BETWEEN
            os.kill(self._choice.choice(runners), signal.SIGKILL)
            self.hits["runner"] += 1

    def stop(self) -> None:
        """Let the round of training that is under way end. A thread that uses Ray must not outlive its cluster."""
        self._done = True
        self.join(ROUND_SECONDS)

    def end(self) -> list[str]:
        """Stop, and say what is wrong with what it has learned from."""
        self.stop()
        if self.is_alive():
            return [f"a round of training takes longer than {ROUND_SECONDS} s"]
        try:
            return self._wrong()
        finally:
            self._algorithm.stop()

    def _wrong(self) -> list[str]:
        found = [] if self.fault is None else [repr(self.fault)]
        found += [f"a round took {self.slowest:.0f} s"] * (self.slowest > ROUND_SECONDS)
        half = len(self.steps) // 2
        if len(self.steps) < 4 or not self.steps[0] < self.steps[half] < self.steps[-1]:
            found.append(f"it has not gone on: {self.steps[:3]} ... {self.steps[-3:]}")
        episodes = list(self._buffer.episodes)
        held = sum(map(len, episodes))
        if held != self._buffer.get_num_timesteps():
            found.append(f"{held} steps in its episodes, {self._buffer.get_num_timesteps()} in the buffer")
        ids = Counter(each.id_ for each in episodes)
        found += [f"episode {name} is there {times} times" for name, times in ids.items() if times > 1]
        environment = gymnasium.make("CartPole-v1").unwrapped
        found += [
            f"episode {each.id_} is not one that CartPole gives" for each in episodes if not _real(environment, each)
        ]
        return found


def _real(environment: Any, episode: Any) -> bool:
    """Whether each observation follows from the one before and the action, as the environment has it."""
    environment.reset()
    observations, actions = np.asarray(episode.get_observations()), np.asarray(episode.get_actions())
    for before, action, after in zip(observations[:-1], actions, observations[1:], strict=True):
        environment.state, environment.steps_beyond_terminated = tuple(before.tolist()), None
        made = environment.step(int(action))[0]
        if not np.allclose(made, after, atol=TOLERANCE):
            return False
    return True
