"""Never give up: rewards for what is new in an episode, from an episodic memory, where DQN alone finds no reward.

Badia et al. 2020, "Never give up: learning directed exploration strategies" (equation 2, algorithm 1). Each actor looks
the embedding of a step up in the memory of its lane's episode: the further it is from its nearest neighbours there, the
higher the intrinsic reward. It is a column of the table beside the reward of the environment. The embedding is learned
by predicting the action between two observations, so that it keeps what the agent controls. One network has values for
exploring (with intrinsic rewards) and values for exploiting (without), both learned from all steps; the evaluations use
the latter. The paper's recurrent network and its modulation by lifelong novelty are left out.

The environment: a long way leads to a key, a longer one to the door that it opens, and behind that is the only reward.

Needs torch, Gymnasium and matplotlib: pip install 'di-store[demo]'
DQN without intrinsic rewards, for comparison: ngu.py --beta 0
"""

import copy
import sys

import numpy as np
import torch
from harness import Run, generator, mlp, tensors
from torch import nn

import di_store

# S: start, K: key, D: door, G: goal, which ends the episode with a reward of 1.
MAP = """
###############
#K#...#...#S..#
#.#.#.#.#.#.#.#
#.#.#.#.#.#.###
#...#...#...###
#.#############
#.........D..G#
###############
""".split()
GRID = np.array([list(line) for line in MAP])
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])
OBS, ACTIONS, SLIP, MAX_STEPS = sum(GRID.shape) + 1, len(MOVES), 0.05, 120
SEEN = OBS + ACTIONS + 1  # the agent is also told its last action and the last intrinsic reward, as in the paper

ACTORS, LANES, BATCH, LENGTH = 2, 16, 32, 20
GAMMA, LAMBDA, LEARNING_RATE = 0.98, 0.95, 5e-4
TARGET_EVERY, PUBLISH_EVERY = 100, 10
EMBEDDING, NEIGHBOURS = 16, 10
KERNEL, CLUSTER, PSEUDO_COUNTS, MAX_SIMILARITY = 1e-3, 0.008, 1e-3, 8.0  # epsilon, xi, c and s_m of algorithm 1
MOST = 10.0  # the largest intrinsic reward, about: all neighbours are at the mean distance


class House:
    """`lanes` copies of the house. Now and then the agent slips: a random move is made in place of the chosen one."""

    def __init__(self, lanes: int, rng: np.random.Generator) -> None:
        self.rng, self.steps = rng, np.zeros(lanes, int)
        self.place, self.key = np.zeros((lanes, 2), int), np.zeros(lanes, bool)
        self.reset(np.ones(lanes, bool))

    def reset(self, lanes: np.ndarray) -> None:
        self.steps[lanes], self.key[lanes] = 0, False
        self.place[lanes] = np.argwhere(GRID == "S")

    def observe(self) -> np.ndarray:
        """Row and column, one-hot each, and whether the agent has the key: `[lanes, OBS]`."""
        row, column = np.eye(GRID.shape[0])[self.place[:, 0]], np.eye(GRID.shape[1])[self.place[:, 1]]
        return np.concatenate([row, column, self.key[:, None]], 1, dtype=np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the rewards, which episodes are `terminated` and which `truncated`."""
        slips = self.rng.random(len(action)) < SLIP
        action = np.where(slips, self.rng.integers(ACTIONS, size=len(action)), action)
        there = self.place + MOVES[action]
        what = GRID[there[:, 0], there[:, 1]]
        free = (what != "#") & ((what != "D") | self.key)
        self.place[free] = there[free]
        self.key |= what == "K"
        self.steps += 1
        goal = what == "G"
        return np.float32(goal), goal, ~goal & (self.steps == MAX_STEPS)


class Network(nn.Module):
    """Values `[…, 2, actions]` for exploring and for exploiting; the embedding, and the actions predicted from it."""

    def __init__(self) -> None:
        super().__init__()
        self.values = mlp(SEEN, 2 * ACTIONS)
        self.embed = mlp(OBS, EMBEDDING, hidden=64)
        self.predict = nn.Sequential(nn.Linear(2 * EMBEDDING, 64), nn.ReLU(), nn.Linear(64, ACTIONS))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.values(obs).unflatten(-1, (2, ACTIONS))

    def inverse_loss(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Cross entropy `[n, time]` of the actions between observations `[n, time + 1, OBS]`."""
        embedded = self.embed(obs[..., :OBS])
        logits = self.predict(torch.cat([embedded[:, :-1], embedded[:, 1:]], 2))
        return nn.functional.cross_entropy(logits.flatten(0, 1), action.flatten(), reduction="none").view_as(action)

    @torch.inference_mode()
    def embedding(self, obs: np.ndarray) -> np.ndarray:
        return self.embed(torch.from_numpy(obs[:, :OBS])).numpy()

    @torch.inference_mode()
    def best(self, obs: np.ndarray) -> np.ndarray:
        """The best actions `[n, 2]` for exploring and for exploiting."""
        return self(torch.from_numpy(obs)).argmax(2).numpy()


class EpisodicMemory:
    """The embeddings of all steps of each lane's episode."""

    def __init__(self, lanes: int) -> None:
        self.items = np.full((lanes, MAX_STEPS, EMBEDDING), np.nan, np.float32)
        self.count = np.zeros(lanes, int)
        self.mean_distance = 0.0  # moving average of squared distances to neighbours

    def forget(self, lanes: np.ndarray) -> None:
        self.items[lanes], self.count[lanes] = np.nan, 0

    def reward(self, embedding: np.ndarray) -> np.ndarray:
        """Algorithm 1: the intrinsic rewards `[lanes]` of embeddings `[lanes, EMBEDDING]`, which are then kept.

        Neighbours that an episode is too short to have count as being at the mean distance.
        """
        distance = np.square(self.items - embedding[:, None]).sum(2)
        distance = np.sort(distance, 1)[:, :NEIGHBOURS]  # NaN, a place not yet filled, comes last
        known = ~np.isnan(distance)
        if known.any():
            mean = distance[known].mean()
            self.mean_distance = 0.99 * self.mean_distance + 0.01 * mean if self.mean_distance else mean
        relative = np.where(known, distance, self.mean_distance) / max(self.mean_distance, 1e-8)
        kernel = KERNEL / ((relative - CLUSTER).clip(0) + KERNEL)
        similarity = np.sqrt(kernel.sum(1)) + PSEUDO_COUNTS
        self.items[np.arange(len(embedding)), self.count] = embedding
        self.count += 1
        return np.float32(np.where(similarity > MAX_SIMILARITY, 0.0, 1 / similarity))


def told(houses: House, action: np.ndarray | None = None, intrinsic: np.ndarray | float = 0.0) -> np.ndarray:
    """What agents see `[lanes, SEEN]`, after `action` (None: at the start of an episode) and its intrinsic reward."""
    more = np.zeros((len(houses.steps), ACTIONS + 1), np.float32)
    if action is not None:
        more[np.arange(len(more)), action] = 1
        more[:, -1] = intrinsic / MOST
    return np.concatenate([houses.observe(), more], 1)


def actor(index: int, seed: int, store: di_store.Store) -> None:
    rng = generator(seed, 1 + index)
    lane = LANES * index + np.arange(LANES)
    epsilon = 0.4 ** (1 + 5 * lane / (ACTORS * LANES - 1))
    head = np.int64(lane % 4 == 3)  # a quarter of the lanes exploits
    net, version, houses, memory = Network(), 0, House(LANES, rng), EpisodicMemory(LANES)
    obs = told(houses)
    with store.table("replay").writer(lanes=LANES) as writer:
        while True:
            if new := store.latest("policy", newer_than=version):
                net.load_state_dict(new.value)
                version = new.version
            explore = rng.random(LANES) < epsilon
            action = np.where(explore, rng.integers(ACTIONS, size=LANES), net.best(obs)[np.arange(LANES), head])
            reward, terminated, truncated = houses.step(action)
            intrinsic = memory.reward(net.embedding(houses.observe()))
            next_obs = told(houses, action, intrinsic)
            row = {"obs": obs, "action": action, "reward": reward, "intrinsic": intrinsic}
            writer.append(row | {"terminated": terminated, "truncated": truncated}, next={"obs": next_obs})
            houses.reset(terminated | truncated)
            memory.forget(terminated | truncated)
            obs = np.where((terminated | truncated)[:, None], told(houses), next_obs)


def play(net: Network, episodes: int, seed: int) -> float:
    """The mean return of so many episodes: of the environment's rewards, with the values for exploiting."""
    houses, memory = House(episodes, np.random.default_rng(seed)), EpisodicMemory(episodes)
    total, alive, obs = np.zeros(episodes), np.ones(episodes, bool), told(houses)
    for _ in range(MAX_STEPS):
        action = net.best(obs)[:, 1]
        reward, terminated, _ = houses.step(action)
        obs = told(houses, action, memory.reward(net.embedding(houses.observe())))
        total += reward * alive
        alive &= ~terminated
    return float(total.mean())


def errors_of(net: Network, target_net: Network, data: dict[str, np.ndarray], beta: float) -> torch.Tensor:
    """Errors of both values `[n, time, 2]`.

    By Retrace for greedy policies: returns end before the first action that is not greedy.
    """
    obs, action, reward, intrinsic, mask = tensors(data, "obs", "action", "reward", "intrinsic", "mask")
    goes_on = (~torch.from_numpy(data["terminated"])).unsqueeze(2)
    rewards = torch.stack([reward + beta * intrinsic, reward], 2)
    taken = action[:, :, None, None].expand(-1, -1, 2, 1)
    values = net(obs)
    chosen = values[:, :-1].gather(3, taken).squeeze(3)
    with torch.no_grad():
        following = target_net(obs[:, 1:])
        best = following.gather(3, values[:, 1:].argmax(3, keepdim=True)).squeeze(3)
        greedy = (values[:, :-1].argmax(3) == action.unsqueeze(2)) & mask.unsqueeze(2)
        target = rewards + GAMMA * goes_on * best  # of one step
        for t in reversed(range(LENGTH - 1)):
            correction = (target[:, t + 1] - chosen[:, t + 1]) * greedy[:, t + 1]
            target[:, t] += GAMMA * LAMBDA * goes_on[:, t] * correction
    return (target - chosen) * mask.unsqueeze(2)


def learner(run: Run, store: di_store.Store, replay: di_store.Table, net: Network) -> None:
    target_net = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True)
    beta = run.more["beta"]
    while run.goes_on(replay, lambda episodes, seed: play(net, episodes, seed), episodes=50):
        batch = replay.sample(BATCH)
        errors = errors_of(net, target_net, batch.data, beta)
        loss = nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none").mean((1, 2))
        obs, action, mask = tensors(batch.data, "obs", "action", "mask")
        loss = torch.from_numpy(batch.weights).float() * loss + (net.inverse_loss(obs, action) * mask).mean(1)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        replay.update_priorities(batch.keys, errors.detach().abs().amax((1, 2)) + 1e-3)
        if run.updates % TARGET_EVERY == 0:
            target_net.load_state_dict(net.state_dict())
        if run.updates % PUBLISH_EVERY == 0:
            store.publish("policy", net.state_dict())


def main() -> int:
    run = Run(__doc__, threshold=0.9, minutes=5, beta=0.005)
    net = Network()
    with di_store.open(memory="256MiB", seed=run.seed) as store:
        replay = store.create_table(
            "replay",
            capacity=20_000,
            view=di_store.Sequence(LENGTH, bootstrap=("obs",)),
            sampler=di_store.Prioritized(alpha=0.6, beta=0.4),
            limiter=di_store.SamplesPerInsert(4, min_size=50 if run.small else 500, tolerance=0.2),
        )
        store.publish("policy", net.state_dict())
        with run.processes(actor, ACTORS, run.seed, store):
            learner(run, store, replay, net)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
