"""SEED on CartPole: actors only step environments; one process has the network, and writes the trajectories.

Espeholt et al. 2020, "SEED RL: Scalable and efficient deep-RL with accelerated central inference" (section 3). An
actor sends what its environments returned, and gets actions. The inference process answers what has come in one batch.
It also completes the trajectories, since it knows observations, logits and actions already. So neither weights nor
recurrent states travel to actors. The learner is that of impala.py, the paper's V-trace agent.

Before it trains, the program measures the round trip of 1,000 requests a second: observations to the inference
process, through the network, actions back.

Needs torch, Gymnasium and matplotlib: pip install 'di-store[demo]'
"""

import sys
import time

import gymnasium as gym
import numpy as np
import torch
from harness import Run, generator, mlp
from impala import UNROLL, learner, make_env

import di_store
from di_store import Spec

ACTORS, LANES, BATCH = 2, 8, 16
REQUESTS_PER_SECOND, TARGET_US = 1_000, 200.0
REQUEST = {
    "actor": Spec((), "i8"),
    "obs": Spec((LANES, 4), "f4"),
    "reward": Spec((LANES,), "f4"),
    "ends": Spec((2, LANES), "?"),  # terminated, truncated
    "first": Spec((), "?"),  # an actor's first request, whose reward and ends mean nothing
}
FIRST = {"reward": np.zeros(LANES, np.float32), "ends": np.zeros((2, LANES), bool), "first": True}


def actor(index: int, seed: int, store: di_store.Store) -> None:
    requests, answers = store.table("requests"), store.table(f"answers-{index}")
    envs = gym.vector.SyncVectorEnv([make_env] * LANES)
    obs, _ = envs.reset(seed=1_000 * seed + LANES * index)
    requests.insert({"actor": index, "obs": obs} | FIRST)
    while True:
        obs, reward, *ends, _ = envs.step(answers.sample(1).data["action"][0])
        requests.insert({"actor": index, "obs": obs, "reward": reward, "ends": np.stack(ends), "first": False})


def policy(weights: dict[str, torch.Tensor], obs: np.ndarray) -> np.ndarray:
    """Logits of the published network, by NumPy: PyTorch's calls take four times as long for so small a network."""
    weight = {name: value.numpy() for name, value in weights.items()}
    features = obs
    for layer in ("body.0", "body.2"):
        features = np.maximum(features @ weight[f"{layer}.weight"].T + weight[f"{layer}.bias"], 0)
    return features @ weight["heads.0.weight"].T + weight["heads.0.bias"]


def inference(_: int, seed: int, store: di_store.Store) -> None:
    rng = generator(seed, 1)
    published = store.latest("policy", timeout=60)
    requests, answers = store.table("requests"), [store.table(f"answers-{i}") for i in range(ACTORS)]
    # What each environment saw and did last: that row is complete when the next request brings the reward.
    last = {"obs": np.zeros((ACTORS, LANES, 4), np.float32), "logits": np.zeros((ACTORS, LANES, 2), np.float32)}
    last["action"] = np.zeros((ACTORS, LANES), np.int64)
    next_step = gym.vector.AutoresetMode.NEXT_STEP
    with store.table("trajectories").writer(lanes=ACTORS * LANES, autoreset=next_step) as writer:
        while True:
            batch = requests.sample(ACTORS, min_n=1, linger=0).data  # those that wait, at least one
            began = time.perf_counter()
            logits = policy(published.value, batch["obs"])
            action = (logits + rng.gumbel(size=logits.shape)).argmax(2)  # a draw from softmax(logits)
            network = time.perf_counter() - began
            for who, each in zip(batch["actor"], action, strict=True):
                answers[who].insert({"action": each, "network_seconds": network})
            # The actors have their actions; everything else can wait until now.
            published = store.latest("policy", newer_than=published.version) or published
            known = ~batch["first"]
            if known.any():
                who = batch["actor"][known]
                row = {name: values[who].reshape(-1, *values.shape[2:]) for name, values in last.items()}
                row |= {"reward": batch["reward"][known].ravel()}
                row |= {flag: batch["ends"][known, i].ravel() for i, flag in enumerate(("terminated", "truncated"))}
                lanes = (LANES * who[:, None] + np.arange(LANES)).ravel()
                writer.append(row, next={"obs": batch["obs"][known].reshape(-1, 4)}, lane=lanes)
            for name, values in (("obs", batch["obs"]), ("logits", logits), ("action", action)):
                last[name][batch["actor"]] = values


def measure(store: di_store.Store, count: int) -> None:
    """Print how long requests take that come at fixed times, from the insert to the actions in hand."""
    requests, answers = store.table("requests"), store.table("answers-0")
    request = {"actor": 0, "obs": np.zeros((LANES, 4), np.float32)} | FIRST
    took = []
    due = time.perf_counter()
    for _ in range(count):
        due += 1 / REQUESTS_PER_SECOND
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left)
        began = time.perf_counter()
        requests.insert(request)
        answer = answers.sample(1).data
        took.append((time.perf_counter() - began, answer["network_seconds"][0]))
    whole, network = np.array(took).T * 1e6
    for what, us in (("whole", whole), ("without the network", whole - network)):
        p50, p90, p99 = np.percentile(us, [50, 90, 99])
        verdict = "below" if p50 < TARGET_US else "not below"
        figures = f"p50 {p50:.0f} us ({verdict} {TARGET_US:.0f}), p90 {p90:.0f}, p99 {p99:.0f}"
        print(f"round trip, {what}: {figures}", flush=True)


def main() -> int:
    run = Run(__doc__, threshold=400, minutes=5)
    net = mlp(4, 2, 1, last_gain=0.01)
    with di_store.open(memory="64MiB", seed=run.seed) as store:
        requests = store.create_table("requests", capacity=64, schema=REQUEST, limiter=di_store.Queue(64))
        answer = {"action": Spec((LANES,), "i8"), "network_seconds": Spec((), "f8")}
        for i in range(ACTORS):
            store.create_table(f"answers-{i}", capacity=2, schema=answer, limiter=di_store.Queue(1))
        trajectories = store.create_table(
            "trajectories",
            capacity=128,
            view=di_store.Sequence(UNROLL, bootstrap=("obs",)),
            limiter=di_store.Queue(BATCH),
        )
        store.publish("policy", net.state_dict())
        with run.processes(inference, 1, run.seed, store):
            measure(store, 300 if run.small else 3_000)
            with run.processes(actor, ACTORS, run.seed, store):
                learner(run, store, [trajectories, requests], net)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
