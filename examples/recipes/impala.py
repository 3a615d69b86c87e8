"""IMPALA on CartPole: a queue of trajectories into one learner, corrected by V-trace.

Espeholt et al. 2018, "IMPALA: Scalable distributed deep-RL with importance weighted actor-learner architectures".
Actors never wait for gradients: they act with the newest published policy, and the learner meets trajectories of
policies some updates older than its own. V-trace weighs each step by how likely both policies find its action.

Needs torch, Gymnasium and matplotlib: pip install 'di-store[demo]'
"""

import sys

import gymnasium as gym
import numpy as np
import torch
from harness import Run, generator, mean_return, mlp, tensors
from torch.distributions import Categorical

import di_store

ACTORS, LANES, BATCH = 2, 8, 16
UNROLL = 20  # steps of a trajectory
GAMMA, RHO_BAR, C_BAR = 0.99, 1.0, 1.0
VALUE_COST, ENTROPY_COST, REWARD_SCALE = 0.5, 0.001, 0.05


def make_env() -> gym.Env:
    return gym.make("CartPole-v1")


def actor(index: int, seed: int, store: di_store.Store) -> None:
    generator(seed, 1 + index)
    net, version = mlp(4, 2, 1, last_gain=0.01), 0
    envs = gym.vector.SyncVectorEnv([make_env] * LANES)
    obs, _ = envs.reset(seed=1_000 * seed + LANES * index)
    with store.table("trajectories").writer(lanes=LANES, autoreset=envs.metadata["autoreset_mode"]) as writer:
        while True:
            if new := store.latest("policy", newer_than=version):
                net.load_state_dict(new.value)
                version = new.version
            with torch.inference_mode():
                logits, _ = net(torch.from_numpy(obs))
                action = Categorical(logits=logits).sample().numpy()
            next_obs, reward, terminated, truncated, _ = envs.step(action)
            row = {"obs": obs, "action": action, "logits": logits, "reward": reward}
            row |= {"terminated": terminated, "truncated": truncated}
            writer.append(row, next={"obs": next_obs})  # waits while the queue is full
            obs = next_obs


def vtrace(
    ratio: torch.Tensor, reward: torch.Tensor, discount: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Value targets v_s and policy gradient advantages, `[n, time]`, of equation (1) and section 4.2.

    Args:
        ratio: pi(a|x) / mu(a|x), of the learner's and the actor's policy.
        reward: of each step.
        discount: of each step, 0 after a termination.
        values: V(x), `[n, time + 1]`, with that of the observation after the last step.
        mask: False for the rows behind the end of an episode.
    """
    rho, c = ratio.clamp(max=RHO_BAR), ratio.clamp(max=C_BAR)
    delta = rho * (reward + discount * values[:, 1:] - values[:, :-1])
    corrections = [torch.zeros_like(reward[:, 0])]  # v_s - V(x_s), from the last step to the first (remark 1)
    for s in reversed(range(reward.shape[1])):
        corrections.append(mask[:, s] * (delta[:, s] + discount[:, s] * c[:, s] * corrections[-1]))
    targets = values + torch.stack(corrections[::-1], 1)
    return targets[:, :-1], rho * (reward + discount * targets[:, 1:] - values[:, :-1])


def learner(run: Run, store: di_store.Store, tables: list[di_store.Table], net: torch.nn.Module) -> None:
    """Learn from trajectories of the first of `tables`; the run reports on all of them."""
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    sampling = torch.Generator().manual_seed(run.seed)

    def evaluate(episodes: int, seed: int) -> float:
        def act(obs: np.ndarray) -> torch.Tensor:
            probabilities = net(torch.from_numpy(obs))[0].softmax(1)
            return torch.multinomial(probabilities, 1, generator=sampling).squeeze(1)

        return mean_return(make_env, act, episodes, seed)

    while run.goes_on(tables, evaluate):
        batch = tables[0].sample(BATCH)
        obs, action, behaviour, reward, mask = tensors(batch.data, "obs", "action", "logits", "reward", "mask")
        discount = GAMMA * (~torch.from_numpy(batch.data["terminated"])).float()
        logits, values = net(obs)
        policy, values = Categorical(logits=logits[:, :-1]), values.squeeze(2)
        log_prob = policy.log_prob(action)
        with torch.no_grad():
            ratio = (log_prob - Categorical(logits=behaviour).log_prob(action)).exp()
            targets, advantage = vtrace(ratio, REWARD_SCALE * reward, discount, values, mask)
        policy_loss = -log_prob * advantage
        value_loss = (targets - values[:, :-1]).square()
        loss = policy_loss + VALUE_COST * value_loss - ENTROPY_COST * policy.entropy()
        optimizer.zero_grad()
        loss[mask].mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        store.publish("policy", net.state_dict())


def main() -> int:
    run = Run(__doc__, threshold=400, minutes=5)
    net = mlp(4, 2, 1, last_gain=0.01)
    with di_store.open(memory="64MiB", seed=run.seed) as store:
        trajectories = store.create_table(
            "trajectories",
            capacity=128,
            view=di_store.Sequence(UNROLL, bootstrap=("obs",)),
            limiter=di_store.Queue(BATCH),
        )
        store.publish("policy", net.state_dict())
        with run.processes(actor, ACTORS, run.seed, store):
            learner(run, store, [trajectories], net)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
