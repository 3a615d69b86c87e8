"""Multi-agent SAC: agents act on what each sees, critics judge the actions of all by the state of all.

Soft actor-critic (Haarnoja et al. 2018, see sac.py) with the centralised critics of Lowe et al. 2017, "Multi-agent
actor-critic for mixed cooperative-competitive environments" (section 4.1). The agents share a reward, so they share the
critics; they share a policy too, and tell each other apart by a number. A row of the table has the observations and
actions of all agents, and the state, which only the critics see. Episodes end because time is up, not because the task
ends, so the last step bootstraps from the observation after it.

Needs torch, Gymnasium and matplotlib: pip install 'di-store[demo]'
"""

import copy
import sys

import numpy as np
import torch
from harness import Run, generator, tensors
from sac import Policy, TwinQ
from spread import AGENTS, MAX_STEPS, OBS, STATE, Spread

import di_store

ACTORS, LANES, BATCH = 2, 16, 256
GAMMA, TAU, LEARNING_RATE = 0.95, 0.01, 1e-3
STEPS_PER_UPDATE = 16  # of fields
TARGET_ENTROPY = -2.0 * AGENTS  # of all agents together, as many as their actions have numbers
REWARD_OFFSET = 0.8  # episodes are equally long, so that a constant prefers no policy; values begin near zero
PUBLISH_EVERY = 10


class Agents(Policy):
    """The policy of all agents, `[…, agents, OBS]` to actions `[…, agents, 2]` and log densities `[…, agents]`."""

    def __init__(self) -> None:
        super().__init__(OBS + AGENTS, 2)

    def numbered(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.cat([obs, torch.eye(AGENTS).expand(*obs.shape[:-1], AGENTS)], -1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(self.numbered(obs))

    def best(self, obs: torch.Tensor) -> torch.Tensor:
        return super().best(self.numbered(obs))


def actor(index: int, seed: int, store: di_store.Store) -> None:
    rng = generator(seed, 1 + index)
    policy, version, fields = Agents(), 0, Spread(LANES, rng)
    seen = fields.observe()
    with store.table("replay").writer(lanes=LANES) as writer:
        while True:
            if new := store.latest("policy", newer_than=version):
                policy.load_state_dict(new.value)
                version = new.version
            with torch.inference_mode():
                action = policy(torch.from_numpy(seen["obs"]))[0].numpy()
            reward, ended = fields.step(action)
            row = {"action": action, "reward": reward}
            row |= {"terminated": np.zeros(LANES, bool), "truncated": np.full(LANES, ended)}
            writer.append(seen | row, next=fields.observe())
            if ended:
                fields.reset()
            seen = fields.observe()


def play(policy: Agents, episodes: int, seed: int) -> float:
    """The mean return of so many episodes."""
    fields, total = Spread(episodes, np.random.default_rng(seed)), 0.0
    for _ in range(MAX_STEPS):
        with torch.inference_mode():
            action = policy.best(torch.from_numpy(fields.observe()["obs"])).numpy()
        total += fields.step(action)[0].mean()
    return total


class Learner:
    """The networks and one update of them."""

    def __init__(self) -> None:
        self.policy, self.critic = Agents(), TwinQ(STATE, 2 * AGENTS)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.tensor(-5.0, requires_grad=True)  # rewards differ by tenths, so entropy counts little
        self.of_critic = torch.optim.Adam(self.critic.parameters(), lr=LEARNING_RATE, fused=True)
        self.of_policy = torch.optim.Adam([*self.policy.parameters(), self.log_alpha], lr=LEARNING_RATE, fused=True)

    def update(self, data: dict[str, np.ndarray]) -> None:
        obs, state, action, reward = tensors(data, "obs", "state", "action", "reward")
        next_obs, next_state, discount = tensors(data, "next_obs", "next_state", "discount")
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_density = self.policy(next_obs)
            value = self.target_critic(next_state, next_action.flatten(1)).amin(0) - alpha * next_density.sum(1)
            target = reward + REWARD_OFFSET + discount * value
        loss = (self.critic(state, action.flatten(1)) - target).square().mean(1).sum()
        self.of_critic.zero_grad()
        loss.backward()
        self.of_critic.step()
        self.critic.requires_grad_(False)
        new_action, density = self.policy(obs)
        density = density.sum(1)
        gain = self.critic(state, new_action.flatten(1)).amin(0)
        surplus = density.detach().mean() + TARGET_ENTROPY
        loss = (alpha * density - gain).mean() - self.log_alpha * surplus
        self.of_policy.zero_grad()
        loss.backward()
        self.of_policy.step()
        self.critic.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target_critic.parameters()), list(self.critic.parameters()), TAU)


def main() -> int:
    run = Run(__doc__, threshold=-12.5, minutes=10)
    learner = Learner()
    with di_store.open(memory="256MiB", seed=run.seed) as store:
        replay = store.create_table(
            "replay",
            capacity=200_000,
            view=di_store.Transition(gamma=GAMMA, obs=("obs", "state")),
            sampler=di_store.Uniform(),
            limiter=di_store.SamplesPerInsert(
                BATCH / STEPS_PER_UPDATE, min_size=500 if run.small else 5_000, tolerance=0.2
            ),
        )
        store.publish("policy", learner.policy.state_dict())
        with run.processes(actor, ACTORS, run.seed, store):
            while run.goes_on(replay, lambda episodes, seed: play(learner.policy, episodes, seed), episodes=100):
                learner.update(replay.sample(BATCH).data)
                if run.updates % PUBLISH_EVERY == 0:
                    store.publish("policy", learner.policy.state_dict())
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
