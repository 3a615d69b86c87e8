"""Ape-X DQN on CartPole in Ray: actors on several nodes feed one learner's replay table, and get its weights.

Horgan et al. 2018, "Distributed prioritized experience replay". With the address of a Ray cluster as its argument the
program uses that; without one it starts three nodes on this machine. It ends when the mean return is above 195, or
after --seconds, and draws ray_apex.png.

Needs Ray, torch, Gymnasium and matplotlib: pip install di-store ray torch gymnasium matplotlib
"""

import argparse
import copy
import time

import gymnasium
import numpy as np
import ray
import torch
from matplotlib.figure import Figure
from ray.cluster_utils import Cluster

import di_store
from di_store.cluster import ray as cluster

ACTORS, LANES, BATCH = 4, 8, 128
GAMMA, N_STEP = 0.99, 3
ENOUGH = 195.0


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        *(torch.nn.Linear(4, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 2))
    )


@ray.remote(num_cpus=0.1, max_restarts=-1, max_task_retries=-1)
class Actor:
    """Plays in the environments of its own lanes, on whatever node Ray puts it."""

    def run(self, index: int, replay: di_store.Table, returns: di_store.Table) -> None:
        torch.set_num_threads(1)
        rng, net, version = np.random.default_rng(index), network(), 0
        lane = LANES * index + np.arange(LANES)
        epsilon = 0.4 ** (1 + 7 * lane / (ACTORS * LANES - 1))
        envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * LANES)
        obs, _ = envs.reset(seed=int(lane[0]))
        store, total = cluster.store(), np.zeros(LANES)
        with replay.writer(lanes=LANES, autoreset=envs.metadata["autoreset_mode"]) as writer:
            while True:
                if new := store.latest("policy", newer_than=version, group="actors"):
                    if new.value is None:
                        return
                    net.load_state_dict(new.value)
                    version = new.version
                with torch.inference_mode():
                    best = net(torch.from_numpy(obs)).argmax(1).numpy()
                action = np.where(rng.random(LANES) < epsilon, rng.integers(2, size=LANES), best)
                following, reward, terminated, truncated, _ = envs.step(action)
                row = {"obs": obs, "action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
                writer.append(row, next={"obs": following})
                obs, total = following, total + reward
                if (ended := np.flatnonzero(terminated | truncated)).size:
                    if (careful := ended[epsilon[ended] < 0.05]).size:
                        returns.extend({"return": total[careful].astype(np.float32)})
                    total[ended] = 0


def learn(
    store: di_store.Store, replay: di_store.Table, returns: di_store.Table, seconds: float
) -> list[tuple[float, float]]:
    """Train until it is good enough; the mean return by time."""
    net = network()
    target_net = copy.deepcopy(net)
    optimizer, curve = torch.optim.Adam(net.parameters(), lr=1e-3), list[tuple[float, float]]()
    store.publish("policy", net.state_dict(), group="actors")
    replay.sample(BATCH, timeout=600)  # the actors have started: on a busy machine that takes a minute
    began = time.monotonic()
    for update, batch in enumerate(replay.loader(BATCH, timeout=60), 1):
        data = {name: torch.from_numpy(values) for name, values in batch.data.items()}
        with torch.no_grad():
            best = net(data["next_obs"]).argmax(1, keepdim=True)
            value = target_net(data["next_obs"]).gather(1, best).squeeze(1)
            target = data["reward"].float() + data["discount"].float() * value
        error = net(data["obs"]).gather(1, data["action"].unsqueeze(1)).squeeze(1) - target
        loss = torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
        optimizer.zero_grad()
        (torch.from_numpy(batch.weights).float() * loss).mean().backward()
        optimizer.step()
        replay.update_priorities(batch.keys, error.detach().abs() + 1e-3)
        if update % 200 == 0:
            target_net.load_state_dict(net.state_dict())
        if update % 25 == 0:
            store.publish("policy", net.state_dict(), group="actors")
        if update % 250 == 0 and len(returns) >= 20:
            mean = float(returns.peek(returns.keys()[-20:]).data["return"].mean())
            curve.append((time.monotonic() - began, mean))
            print(f"{curve[-1][0]:5.0f} s  {update:6} updates  {len(replay):7,} transitions  mean return {mean:.0f}")
            if mean > ENOUGH or curve[-1][0] > seconds:
                break
    return curve


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address", nargs="?", help="of a Ray cluster")
    parser.add_argument("--seconds", type=float, default=120.0, help="of learning, at most")
    args, here = parser.parse_args(), None
    if args.address:
        ray.init(args.address)
    else:
        node = {"num_cpus": 1, "object_store_memory": 100_000_000}
        here = Cluster(initialize_head=True, head_node_args=node)
        for _ in range(2):
            here.add_node(**node)
        ray.init(here.address, log_to_driver=False)
    print(f"{len(cluster.up(memory='256MiB', timeout=600))} nodes have a store")
    store = cluster.store()
    replay = store.create_table(
        "replay",
        capacity=50_000,
        lanes=ACTORS * LANES,
        view=di_store.Transition(n_step=N_STEP, gamma=GAMMA),
        sampler=di_store.Prioritized(alpha=0.6, beta=0.4),
        limiter=di_store.SamplesPerInsert(16, min_size=1_000, tolerance=0.5),
    )
    returns = store.create_table("returns", capacity=1_000, lanes=8, schema={"return": di_store.Spec((), "float32")})
    actors = [Actor.options(scheduling_strategy="SPREAD").remote() for _ in range(ACTORS)]
    runs = [actor.run.remote(index, replay, returns) for index, actor in enumerate(actors)]
    curve = learn(store, replay, returns, args.seconds)
    chart = Figure(figsize=(6, 3), layout="constrained")
    axes = chart.subplots()
    axes.plot(*zip(*curve, strict=True))
    axes.set(
        xlabel="seconds", ylabel="mean return of 20 episodes", title=f"{ACTORS} actors on {len(ray.nodes())} nodes"
    )
    chart.savefig("ray_apex.png")
    store.publish("policy", None, group="actors")  # the actors end
    replay.configure(limiter=di_store.MinSize(1))  # also those that wait for the learner
    ray.get(runs)
    cluster.down(timeout=600)
    ray.shutdown()
    if here is not None:
        here.shutdown()


if __name__ == "__main__":
    main()
