"""DQN on CartPole in plain PyTorch, with a deque of named tuples, before it was moved to Di-store.

Needs torch and gymnasium: pip install torch gymnasium
"""

import random
import sys
from collections import deque, namedtuple

import gymnasium as gym
import torch
from torch import nn, optim

BATCH_SIZE, GAMMA, TAU, LR = 128, 0.99, 0.005, 3e-4
EPS_START, EPS_END, EPS_STEPS = 0.9, 0.01, 2_500

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12_000
seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random.seed(seed)
torch.manual_seed(seed)

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


def make_network(n_observations, n_actions):
    hidden = nn.Linear(n_observations, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(128, n_actions)).to(device)


env = gym.make("CartPole-v1")
n_actions, n_observations = env.action_space.n, env.observation_space.shape[0]
policy_net = make_network(n_observations, n_actions)
target_net = make_network(n_observations, n_actions)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=LR, amsgrad=True)
memory = ReplayMemory(10_000)
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
    transitions = memory.sample(BATCH_SIZE)
    batch = Transition(*zip(*transitions))
    non_final_mask = torch.tensor([s is not None for s in batch.next_state], device=device)
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    state_batch = torch.cat(batch.state)
    action_batch = torch.cat(batch.action)
    reward_batch = torch.cat(batch.reward)
    state_action_values = policy_net(state_batch).gather(1, action_batch)
    next_state_values = torch.zeros(BATCH_SIZE, device=device)
    with torch.no_grad():
        next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values
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
        memory.push(state, action, next_state, reward)
        state = next_state
        optimize_model()
        with torch.no_grad():
            for target, source in zip(target_net.parameters(), policy_net.parameters()):
                target.lerp_(source, TAU)
    returns.append(total)
last = returns[-20:]
print(f"{steps_done} steps; mean return of the last {len(last)} episodes: {sum(last) / len(last):.1f}")
