"""PPO on CartPole: every rollout is used in ten epochs, then it is gone; actors wait for the learner.

Schulman et al. 2017, "Proximal policy optimization algorithms". The table is a queue with a use limit: `Fifo` without
replacement draws the oldest rollouts, the same ones epoch after epoch until the limit takes them out. The limiter stops
actors that are a batch ahead, and rollouts of a policy that is too old are dropped.

Needs torch, Gymnasium and matplotlib: pip install 'di-store[demo]'
"""

import sys

import gymnasium as gym
import numpy as np
import torch
from harness import Run, generator, mean_return, mlp, tensors

import di_store

ACTORS, LANES, STEPS = 2, 8, 64  # a rollout: so many steps of one lane, over ends of episodes
BATCH, EPOCHS, MINIBATCH = 16, 10, 256  # rollouts, uses of each, steps
MAX_STALENESS = 2  # versions; one is published per batch
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2
VALUE_COEFFICIENT, ENTROPY_COEFFICIENT, GRADIENT_NORM = 0.5, 0.01, 0.5


def make_env() -> gym.Env:
    return gym.make("CartPole-v1")


def actor(index: int, seed: int, store: di_store.Store) -> None:
    generator(seed, 1 + index)
    net, version = mlp(4, 2, 1), 0
    envs = gym.vector.SyncVectorEnv([make_env] * LANES)
    obs, _ = envs.reset(seed=1_000 * seed + LANES * index)
    with store.table("rollouts").writer(lanes=LANES, autoreset=envs.metadata["autoreset_mode"]) as writer:
        while True:
            if new := store.latest("policy", newer_than=version):
                net.load_state_dict(new.value)
                version = new.version
            with torch.inference_mode():
                logits, value = net(torch.from_numpy(obs))
                policy = torch.distributions.Categorical(logits=logits)
                action = policy.sample()
                next_obs, reward, terminated, truncated, _ = envs.step(action.numpy())
                next_value = net(torch.from_numpy(next_obs))[1].squeeze(1)
            writer.append(
                {
                    "obs": obs,
                    "action": action,
                    "log_prob": policy.log_prob(action),
                    "value": value.squeeze(1),
                    "next_value": next_value,  # also of the observation at which an episode was truncated
                    "reward": reward,
                    "terminated": terminated,
                    "truncated": truncated,
                    "version": np.full(LANES, version),
                }
            )
            obs = next_obs


def advantages(data: dict[str, np.ndarray]) -> torch.Tensor:
    """Equations 11 and 12: generalized advantage estimates [rollouts, steps]."""
    reward, value, next_value = tensors(data, "reward", "value", "next_value")
    terminated, truncated = (flag.float() for flag in tensors(data, "terminated", "truncated"))
    delta = reward + GAMMA * (1 - terminated) * next_value - value
    goes_on = (1 - terminated) * (1 - truncated)
    result = torch.zeros_like(delta)
    following = torch.zeros(len(delta))
    for t in reversed(range(delta.shape[1])):
        following = delta[:, t] + GAMMA * LAMBDA * goes_on[:, t] * following
        result[:, t] = following
    return result


def learner(run: Run, store: di_store.Store, rollouts: di_store.Table, net: torch.nn.Module) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4, eps=1e-5)

    def evaluate(episodes: int, seed: int) -> float:
        return mean_return(make_env, lambda obs: net(torch.from_numpy(obs))[0].argmax(1), episodes, seed)

    while run.goes_on(rollouts, evaluate):
        data = rollouts.sample(BATCH, replace=False).data  # an epoch: the oldest rollouts, each once
        advantage = advantages(data).flatten()
        obs, action, old_log_prob, old_value = (
            x.flatten(0, 1) for x in tensors(data, "obs", "action", "log_prob", "value")
        )
        returns = advantage + old_value
        for rows in torch.randperm(len(action)).split(MINIBATCH):
            logits, value = net(obs[rows])
            policy = torch.distributions.Categorical(logits=logits)
            ratio = (policy.log_prob(action[rows]) - old_log_prob[rows]).exp()
            a = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
            clipped = torch.minimum(ratio * a, ratio.clip(1 - CLIP, 1 + CLIP) * a)  # equation 7
            value_loss = (value.squeeze(1) - returns[rows]).square()
            loss = -clipped + VALUE_COEFFICIENT * value_loss - ENTROPY_COEFFICIENT * policy.entropy()  # equation 9
            optimizer.zero_grad()
            loss.mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), GRADIENT_NORM)
            optimizer.step()
        if run.updates % EPOCHS == 0:  # these rollouts are used up
            store.publish("policy", net.state_dict())


def main() -> int:
    run = Run(__doc__, threshold=400, minutes=5)
    net = mlp(4, 2, 1)
    with di_store.open(memory="256MiB", seed=run.seed) as store:
        rollouts = store.create_table(
            "rollouts",
            capacity=8 * BATCH,
            view=di_store.Sequence(STEPS, cross_episodes=True),
            sampler=di_store.Fifo(),
            max_times_sampled=EPOCHS,
            limiter=di_store.SamplesPerInsert(EPOCHS, min_size=BATCH, tolerance=1.0),  # at most two batches wait
            weights="policy",
            max_staleness=MAX_STALENESS,
        )
        store.publish("policy", net.state_dict())
        with run.processes(actor, ACTORS, run.seed, store):
            learner(run, store, rollouts, net)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
