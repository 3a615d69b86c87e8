"""Sample Factory on CartPole: trajectory slots in shared memory, messages that only name them, two groups a worker.

Petrenko et al. 2020, "Sample Factory: Egocentric 3D control from pixels at 100000 FPS with asynchronous reinforcement
learning" (section 3). All trajectories lie in slots that are made once. Rollout workers write observations and rewards
there, the policy worker writes actions, the learner reads whole slots; queues carry slot numbers and nothing else. A
rollout worker has two groups of environments: while one waits for its actions, it steps the other ("double-buffered
sampling"). The learner is APPO: V-trace targets (see impala.py) and PPO's clipped ratio.

A slot is some rows of a table whose columns are late: `update` rewrites them in place, `peek` reads them by key.

Needs torch, Gymnasium and matplotlib: pip install 'di-store[demo]'
"""

import sys

import gymnasium as gym
import numpy as np
import torch
from harness import Run, generator, mean_return, mlp, tensors
from impala import GAMMA, RHO_BAR, make_env, vtrace
from torch.distributions import Categorical

import di_store
from di_store import Spec

WORKERS, GROUPS, LANES = 2, 2, 4  # rollout workers, groups of environments in each, environments in a group
SLOTS, ROLLOUT, BATCH = 24, 20, 4  # a slot holds the trajectory of a group; the learner takes some slots at once
VALUE_COST, ENTROPY_COST, REWARD_SCALE, CLIP = 0.5, 0.001, 0.05, 1.1
STEP = {
    "row": Spec((), "i8"),
    "obs": Spec((LANES, 4), "f4", late=True),
    "action": Spec((LANES,), "i8", late=True),
    "logits": Spec((LANES, 2), "f4", late=True),
    "reward": Spec((LANES,), "f4", late=True),
    "ended": Spec((LANES,), "?", late=True),
}


def rollout_worker(index: int, seed: int, store: di_store.Store, keys: np.ndarray) -> None:
    slots, free, ready = store.table("slots"), store.table("free"), store.table("ready")
    requests, answers = store.table("requests"), store.table(f"answers-{index}")
    # At a time limit an environment begins anew at once, as after a failure: such a step counts as an end.
    same_step = gym.vector.AutoresetMode.SAME_STEP
    groups = [gym.vector.SyncVectorEnv([make_env] * LANES, autoreset_mode=same_step) for _ in range(GROUPS)]
    slot, t = [0] * GROUPS, [0] * GROUPS

    def ask(group: int, obs: np.ndarray) -> None:
        """Write the observation into the group's row, and have the policy worker look at it."""
        slots.update(keys[slot[group], t[group]][None], {"obs": obs[None]})
        requests.insert({"worker": index, "group": group, "slot": slot[group], "t": t[group]})

    for group, envs in enumerate(groups):
        slot[group] = free.sample(1).data["slot"][0]
        ask(group, envs.reset(seed=1_000 * seed + LANES * (GROUPS * index + group))[0])
    while True:
        group = answers.sample(1).data["group"][0]  # whichever group has its actions
        here = keys[slot[group], t[group]][None]
        action = slots.peek(here, columns="action").data["action"][0]
        obs, reward, terminated, truncated, _ = groups[group].step(action)
        slots.update(here, {"reward": reward[None].astype(np.float32), "ended": (terminated | truncated)[None]})
        t[group] += 1
        if t[group] == ROLLOUT:
            slots.update(keys[slot[group], ROLLOUT][None], {"obs": obs[None]})  # to bootstrap from
            ready.insert({"slot": slot[group]})
            slot[group], t[group] = free.sample(1).data["slot"][0], 0
        ask(group, obs)


def policy_worker(_: int, seed: int, store: di_store.Store, keys: np.ndarray) -> None:
    rng = generator(seed, 1)
    net, version = mlp(4, 2, 1, last_gain=0.01), 0
    slots, requests = store.table("slots"), store.table("requests")
    answers = [store.table(f"answers-{i}") for i in range(WORKERS)]
    while True:
        batch = requests.sample(WORKERS * GROUPS, min_n=1, linger=0).data
        if new := store.latest("policy", newer_than=version):
            net.load_state_dict(new.value)
            version = new.version
        here = keys[batch["slot"], batch["t"]]
        with torch.inference_mode():
            logits = net(torch.from_numpy(slots.peek(here, columns="obs").data["obs"]))[0].numpy()
        action = (logits + rng.gumbel(size=logits.shape)).argmax(2)  # a draw from softmax(logits)
        slots.update(here, {"action": action, "logits": logits})
        for worker, group in zip(batch["worker"], batch["group"], strict=True):
            answers[worker].insert({"group": group})


def learner(run: Run, store: di_store.Store, keys: np.ndarray, net: torch.nn.Module) -> None:
    slots, free, ready, requests = (store.table(name) for name in ("slots", "free", "ready", "requests"))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    sampling = torch.Generator().manual_seed(run.seed)

    def evaluate(episodes: int, seed: int) -> float:
        def act(obs: np.ndarray) -> torch.Tensor:
            probabilities = net(torch.from_numpy(obs))[0].softmax(1)
            return torch.multinomial(probabilities, 1, generator=sampling).squeeze(1)

        return mean_return(make_env, act, episodes, seed)

    while run.goes_on([ready, requests], evaluate):
        mine = ready.sample(BATCH).data["slot"]
        rows = tensors(slots.peek(keys[mine].ravel()).data, "obs", "action", "logits", "reward", "ended")
        free.extend({"slot": mine})  # the rows were copied: these slots may be filled again
        # From rows of groups to [trajectory, time, …].
        obs, action, behaviour, reward, ended = (
            each.unflatten(0, (BATCH, ROLLOUT + 1)).transpose(1, 2).flatten(0, 1) for each in rows
        )
        action, behaviour, reward, ended = (each[:, :-1] for each in (action, behaviour, reward, ended))
        logits, values = net(obs)
        policy, values = Categorical(logits=logits[:, :-1]), values.squeeze(2)
        ratio = (policy.log_prob(action) - Categorical(logits=behaviour).log_prob(action)).exp()
        with torch.no_grad():
            discount = GAMMA * (~ended).float()
            whole = torch.ones_like(ended)
            targets, advantage = vtrace(ratio, REWARD_SCALE * reward, discount, values, whole)
            advantage = advantage / ratio.clamp(max=RHO_BAR)  # the ratio is in PPO's objective already
        clipped = ratio.clamp(1 / CLIP, CLIP)
        policy_loss = -torch.min(ratio * advantage, clipped * advantage)
        value_loss = (targets - values[:, :-1]).square()
        loss = policy_loss + VALUE_COST * value_loss - ENTROPY_COST * policy.entropy()
        optimizer.zero_grad()
        loss.mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        store.publish("policy", net.state_dict())


def main() -> int:
    run = Run(__doc__, threshold=400, minutes=5)
    net = mlp(4, 2, 1, last_gain=0.01)
    with di_store.open(memory="64MiB", seed=run.seed) as store:
        rows = SLOTS * (ROLLOUT + 1)
        slots = store.create_table("slots", capacity=rows, schema=STEP)
        empty = {name: np.zeros((rows, *spec.shape), spec.dtype) for name, spec in STEP.items()}
        keys = slots.extend(empty | {"row": np.arange(rows)}).reshape(SLOTS, ROLLOUT + 1)
        number, queue = Spec((), "i8"), di_store.Queue(SLOTS)
        for name in ("free", "ready"):
            store.create_table(name, capacity=SLOTS, schema={"slot": number}, limiter=queue)
        request = dict.fromkeys(("worker", "group", "slot", "t"), number)
        store.create_table("requests", capacity=SLOTS, schema=request, limiter=queue)
        for i in range(WORKERS):
            store.create_table(f"answers-{i}", capacity=SLOTS, schema={"group": number}, limiter=queue)
        store.table("free").extend({"slot": np.arange(SLOTS)})
        store.publish("policy", net.state_dict())
        workers = run.processes(rollout_worker, WORKERS, run.seed, store, keys)
        with run.processes(policy_worker, 1, run.seed, store, keys), workers:
            learner(run, store, keys, net)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
