"""GA3C on CartPole: agents have no network; a predictor answers them, through a queue, in batches.

Babaeizadeh et al. 2017, "Reinforcement learning through asynchronous advantage actor-critic on a GPU" (section 4).
Agents put observations into the prediction queue and wait for their actions; the predictor takes whatever has come (up
to a batch), runs the network once, and answers each agent through a small queue of its own. Agents put short sequences
into the training queue. So one network serves all, and only the trainer has gradients.

Needs torch, Gymnasium and matplotlib: pip install 'di-store[demo]'
"""

import sys

import gymnasium as gym
import numpy as np
import torch
from harness import Run, generator, mean_return, mlp, tensors

import di_store
from di_store import Spec

AGENTS, LANES = 4, 4  # each agent steps some environments together: one request for all of them
T_MAX, BATCH = 10, 32  # steps of a sequence, sequences of an update
GAMMA, VALUE_COST, BETA, REWARD_SCALE = 0.99, 0.5, 0.001, 0.05
EPSILON = 1e-6  # added to pi before the logarithm: the trainer's policy may nearly exclude what an older one chose


def make_env() -> gym.Env:
    return gym.make("CartPole-v1")


def agent(index: int, seed: int, store: di_store.Store) -> None:
    generator(seed, 1 + index)
    requests, answers = store.table("prediction"), store.table(f"answers-{index}")
    envs = gym.vector.SyncVectorEnv([make_env] * LANES)
    obs, _ = envs.reset(seed=1_000 * seed + LANES * index)
    with store.table("training").writer(lanes=LANES, autoreset=envs.metadata["autoreset_mode"]) as writer:
        while True:
            requests.insert({"agent": index, "obs": obs})
            action = answers.sample(1).data["action"][0]
            next_obs, reward, terminated, truncated, _ = envs.step(action)
            row = {"obs": obs, "action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
            writer.append(row, next={"obs": next_obs})
            obs = next_obs


def predictor(index: int, seed: int, store: di_store.Store) -> None:
    generator(seed, 101 + index)
    net, version = mlp(4, 2, 1, last_gain=0.01), 0
    requests, answers = store.table("prediction"), [store.table(f"answers-{i}") for i in range(AGENTS)]
    while True:
        batch = requests.sample(AGENTS, min_n=1, linger=0)  # those that wait, at least one
        if new := store.latest("policy", newer_than=version):
            net.load_state_dict(new.value)
            version = new.version
        with torch.inference_mode():
            logits, _ = net(torch.from_numpy(batch.data["obs"]))  # [requests, lanes, actions]
            actions = torch.distributions.Categorical(logits=logits).sample().numpy()
        for who, action in zip(batch.data["agent"], actions, strict=True):
            answers[who].insert({"action": action})


def trainer(run: Run, store: di_store.Store, tables: list[di_store.Table], net: torch.nn.Module) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    sampling = torch.Generator().manual_seed(run.seed)

    def evaluate(episodes: int, seed: int) -> float:
        def act(obs: np.ndarray) -> torch.Tensor:
            probabilities = net(torch.from_numpy(obs))[0].softmax(1)
            return torch.multinomial(probabilities, 1, generator=sampling).squeeze(1)

        return mean_return(make_env, act, episodes, seed)

    while run.goes_on(tables, evaluate):
        obs, action, reward, terminated, mask = tensors(
            tables[0].sample(BATCH).data, "obs", "action", "reward", "terminated", "mask"
        )
        logits, values = net(obs)
        values = values.squeeze(2)
        # R_t = r_t + gamma R_(t+1), from the value of the observation after the last step: that and the loss are those
        # of A3C (Mnih et al. 2016, algorithm S3), with its bonus for entropy.
        returns = [values[:, -1].detach()]
        for t in reversed(range(T_MAX)):
            longer = REWARD_SCALE * reward[:, t] + GAMMA * ~terminated[:, t] * returns[-1]
            returns.append(torch.where(mask[:, t], longer, values[:, t].detach()))
        advantage = torch.stack(returns[:0:-1], 1) - values[:, :-1]
        probabilities = logits[:, :-1].softmax(2)
        log_prob = (probabilities + EPSILON).log()
        chosen = log_prob.gather(2, action.unsqueeze(2)).squeeze(2)
        entropy = -(probabilities * log_prob).sum(2)
        loss = VALUE_COST * advantage.square() - chosen * advantage.detach() - BETA * entropy
        optimizer.zero_grad()
        loss[mask].mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        store.publish("policy", net.state_dict())


def main() -> int:
    run = Run(__doc__, threshold=400, minutes=5)
    net = mlp(4, 2, 1, last_gain=0.01)
    with di_store.open(memory="64MiB", seed=run.seed) as store:
        request = {"agent": Spec((), "i8"), "obs": Spec((LANES, 4), "f4")}
        prediction = store.create_table("prediction", capacity=64, schema=request, limiter=di_store.Queue(64))
        answer = {"action": Spec((LANES,), "i8")}
        for i in range(AGENTS):
            store.create_table(f"answers-{i}", capacity=2, schema=answer, limiter=di_store.Queue(1))
        training = store.create_table(
            "training",
            capacity=256,
            view=di_store.Sequence(T_MAX, bootstrap=("obs",)),
            limiter=di_store.Queue(BATCH),
        )
        store.publish("policy", net.state_dict())
        with run.processes(agent, AGENTS, run.seed, store), run.processes(predictor, 1, run.seed, store):
            trainer(run, store, [training, prediction], net)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
