"""Gymnasium vector environments in both autoreset modes; the store drops or splits rows as the mode requires.

Needs gymnasium: pip install di-store gymnasium
"""

import gymnasium as gym
from gymnasium.vector import AutoresetMode

import di_store

LANES = 8


def fill(replay: di_store.Table, mode: AutoresetMode) -> None:
    envs = gym.make_vec("CartPole-v1", LANES, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    obs, _ = envs.reset(seed=0)
    envs.action_space.seed(0)
    with replay.writer(lanes=LANES, autoreset=envs.metadata["autoreset_mode"]) as writer:
        for _ in range(200):
            action = envs.action_space.sample()
            next_obs, reward, terminated, truncated, infos = envs.step(action)
            step = {"obs": obs, "action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
            writer.append(step, next={"obs": next_obs}, final=infos.get("final_obs"))
            obs = next_obs
    envs.close()


if __name__ == "__main__":
    with di_store.open(memory="256MiB") as store:
        for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
            replay = store.create_table(mode.name.lower(), capacity=10_000, view=di_store.Transition(n_step=3))
            fill(replay, mode)
            batch = replay.sample(256)
            ended = int((batch.data["discount"] == 0).sum())
            print(f"{replay.name}: {len(replay):,} transitions; {ended} of 256 sampled reach the end of an episode")
