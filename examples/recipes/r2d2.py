"""R2D2 on CartPole without velocities: a recurrent Q-network learns from replayed sequences with stored states.

Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning". The network must remember,
since an observation is only where the cart and the pole are. Each sequence holds the recurrent state that the actor had
at its first step (section 3, "stored state"); the learner unrolls the first steps only to bring that state up to date
("burn-in"), and learns on the others.

Needs torch, Gymnasium and matplotlib: pip install 'di-store[demo]'
"""

import copy
import sys
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch
from harness import Run, generator, mean_return, tensors
from torch import nn

import di_store

ACTORS, LANES, BATCH, HIDDEN = 2, 8, 64, 64
BURN_IN, LENGTH, PERIOD = 8, 16, 8  # sequences overlap by half, as the paper's of 80 steps do (section 2.3)
GAMMA, N_STEP = 0.99, 5
ETA = 0.9  # weight of the largest error in a sequence's priority
TARGET_EVERY, PUBLISH_EVERY = 100, 10
VIEW = di_store.Sequence(LENGTH, period=PERIOD, burn_in=BURN_IN, first=("state",), bootstrap=("obs",))


class Positions(gym.ObservationWrapper):
    """CartPole as positions only, of the cart and of the pole, scaled to about -1 … 1."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]] / np.float32([2.4, 0.21])


def make_env() -> gym.Env:
    return Positions(gym.make("CartPole-v1"))


class RecurrentQ(nn.Module):
    """Action values of sequences. The state, `[batch, 2, hidden]`, is the LSTM's h and c."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU())
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.value, self.advantage = nn.Linear(HIDDEN, 1), nn.Linear(HIDDEN, actions)  # dueling

    def forward(self, obs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h, c = state.transpose(0, 1).contiguous().unsqueeze(1)
        out, (h, c) = self.lstm(self.body(obs), (h, c))
        advantage = self.advantage(out)
        return self.value(out) + advantage - advantage.mean(-1, keepdim=True), torch.cat((h, c)).transpose(0, 1)

    @torch.no_grad()
    def step(self, obs: np.ndarray, state: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
        """Values `[batch, actions]` of one observation each, and the next state."""
        values, state = self(torch.from_numpy(obs).unsqueeze(1), state)
        return values[:, 0].numpy(), state


def rescale(x: torch.Tensor) -> torch.Tensor:
    """h(x) of section 2.3, with epsilon = 0.001: so that large returns need no clipped rewards."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + 1e-3 * x


def undo_rescale(x: torch.Tensor) -> torch.Tensor:
    return x.sign() * ((((1 + 4e-3 * (x.abs() + 1 + 1e-3)).sqrt() - 1) / 2e-3) ** 2 - 1)


def priority(errors: np.ndarray) -> np.ndarray:
    """Section 2.3: p = eta max |delta| + (1 - eta) mean |delta|, of sequences of errors `[n, time]`; NaN: no step."""
    return ETA * np.nanmax(errors, 1) + (1 - ETA) * np.nanmean(errors, 1) + 1e-3


def actor(index: int, make: Callable[[], gym.Env], seed: int, store: di_store.Store) -> None:
    rng = generator(seed, 1 + index)
    lane = LANES * index + np.arange(LANES)
    epsilon = 0.4 ** (1 + 7 * lane / (ACTORS * LANES - 1))
    envs = gym.vector.SyncVectorEnv([make] * LANES)
    obs, _ = envs.reset(seed=1_000 * seed + LANES * index)
    actions = envs.single_action_space.n
    net, version = RecurrentQ(obs.shape[1], actions), 0
    state = torch.zeros(LANES, 2, HIDDEN)
    values, next_state = net.step(obs, state)
    ended, errors = np.zeros(LANES, bool), np.full((LANES, LENGTH), np.nan)
    with store.table("replay").writer(lanes=LANES, autoreset=envs.metadata["autoreset_mode"]) as writer:
        while True:
            if new := store.latest("policy", newer_than=version):
                net.load_state_dict(new.value)
                version = new.version
            action = np.where(rng.random(LANES) < epsilon, rng.integers(actions, size=LANES), values.argmax(1))
            next_obs, reward, terminated, truncated, _ = envs.step(action)
            next_state[ended] = 0.0  # this step only reset those environments: an episode begins after it
            next_values, after = net.step(next_obs, next_state)
            bootstrap = np.where(terminated, 0.0, undo_rescale(torch.from_numpy(next_values.max(1))))
            target = rescale(torch.from_numpy(reward + GAMMA * bootstrap)).numpy()
            errors[ended] = np.nan
            errors = np.roll(errors, -1, 1)
            errors[:, -1] = np.abs(target - values[np.arange(LANES), action])
            row = {"obs": obs, "state": state, "action": action, "reward": reward}
            row |= {"terminated": terminated, "truncated": truncated}
            writer.append(row, next={"obs": next_obs}, priority=priority(errors))
            obs, values, state, next_state, ended = next_obs, next_values, next_state, after, terminated | truncated


def sequence_errors(net: RecurrentQ, target_net: RecurrentQ, data: dict[str, np.ndarray]) -> torch.Tensor:
    """Errors of the learning steps of sequences, `[n, LENGTH]`; NaN where a sequence was padded."""
    obs, state, action, reward, mask = tensors(data, "obs", "state", "action", "reward", "mask")
    goes_on = ~torch.from_numpy(data["terminated"])
    with torch.no_grad():
        _, started = net(obs[:, :BURN_IN], state)
        _, target_started = target_net(obs[:, :BURN_IN], state)
        target_values, _ = target_net(obs[:, BURN_IN:], target_started)
    values, _ = net(obs[:, BURN_IN:], started)
    action, reward, mask, goes_on = (each[:, BURN_IN:] for each in (action, reward, mask, goes_on))
    with torch.no_grad():
        # Section 2.3: n-step double Q-learning, r + … + gamma^n h^-1(Q'(s, argmax Q)), fewer steps at the end.
        best = undo_rescale(target_values.gather(2, values.argmax(2, keepdim=True)).squeeze(2))
        returns = best
        for _ in range(N_STEP):
            longer = torch.where(mask, reward + GAMMA * goes_on * returns[:, 1:], best[:, :-1])
            returns = torch.cat((longer, best[:, -1:]), 1)
        target = rescale(returns[:, :-1])
    chosen = values[:, :-1].gather(2, action.unsqueeze(2)).squeeze(2)
    return torch.where(mask, target - chosen, torch.nan)


def learner(
    run: Run,
    make: Callable[[], gym.Env],
    store: di_store.Store,
    replay: di_store.Table | di_store.Mixture,
    tables: list[di_store.Table],
) -> None:
    env = make()
    net = RecurrentQ(env.observation_space.shape[0], env.action_space.n)
    target_net = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-3)
    store.publish("policy", net.state_dict())

    def evaluate(episodes: int, seed: int) -> float:
        state = torch.zeros(episodes, 2, HIDDEN)

        def act(obs: np.ndarray) -> np.ndarray:
            nonlocal state
            values, state = net.step(obs, state)
            return values.argmax(1)

        return mean_return(make, act, episodes, seed)

    while run.goes_on(tables, evaluate):
        batch = replay.sample(BATCH)
        errors = sequence_errors(net, target_net, batch.data)
        loss = torch.from_numpy(batch.weights).float() * errors.square().nansum(1)
        optimizer.zero_grad()
        loss.mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 40.0)
        optimizer.step()
        replay.update_priorities(batch.keys, priority(errors.detach().abs().numpy()))
        if run.updates % TARGET_EVERY == 0:
            target_net.load_state_dict(net.state_dict())
        if run.updates % PUBLISH_EVERY == 0:
            store.publish("policy", net.state_dict())


def main() -> int:
    run = Run(__doc__, threshold=400, minutes=5)
    with di_store.open(memory="256MiB", seed=run.seed) as store:
        replay = store.create_table(
            "replay",
            capacity=20_000,
            view=VIEW,
            sampler=di_store.Prioritized(alpha=0.9, beta=0.6),
            limiter=di_store.SamplesPerInsert(8, min_size=32 if run.small else 200, tolerance=0.2),
        )
        with run.processes(actor, ACTORS, make_env, run.seed, store):
            learner(run, make_env, store, replay, [replay])
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
