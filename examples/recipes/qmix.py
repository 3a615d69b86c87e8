"""QMIX: three agents learn from one reward; a network mixes their values into the team's, and an item is an episode.

Rashid et al. 2018, "QMIX: monotonic value function factorisation for deep multi-agent reinforcement learning". The
agents share their weights and tell each other apart by a number. They see all of the field, so they need no memory. A
row of the table has every agent's observation and action, the state that only the mixing network sees, and the team's
reward. Whole episodes are drawn, since the targets are lambda-returns (Hu et al. 2021, "Rethinking the implementation
tricks and monotonicity constraint in cooperative multi-agent reinforcement learning"). Episodes end because time is up,
not because the task ends, so the last step bootstraps from the observation after it.

Needs torch, Gymnasium and matplotlib: pip install 'di-store[demo]'
"""

import copy
import sys

import numpy as np
import torch
from harness import Run, generator, mlp, tensors
from spread import AGENTS, MAX_STEPS, MOVES, OBS, STATE, Spread
from torch import nn

import di_store

ACTORS, LANES, BATCH, HIDDEN, MIXED = 2, 16, 16, 64, 32
GAMMA, LAMBDA, LEARNING_RATE, GRADIENT_NORM = 0.9, 0.8, 2e-3, 5.0
TAU = 0.02  # the target networks follow by so much an update
# Values should begin near zero and stay small, where the mixing network isn't saturated. All episodes are equally long,
# so a constant added to every reward prefers no policy.
REWARD_OFFSET, REWARD_SCALE = 0.8, 0.2
EPISODES_PER_UPDATE = 4
PUBLISH_EVERY = 10


class Agents(nn.Module):
    """Values of each agent's moves, from its observation and its number."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(OBS + AGENTS, len(MOVES), hidden=HIDDEN)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Values `[…, agents, moves]` of `obs` `[…, agents, OBS]`."""
        return self.net(torch.cat([obs, torch.eye(AGENTS).expand(*obs.shape[:-1], AGENTS)], -1))

    @torch.inference_mode()
    def best(self, obs: np.ndarray) -> np.ndarray:
        return self(torch.from_numpy(obs)).argmax(-1).numpy()


class Mixer(nn.Module):
    """The team's value of its agents' values; the state chooses the weights, which are not negative (section 4).

    One network gives all weights and biases: with a hidden layer, as values of far-away states are too large without.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hyper = mlp(STATE, AGENTS * MIXED, MIXED, MIXED, 1, hidden=HIDDEN)

    def forward(self, values: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Values `[…]` of `values` `[…, agents]` and `state` `[…, STATE]`."""
        weights, bias, last_weights, last_bias = self.hyper(state)
        weights = weights.abs().unflatten(-1, (AGENTS, MIXED))
        hidden = nn.functional.elu((values.unsqueeze(-1) * weights).sum(-2) + bias)
        return (hidden * last_weights.abs()).sum(-1) + last_bias.squeeze(-1)


def actor(index: int, seed: int, store: di_store.Store) -> None:
    rng = generator(seed, 1 + index)
    lane = LANES * index + np.arange(LANES)[:, None]
    epsilon = 0.5 ** (1 + 5 * lane / (ACTORS * LANES - 1))
    net, version, fields = Agents(), 0, Spread(LANES, rng)
    seen = fields.observe()
    with store.table("episodes").writer(lanes=LANES) as writer:
        while True:
            explore = rng.random((LANES, AGENTS)) < epsilon
            action = np.where(explore, rng.integers(len(MOVES), size=(LANES, AGENTS)), net.best(seen["obs"]))
            reward, ended = fields.step(MOVES[action])
            row = {"action": action, "reward": reward}
            row |= {"terminated": np.zeros(LANES, bool), "truncated": np.full(LANES, ended)}
            writer.append(seen | row, next=fields.observe())
            if ended:
                fields.reset()
                if new := store.latest("policy", newer_than=version):
                    net.load_state_dict(new.value)
                    version = new.version
            seen = fields.observe()


def play(net: Agents, episodes: int, seed: int) -> float:
    """The mean return of so many episodes."""
    fields, total = Spread(episodes, np.random.default_rng(seed)), 0.0
    for _ in range(MAX_STEPS):
        total += fields.step(MOVES[net.best(fields.observe()["obs"])])[0].mean()
    return total


def loss_of(team: nn.ModuleList, target_team: nn.ModuleList, data: dict[str, np.ndarray]) -> torch.Tensor:
    """Equation 6 with double Q-learning: the mean squared error of the team's values, over the steps there are."""
    obs, state, action, reward, lengths = tensors(data, "obs", "state", "action", "reward", "lengths")
    reward = REWARD_SCALE * (reward + REWARD_OFFSET)
    discount = GAMMA * ~torch.from_numpy(data["terminated"])
    (agents, mixer), (target_agents, target_mixer) = team, target_team
    values = agents(obs)
    chosen = values[:, :-1].gather(3, action.unsqueeze(3)).squeeze(3)
    team_value = mixer(chosen, state[:, :-1])
    mask = torch.arange(reward.shape[1]) < lengths.unsqueeze(1)
    with torch.no_grad():
        best = values.argmax(3, keepdim=True)
        following = target_mixer(target_agents(obs).gather(3, best).squeeze(3), state)[:, 1:]
        target, returns = torch.empty_like(reward), following[:, -1]
        for t in reversed(range(reward.shape[1])):
            last = t + 1 == lengths  # nothing but the value is known of what comes after the last step
            mixed = torch.where(last, following[:, t], (1 - LAMBDA) * following[:, t] + LAMBDA * returns)
            target[:, t] = returns = reward[:, t] + discount[:, t] * mixed
    return (mask * nn.functional.huber_loss(team_value, target, reduction="none")).sum() / mask.sum()


def learner(run: Run, store: di_store.Store, episodes: di_store.Table, team: nn.ModuleList) -> None:
    target_team = copy.deepcopy(team).requires_grad_(False)
    optimizer = torch.optim.Adam(team.parameters(), lr=LEARNING_RATE, fused=True)
    while run.goes_on(episodes, lambda number, seed: play(team[0], number, seed), episodes=100):
        loss = loss_of(team, target_team, episodes.sample(BATCH).data)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(team.parameters(), GRADIENT_NORM)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target_team.parameters()), list(team.parameters()), TAU)
        if run.updates % PUBLISH_EVERY == 0:
            store.publish("policy", team[0].state_dict())


def main() -> int:
    run = Run(__doc__, threshold=-14, minutes=8)
    team = nn.ModuleList([Agents(), Mixer()])
    with di_store.open(memory="256MiB", seed=run.seed) as store:
        episodes = store.create_table(
            "episodes",
            capacity=10_000,
            view=di_store.Episode(MAX_STEPS, bootstrap=("obs", "state")),
            sampler=di_store.Uniform(),
            limiter=di_store.SamplesPerInsert(
                BATCH / EPISODES_PER_UPDATE, min_size=64 if run.small else 500, tolerance=0.2
            ),
        )
        store.publish("policy", team[0].state_dict())
        with run.processes(actor, ACTORS, run.seed, store):
            learner(run, store, episodes, team)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
