"""DQN of Stable-Baselines3 on CartPole, with its replay buffer in Di-store.

Needs stable-baselines3: pip install di-store stable-baselines3
"""

import sys

import gymnasium as gym
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from di_store.adapters.sb3 import ReplayBuffer

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0

env = Monitor(gym.make("CartPole-v1"))
model = DQN(
    "MlpPolicy",
    env,
    learning_rate=2.3e-3,
    batch_size=64,
    buffer_size=100_000,
    replay_buffer_class=ReplayBuffer,
    learning_starts=1_000,
    gamma=0.99,
    target_update_interval=10,
    train_freq=256,
    gradient_steps=128,
    exploration_fraction=0.16,
    exploration_final_eps=0.04,
    policy_kwargs=dict(net_arch=[256, 256]),
    seed=seed,
)
model.learn(total_timesteps=steps)
mean, deviation = evaluate_policy(model, Monitor(gym.make("CartPole-v1")), n_eval_episodes=10)
print(f"return {mean:.1f} ± {deviation:.1f}")
