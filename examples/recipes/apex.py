"""Ape-X DQN on CartPole: actors compute the first priorities, the learner keeps them current.

Horgan et al. 2018, "Distributed prioritized experience replay". Each actor has its own share of random actions, keeps
the last n values that its network gave, and so knows the n-step error of a transition before anybody draws it. The
learner is a double DQN.

Needs torch, Gymnasium and matplotlib: pip install 'di-store[demo]'
"""

import copy
import sys
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from harness import Run, generator, mean_return, mlp, tensors

import di_store

ACTORS, LANES, BATCH = 2, 8, 64
GAMMA, N_STEP = 0.99, 3
TARGET_EVERY, PUBLISH_EVERY = 200, 25
RATE_UPDATES = 40_000  # the learning rate falls over so many updates


def make_env() -> gym.Env:
    return gym.make("CartPole-v1")


def actor(index: int, seed: int, store: di_store.Store) -> None:
    rng = generator(seed, 1 + index)
    lane = LANES * index + np.arange(LANES)
    epsilon = 0.4 ** (1 + 7 * lane / (ACTORS * LANES - 1))  # probability of a random action: 0.4 to 0.0007
    net, version = mlp(4, 2), 0
    envs = gym.vector.SyncVectorEnv([make_env] * LANES)
    obs, _ = envs.reset(seed=1_000 * seed + LANES * index)
    recent: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=N_STEP)  # values of the actions taken, rewards
    with store.table("replay").writer(lanes=LANES, autoreset=envs.metadata["autoreset_mode"]) as writer:
        values = np.zeros((LANES, 2), np.float32)
        while True:
            if new := store.latest("policy", newer_than=version):
                net.load_state_dict(new.value)
                version = new.version
            action = np.where(rng.random(LANES) < epsilon, rng.integers(2, size=LANES), values.argmax(1))
            next_obs, reward, terminated, truncated, _ = envs.step(action)
            with torch.inference_mode():
                next_values = net(torch.from_numpy(next_obs)).numpy()
            # The transition that this row completes began n rows ago: R + gamma^n max Q(next) - Q(first).
            recent.append((values[np.arange(LANES), action], reward))
            target = np.where(terminated, 0.0, next_values.max(1))
            for _, earlier in reversed(recent):
                target = earlier + GAMMA * target
            row = {"obs": obs, "action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
            writer.append(row, next={"obs": next_obs}, priority=np.abs(target - recent[0][0]) + 1e-3)
            obs, values = next_obs, next_values


def learner(run: Run, store: di_store.Store, replay: di_store.Table, net: torch.nn.Module) -> None:
    target_net = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4, eps=1.5e-4)
    rate = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, RATE_UPDATES)

    def evaluate(episodes: int, seed: int) -> float:
        return mean_return(make_env, lambda obs: net(torch.from_numpy(obs)).argmax(1), episodes, seed)

    while run.goes_on(replay, evaluate):
        batch = replay.sample(BATCH)
        obs, action, reward, next_obs, discount = tensors(batch.data, "obs", "action", "reward", "next_obs", "discount")
        with torch.no_grad():
            best = net(next_obs).argmax(1, keepdim=True)
            target = reward + discount * target_net(next_obs).gather(1, best).squeeze(1)
        value = net(obs).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = torch.nn.functional.huber_loss(value, target, reduction="none")
        optimizer.zero_grad()
        (torch.from_numpy(batch.weights).float() * loss).mean().backward()
        optimizer.step()
        rate.step()
        replay.update_priorities(batch.keys, (value - target).detach().abs() + 1e-3)
        if run.updates % TARGET_EVERY == 0:
            target_net.load_state_dict(net.state_dict())
        if run.updates % PUBLISH_EVERY == 0:
            store.publish("policy", net.state_dict())


def main() -> int:
    run = Run(__doc__, threshold=400, minutes=5)
    net = mlp(4, 2)
    with di_store.open(memory="256MiB", seed=run.seed) as store:
        replay = store.create_table(
            "replay",
            capacity=100_000,
            view=di_store.Transition(n_step=N_STEP, gamma=GAMMA),
            sampler=di_store.Prioritized(alpha=0.6, beta=0.4),
            limiter=di_store.SamplesPerInsert(32, min_size=100 if run.small else 1_000, tolerance=0.1),
        )
        store.publish("policy", net.state_dict())
        with run.processes(actor, ACTORS, run.seed, store):
            learner(run, store, replay, net)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
