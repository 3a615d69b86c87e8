"""Three agents have to cover three landmarks without touching each other: simple_spread_v3 of MPE, many fields at once.

Physics, observations and rewards are those of PettingZoo's environment (Lowe et al. 2017, "Multi-agent actor-critic for
mixed cooperative-competitive environments"), except that the observations leave out the messages, which are always zero
there, and that the reward is the team's: the mean of the agents'. It is written in NumPy, so that one process steps
many fields in one call, and the recipes need no more packages. All episodes are truncated after MAX_STEPS, none
terminates.
"""

import numpy as np

AGENTS, MAX_STEPS = 3, 25
OBS, STATE = 4 + 4 * AGENTS - 2, 6 * AGENTS  # numbers of an agent's observation, of all positions and velocities
MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], float)  # the discrete actions
STEP_SECONDS, DAMPING, FORCE = 0.1, 0.25, 5.0
DIAMETER, CONTACT_FORCE, CONTACT_MARGIN = 0.3, 100.0, 1e-3  # of agents


class Spread:
    """`lanes` fields, each with its agents and landmarks at random places of the square from -1 to 1."""

    def __init__(self, lanes: int, rng: np.random.Generator) -> None:
        self.lanes, self.rng, self.steps = lanes, rng, 0
        self.reset()

    def reset(self) -> None:
        self.steps = 0
        self.agent, self.landmark = self.rng.uniform(-1, 1, (2, self.lanes, AGENTS, 2))
        self.speed = np.zeros((self.lanes, AGENTS, 2))

    def observe(self) -> dict[str, np.ndarray]:
        """`obs` [lanes, agents, OBS] is what each agent sees, `state` [lanes, STATE] is all that there is."""
        landmarks = self.landmark[:, None] - self.agent[:, :, None]  # [lanes, agents, landmarks, 2]
        others = self.agent[:, None] - self.agent[:, :, None]
        others = others[:, ~np.eye(AGENTS, dtype=bool)].reshape(self.lanes, AGENTS, AGENTS - 1, 2)
        seen = [
            self.speed,
            self.agent,
            landmarks.reshape(self.lanes, AGENTS, -1),
            others.reshape(self.lanes, AGENTS, -1),
        ]
        state = np.concatenate([self.agent, self.speed, self.landmark], 1).reshape(self.lanes, -1)
        return {"obs": np.concatenate(seen, 2, dtype=np.float32), "state": np.float32(state)}

    def step(self, push: np.ndarray) -> tuple[np.ndarray, bool]:
        """Move by `push` [lanes, agents, 2], from -1 to 1. Returns the team's rewards and whether time is up."""
        apart, distance = self._apart()
        depth = np.logaddexp(0, (DIAMETER - distance) / CONTACT_MARGIN) * CONTACT_MARGIN
        contact = (CONTACT_FORCE * depth / distance)[..., None] * apart
        self.agent = self.agent + STEP_SECONDS * self.speed
        self.speed = (1 - DAMPING) * self.speed + STEP_SECONDS * (FORCE * push + contact.sum(2))
        self.steps += 1
        return self._reward(), self.steps == MAX_STEPS

    def _apart(self) -> tuple[np.ndarray, np.ndarray]:
        """From each agent to each [lanes, agents, agents, 2], and how far; an agent is infinitely far from itself."""
        apart = self.agent[:, :, None] - self.agent[:, None]
        return apart, np.where(np.eye(AGENTS, dtype=bool), np.inf, np.linalg.norm(apart, axis=3))

    def _reward(self) -> np.ndarray:
        to_landmarks = np.linalg.norm(self.landmark[:, None] - self.agent[:, :, None], axis=3)
        touching = (self._apart()[1] < DIAMETER).sum((1, 2)) / AGENTS
        return 0.5 * -to_landmarks.min(1).sum(1) - 0.5 * touching
