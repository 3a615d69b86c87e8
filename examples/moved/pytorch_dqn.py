"""DQN on CartPole in plain PyTorch, with its replay memory in Di-store.

Needs torch and gymnasium: pip install di-store torch gymnasium
"""

import random
import sys

import gymnasium as gym
import torch
from torch import nn, optim

import di_store

BATCH_SIZE, GAMMA, TAU, LR = 128, 0.99, 0.005, 3e-4
EPS_START, EPS_END, EPS_STEPS = 0.9, 0.01, 2_500

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12_000
seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random.seed(seed)
torch.manual_seed(seed)


def make_network(n_observations, n_actions):
    hidden = nn.Linear(n_observations, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(128, n_actions)).to(device)


env = gym.make("CartPole-v1")
n_actions, n_observations = env.action_space.n, env.observation_space.shape[0]
policy_net = make_network(n_observations, n_actions)
target_net = make_network(n_observations, n_actions)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=LR, amsgrad=True)
memory = di_store.open(memory="fit").create_table("replay", capacity=10_000, view=di_store.Step())
steps_done = 0


def select_action(state):
    global steps_done
    epsilon = max(EPS_END, EPS_START - (EPS_START - EPS_END) * steps_done / EPS_STEPS)
    steps_done += 1
    if random.random() < epsilon:
        return torch.tensor([[random.randrange(n_actions)]], device=device)
    with torch.no_grad():
        return policy_net(state).max(1).indices.view(1, 1)


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    state_batch, action_batch, next_states, reward_batch, final = memory.sample(BATCH_SIZE).to(device).data.values()
    state_action_values = policy_net(state_batch).gather(1, action_batch)
    with torch.no_grad():
        next_state_values = target_net(next_states).max(1).values * ~final
    expected_state_action_values = next_state_values * GAMMA + reward_batch
    loss = nn.functional.smooth_l1_loss(state_action_values, expected_state_action_values.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


returns = []
while steps_done < steps:
    state, _ = env.reset(seed=None if returns else seed)
    state = torch.tensor(state, device=device).unsqueeze(0)
    terminated = truncated = False
    total = 0
    while not terminated and not truncated:
        action = select_action(state)
        observation, reward, terminated, truncated, _ = env.step(action.item())
        total += reward
        reward = torch.tensor([reward], device=device, dtype=torch.float32)
        next_state = None if terminated else torch.tensor(observation, device=device).unsqueeze(0)
        memory.insert(dict(state=state[0], action=action[0], next=observation, reward=reward[0], final=terminated))
        state = next_state
        optimize_model()
        with torch.no_grad():
            for target, source in zip(target_net.parameters(), policy_net.parameters()):
                target.lerp_(source, TAU)
    returns.append(total)
last = returns[-20:]
print(f"{steps_done} steps; mean return of the last {len(last)} episodes: {sum(last) / len(last):.1f}")
