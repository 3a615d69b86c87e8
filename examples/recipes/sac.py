"""Soft actor-critic on Hopper: actors explore with a stochastic policy, the learner replays what they did uniformly.

Haarnoja et al. 2018, "Soft actor-critic algorithms and applications" (equations 5 to 7 and, for the temperature, 18).
The ratio of samples to inserts is what fixes how many updates a step of the environment pays for: actors and the
learner run at their own speeds, and the limiter holds back whoever is ahead.

Needs torch, Gymnasium with MuJoCo, and matplotlib: pip install 'di-store[demo]' 'gymnasium[mujoco]'
Without MuJoCo: sac.py --env Pendulum-v1
"""

import copy
import sys

import gymnasium as gym
import numpy as np
import torch
from harness import Run, generator, mean_return, mlp, tensors
from torch import nn

import di_store

ACTORS, LANES, BATCH, HIDDEN = 2, 4, 128, 128
GAMMA, TAU, LEARNING_RATE = 0.99, 0.005, 1e-3
STEPS_PER_UPDATE = 2  # of environments
PUBLISH_EVERY = 20
THRESHOLDS = {"Pendulum-v1": -200.0}  # of other environments than Hopper


def make_env(name: str) -> gym.Env:
    """The environment with actions from -1 to 1."""
    return gym.wrappers.RescaleAction(gym.make(name), np.float32(-1), np.float32(1))


class Policy(nn.Module):
    """A normal distribution squashed by tanh (appendix C)."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.net = mlp(inputs, actions, actions, hidden=HIDDEN)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sampled actions `[n, actions]` and their log densities `[n]`, both differentiable."""
        mean, log_std = self.net(obs)
        log_std = log_std.clip(-5, 2)
        noise = torch.randn_like(mean)
        x = mean + log_std.exp() * noise
        density = -0.5 * noise.square() - log_std - 0.5 * np.log(2 * np.pi)
        # log(1 - tanh(x)^2), in a form that is exact where tanh is nearly 1
        squash = 2 * (np.log(2) - x - nn.functional.softplus(-2 * x))
        return x.tanh(), (density - squash).sum(-1)

    def best(self, obs: torch.Tensor) -> torch.Tensor:
        return self.net(obs)[0].tanh()


class TwinQ(nn.Module):
    """Two action values; the smaller one is used, since a maximum over errors is too high."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp(inputs + actions, 1, hidden=HIDDEN) for _ in range(2))

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Values `[2, n]`."""
        x = torch.cat([obs, action], -1)
        return torch.stack([net(x).squeeze(-1) for net in self.nets])


def actor(index: int, env: str, seed: int, store: di_store.Store) -> None:
    generator(seed, 1 + index)
    envs = gym.vector.SyncVectorEnv([lambda: make_env(env)] * LANES)
    obs, _ = envs.reset(seed=1_000 * seed + LANES * index)
    obs = np.float32(obs)
    policy, version = Policy(obs.shape[1], envs.single_action_space.shape[0]), 0
    with store.table("replay").writer(lanes=LANES, autoreset=envs.metadata["autoreset_mode"]) as writer:
        while True:
            if new := store.latest("policy", newer_than=version):
                policy.load_state_dict(new.value)
                version = new.version
            with torch.inference_mode():
                action = policy(torch.from_numpy(obs))[0].numpy()
            next_obs, reward, terminated, truncated, _ = envs.step(action)
            next_obs = np.float32(next_obs)
            row = {"obs": obs, "action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
            writer.append(row, next={"obs": next_obs})
            obs = next_obs


class Learner:
    """The networks and one update of them."""

    def __init__(self, inputs: int, actions: int) -> None:
        self.policy, self.critic = Policy(inputs, actions), TwinQ(inputs, actions)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.target_entropy = -float(actions)
        self.optimizers = [
            torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)
            for parameters in (self.critic.parameters(), self.policy.parameters(), [self.log_alpha])
        ]

    def update(self, data: dict[str, np.ndarray]) -> None:
        obs, action, reward, next_obs, discount = tensors(data, "obs", "action", "reward", "next_obs", "discount")
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_density = self.policy(next_obs)
            value = self.target_critic(next_obs, next_action).amin(0) - alpha * next_density
            target = reward + discount * value
        of_critic, of_policy, of_alpha = self.optimizers
        self._step(of_critic, (self.critic(obs, action) - target).square().mean(1).sum())  # equation 5
        self.critic.requires_grad_(False)
        new_action, density = self.policy(obs)
        self._step(of_policy, (alpha * density - self.critic(obs, new_action).amin(0)).mean())  # equation 7
        self.critic.requires_grad_(True)
        surplus = density.detach().mean() + self.target_entropy
        self._step(of_alpha, -self.log_alpha * surplus)  # equation 18, of the logarithm, which keeps alpha positive
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target_critic.parameters()), list(self.critic.parameters()), TAU)

    @staticmethod
    def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def learn(run: Run, env: str, store: di_store.Store, replay: di_store.Table, learner: Learner) -> None:
    def evaluate(episodes: int, seed: int) -> float:
        best = learner.policy.best
        return mean_return(lambda: make_env(env), lambda obs: best(torch.from_numpy(np.float32(obs))), episodes, seed)

    while run.goes_on(replay, evaluate, episodes=5):
        learner.update(replay.sample(BATCH).data)
        if run.updates % PUBLISH_EVERY == 0:
            store.publish("policy", learner.policy.state_dict())


def main() -> int:
    run = Run(__doc__, threshold=1_000, minutes=15, env="Hopper-v5")
    env = run.more["env"]
    run.threshold = THRESHOLDS.get(env, run.threshold)
    spaces = make_env(env)
    learner = Learner(spaces.observation_space.shape[0], spaces.action_space.shape[0])
    with di_store.open(memory="256MiB", seed=run.seed) as store:
        replay = store.create_table(
            "replay",
            capacity=500_000,
            view=di_store.Transition(gamma=GAMMA),
            sampler=di_store.Uniform(),
            limiter=di_store.SamplesPerInsert(
                BATCH / STEPS_PER_UPDATE, min_size=100 if run.small else 2_000, tolerance=0.1
            ),
        )
        store.publish("policy", learner.policy.state_dict())
        with run.processes(actor, ACTORS, env, run.seed, store):
            learn(run, env, store, replay, learner)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
