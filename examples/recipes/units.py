"""DQN on observations with a varying number of units, as in GoBigger: ragged columns, pooled by attention.

A player on a plane sees the food and the thorns near it, none or many. Their column is ragged: rows are stored with the
units that they have, and a batch holds one array of all units with the offsets of its rows. The network pools them
without padding. (Zaheer et al. 2017, "Deep sets"; Ilse et al. 2018, "Attention-based deep multiple instance learning",
equations 7 and 8 for the pooling.)

Needs torch, Gymnasium and matplotlib: pip install 'di-store[demo]'
"""

import copy
import sys

import numpy as np
import torch
from harness import Run, generator, mlp, tensors
from torch import nn

import di_store

UNITS, SIGHT, REACH, SPEED, MAX_STEPS = 24, 0.5, 0.06, 0.06, 80
MOVES = np.array([[np.sin(a), np.cos(a)] for a in np.arange(8) * np.pi / 4] + [[0, 0]])

ACTORS, LANES, BATCH = 2, 8, 64
GAMMA, N_STEP = 0.95, 3
TARGET_EVERY, PUBLISH_EVERY = 200, 25


class Field:
    """`lanes` fields of the unit square. The reward is the food reached in a step less the thorns; both then vanish."""

    def __init__(self, lanes: int, rng: np.random.Generator) -> None:
        self.rng, self.steps = rng, np.zeros(lanes, int)
        self.player, self.unit = np.zeros((lanes, 2)), np.zeros((lanes, UNITS, 2))
        self.value = np.zeros((lanes, UNITS))  # 1: food, -1: thorn, 0: gone
        self.reset(np.ones(lanes, bool))

    def reset(self, lanes: np.ndarray) -> None:
        n = lanes.sum()
        self.steps[lanes] = 0
        self.player[lanes], self.unit[lanes] = self.rng.random((n, 2)), self.rng.random((n, UNITS, 2))
        there = np.arange(UNITS) < self.rng.integers(1, UNITS + 1, size=(n, 1))  # each field has its own number
        self.value[lanes] = there * self.rng.choice([1, 1, -1], size=(n, UNITS))

    def observe(self) -> dict[str, np.ndarray | list[np.ndarray]]:
        """`player` [lanes, 2] and, of each lane, the units in sight, [units, 3]."""
        relative = self.unit - self.player[:, None]
        seen = (np.linalg.norm(relative, axis=2) < SIGHT) & (self.value != 0)
        units = np.concatenate([relative / SIGHT, self.value[:, :, None]], 2, dtype=np.float32)
        return {"player": np.float32(self.player), "units": [units[lane, seen[lane]] for lane in range(len(seen))]}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.player = (self.player + SPEED * MOVES[action]).clip(0, 1)
        reached = np.linalg.norm(self.unit - self.player[:, None], axis=2) < REACH
        reward = (self.value * reached).sum(1)
        self.value[reached] = 0
        self.steps += 1
        return reward, self.steps == MAX_STEPS


class Network(nn.Module):
    """Values of the actions, from the player and any number of units."""

    def __init__(self, features: int = 64) -> None:
        super().__init__()
        self.of_unit = nn.Sequential(nn.Linear(3, features), nn.ReLU(), nn.Linear(features, features), nn.ReLU())
        self.score = nn.Linear(features, 4)
        self.of_all = mlp(2 + 5 * features, len(MOVES))

    def forward(self, player: torch.Tensor, units: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """`units` [all units, 3]: those of the first row, then those of the second, ….; `lengths` [n]: how many."""
        n = len(lengths)
        row = torch.arange(n).repeat_interleave(lengths)
        features = self.of_unit(units)
        weights = self.score(features).clip(-20, 20).exp()  # softmax over the units of a row, for each of four heads
        share = weights / torch.zeros(n, 4).index_add(0, row, weights)[row]
        weighted = (share.unsqueeze(2) * features.unsqueeze(1)).flatten(1)
        pooled = torch.cat([weighted, 0.1 * features], 1)  # means by attention, and the sum: deep sets
        return self.of_all(torch.cat([player, torch.zeros(n, pooled.shape[1]).index_add(0, row, pooled)], 1))


def act(net: Network, seen: dict) -> np.ndarray:
    lengths = torch.tensor([len(each) for each in seen["units"]])
    with torch.inference_mode():
        values = net(torch.from_numpy(seen["player"]), torch.from_numpy(np.concatenate(seen["units"])), lengths)
    return values.argmax(1).numpy()


def actor(index: int, seed: int, store: di_store.Store) -> None:
    rng = generator(seed, 1 + index)
    lane = LANES * index + np.arange(LANES)
    epsilon = 0.4 ** (1 + 5 * lane / (ACTORS * LANES - 1))
    net, version, fields = Network(), 0, Field(LANES, rng)
    seen = fields.observe()
    with store.table("replay").writer(lanes=LANES) as writer:
        while True:
            if new := store.latest("policy", newer_than=version):
                net.load_state_dict(new.value)
                version = new.version
            action = np.where(rng.random(LANES) < epsilon, rng.integers(len(MOVES), size=LANES), act(net, seen))
            reward, ended = fields.step(action)
            row = {"action": action, "reward": reward, "terminated": np.zeros(LANES, bool), "truncated": ended}
            writer.append(seen | row, next=fields.observe())
            fields.reset(ended)
            seen = fields.observe()


def play(net: Network, episodes: int, seed: int) -> float:
    """The mean return of so many episodes."""
    fields, total = Field(episodes, np.random.default_rng(seed)), 0.0
    for _ in range(MAX_STEPS):
        total += fields.step(act(net, fields.observe()))[0].mean()
    return total


def learner(run: Run, store: di_store.Store, replay: di_store.Table, net: Network) -> None:
    target_net = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    while run.goes_on(replay, lambda episodes, seed: play(net, episodes, seed), episodes=50):
        batch = replay.sample(BATCH)
        action, reward, discount = tensors(batch.data, "action", "reward", "discount")
        now, following = (
            (*tensors(batch.data, prefix + "player"), torch.from_numpy(units.values), torch.from_numpy(units.lengths))
            for prefix, units in (("", batch.data["units"]), ("next_", batch.data["next_units"]))
        )
        with torch.no_grad():
            best = net(*following).argmax(1, keepdim=True)
            target = reward + discount * target_net(*following).gather(1, best).squeeze(1)
        value = net(*now).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = torch.from_numpy(batch.weights).float() * nn.functional.huber_loss(value, target, reduction="none")
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        replay.update_priorities(batch.keys, (value - target).detach().abs() + 1e-3)
        if run.updates % TARGET_EVERY == 0:
            target_net.load_state_dict(net.state_dict())
        if run.updates % PUBLISH_EVERY == 0:
            store.publish("policy", net.state_dict())


def main() -> int:
    run = Run(__doc__, threshold=4, minutes=5)
    net = Network()
    schema = {
        "player": di_store.Spec((2,), "f4"),
        "units": di_store.Spec((None, 3), "f4", max=UNITS),
        "action": di_store.Spec((), "i8"),
        "reward": di_store.Spec((), "f4"),
        "terminated": di_store.Spec((), "?"),
        "truncated": di_store.Spec((), "?"),
    }
    with di_store.open(memory="256MiB", seed=run.seed) as store:
        replay = store.create_table(
            "replay",
            capacity=100_000,
            view=di_store.Transition(n_step=N_STEP, gamma=GAMMA, obs=("player", "units")),
            schema=schema,
            sampler=di_store.Prioritized(alpha=0.6, beta=0.4),
            limiter=di_store.SamplesPerInsert(16, min_size=200 if run.small else 1_000, tolerance=0.2),
        )
        store.publish("policy", net.state_dict())
        with run.processes(actor, ACTORS, run.seed, store):
            learner(run, store, replay, net)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
