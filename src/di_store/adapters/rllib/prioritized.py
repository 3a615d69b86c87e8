"""RLlib's `PrioritizedEpisodeReplayBuffer` with its steps in a table."""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import force_list
from ray.rllib.utils.replay_buffers import prioritized_episode_buffer as rllib

from di_store.adapters.rllib.buffer import EpisodeReplayBuffer
from di_store.adapters.rllib.drawn import drawn_values
from di_store.adapters.rllib.rows import Chunk
from di_store.adapters.rllib.steps import EpisodeSteps
from di_store.adapters.rllib.stored import StoredEpisode
from di_store.adapters.rllib.trees import assign, find
from di_store.adapters.rllib.windows import Window
from di_store.adapters.stores import StoreLike

_LEAST_PRIORITY, _INFINITE = 1e-12, float("inf")


class PrioritizedEpisodeReplayBuffer(EpisodeReplayBuffer, rllib.PrioritizedEpisodeReplayBuffer):  # type: ignore[misc]
    """A replacement for RLlib's `PrioritizedEpisodeReplayBuffer`, with its arguments (Schaul et al. 2016).

    Args:
        capacity: number of steps.
        batch_size_B: steps of a batch.
        batch_length_T: no effect, as in RLlib.
        alpha: exponent of priorities.
        metrics_num_episodes_for_smoothing: number of samples over which metrics are averaged.

    Raises:
        ValueError: no capacity, or a negative alpha.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 1,
        alpha: float = 1.0,
        metrics_num_episodes_for_smoothing: int = 100,
        store: StoreLike = None,
        table: str = "steps",
        **kwargs: Any,
    ) -> None:
        if not alpha >= 0:
            raise ValueError(f"alpha={alpha}: give an exponent of priorities >= 0; 0 makes all probabilities equal")
        super().__init__(
            capacity,
            batch_size_B=batch_size_B,
            batch_length_T=batch_length_T,
            metrics_num_episodes_for_smoothing=metrics_num_episodes_for_smoothing,
            store=store,
            table=table,
            alpha=alpha,
        )

    _max_idx: int
    _max_priority: Any

    def _open(self, first: int) -> None:
        super()._open(first)
        nodes = self._sum_segment.capacity
        self._number_at, self._step_at = (array("q", bytes(8 * nodes)) for _ in range(2))  # by node of the trees

    def _new_steps(self) -> EpisodeSteps:
        return EpisodeSteps(nodes=True)

    # -- writing ------------------------------------------------------------------------------------------------

    def add(self, episodes: SingleAgentEpisode | list[SingleAgentEpisode], weight: float | None = None) -> None:
        """Add episodes, and continue episodes that already have chunks in the buffer.

        Args:
            episodes: episodes and chunks. A chunk is left out if its episode is evicted to make room for the others.
            weight: the priority of their steps; None: the highest so far.

        Raises:
            TypeError, ValueError, di_store.CapacityError: as in `EpisodeReplayBuffer.add`.
        """
        weight = self._max_priority if weight is None else weight
        chunks = self._archive.write(force_list(episodes))
        values: dict[int, Any] = {}  # new leaves of the trees; None: no step any more
        steps = new = 0
        gone, left = self._make_room([chunk.episode for chunk in chunks])
        evicted_steps = self._forget(gone, values)
        self._archive.drop([chunk for chunk in chunks if chunk.episode.id_ in left])
        chunks = [chunk for chunk in chunks if chunk.episode.id_ not in left]
        try:
            self._check_nodes(sum(len(chunk.episode) for chunk in chunks))
            while chunks:
                new += self._join(chunks[0], weight**self._alpha, values)
                steps += len(chunks.pop(0).episode)
        finally:
            self._archive.drop(chunks)
            self._assign(values)
        self._log_added(new, steps, len(gone), evicted_steps)

    def _assign(self, values: dict[int, Any]) -> None:
        """Set leaves of the trees; None: the step was evicted."""
        assign(self._sum_segment, {node: 0.0 if value is None else value for node, value in values.items()})
        assign(self._min_segment, {node: _INFINITE if value is None else value for node, value in values.items()})

    def _check_nodes(self, count: int) -> None:
        if count <= len(self._free_nodes):
            return
        self._num_timesteps -= count
        self._num_timesteps_added -= count
        raise ValueError(
            f"{count:,} new steps do not fit into the sum tree of a buffer of {self.capacity:,}: raise "
            'replay_buffer_config={"capacity": …} above the longest episode'
        )

    def _make_room(self, episodes: Sequence[SingleAgentEpisode]) -> tuple[list[StoredEpisode], set[str]]:
        """Evict the oldest episodes until the new steps fit, or one episode is left. Returns them and their ids."""
        for episode in episodes:
            self._num_timesteps += len(episode)
            self._num_timesteps_added += len(episode)
        gone: list[StoredEpisode] = []
        left: set[str] = set()
        lengths: dict[str, int] = {}
        for episode in episodes:
            lengths.setdefault(episode.id_, len(episode))
        while self._num_timesteps > self.capacity and self.episodes:
            coming = sum(id_ not in self.episode_id_to_index and id_ not in left for id_ in lengths)
            if len(self.episodes) + coming == 1:
                break
            stored = self._archive.evict()
            gone.append(stored)
            left.add(stored.id_)
            if (count := lengths.get(stored.id_)) is not None:
                self._num_timesteps -= count
                self._num_timesteps_added -= count
            self._num_timesteps -= len(stored)
            self._num_episodes_evicted += 1
        return gone, left

    def _forget(self, gone: list[StoredEpisode], values: dict[int, Any]) -> int:
        """Free the nodes of evicted episodes. Returns the number of their steps."""
        count = sum(map(len, gone))
        for node in self._indices.remove([stored.number for stored in gone], count).tolist():
            self._free_nodes.appendleft(node)
            self._max_idx -= 1 if self._max_idx == node else 0
            values[node] = None
        return count

    def _join(self, chunk: Chunk, value: Any, values: dict[int, Any]) -> bool:
        """Add a chunk. Returns whether it begins an episode."""
        stored, before, new = self._archive.add(chunk)
        count = len(chunk.episode)
        nodes = [self._free_nodes.popleft() for _ in range(count)]
        if count:
            self._max_idx = max(self._max_idx, max(nodes))
        for step, node in enumerate(nodes, before):
            self._number_at[node], self._step_at[node] = stored.number, step
            values[node] = value
        self._indices.extend(stored.number, before, count, nodes)
        return new

    def update_priorities(self, priorities: Any, module_id: str | None = None) -> None:
        """Set the priorities of the steps of the last `sample`.

        Args:
            priorities: one number for each step, such as TD errors.
            module_id: has no effect.

        Raises:
            ValueError: the last `sample` returned another number of steps, or a priority is not finite.
        """
        nodes = self._last_sampled_indices
        if len(priorities) != len(nodes):
            raise ValueError(f"{len(priorities)} priorities were given, and the last sample() gave {len(nodes)} steps")
        if not np.isfinite(priorities).all():
            raise ValueError("priorities must be finite: the loss has become NaN or infinite")
        values = {}
        for node, priority in zip(nodes, priorities, strict=True):
            priority = max(priority, _LEAST_PRIORITY)
            values[node] = priority**self._alpha
            self._max_priority = max(self._max_priority, priority)
        assign(self._sum_segment, values)
        assign(self._min_segment, values)
        nodes.clear()

    # -- reading ------------------------------------------------------------------------------------------------

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        beta: float | None = 0.0,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        to_numpy: bool = False,
        **kwargs: Any,
    ) -> list[SingleAgentEpisode]:
        """Episodes of one step, drawn by priority as in RLlib. `weights` are in their `extra_model_outputs`.

        Raises:
            ValueError: the buffer is empty, or beta is negative.
        """
        beta = 0.0 if beta is None else beta  # DQN passes None if replay_buffer_config has none
        if not beta >= 0:
            raise ValueError(f"beta={beta}: give an exponent of the importance weights >= 0")
        size = self._size(num_items, batch_size_B)
        self._last_sampled_indices = []
        chosen, weights, resamples = self._choose(size, n_step or 1, beta)
        values = drawn_values(chosen, gamma, [each.step for each in chosen] if include_extra_model_outputs else None)
        found, maker = [], self._maker
        for each, weight, (obs, action, reward, outputs) in zip(chosen, weights, values, strict=True):
            model = {"weights": maker.buffer([weight]), "n_step": maker.buffer([each.count])}
            model |= {name: maker.buffer([item]) for name, item in outputs.items()}
            stored = each.stored
            infos = [stored.info(each.step), stored.info(each.stop)] if include_infos else [{}, {}]
            episode = maker.transition(each, uuid.uuid4().hex, (obs, action, reward, infos), model)
            found.append(episode.to_numpy() if to_numpy else episode)
        self.sampled_timesteps += size
        n_steps = sum(each.count for each in chosen) / size
        self._log_sampled(size, [(each.stored, each.step) for each in chosen], n_steps, resamples)
        return found

    def _choose(self, size: int, n_step: int | tuple[int, int], beta: float) -> tuple[list[Window], list[Any], int]:
        """Transitions, their weights, and how many draws were too close to an episode's end."""
        tree, total = self._sum_segment, self._sum_segment.sum()
        count = len(self._indices)
        most = ((self._min_segment.min() / total) * count) ** (-beta)
        chosen: list[Window] = []
        weights: list[Any] = []
        draws = 0
        while len(chosen) < size:
            wanted = size - len(chosen)
            draws += wanted
            self._check_draws(draws, size, f"{n_step=}")
            if isinstance(n_step, tuple):
                drawn = [(self.rng.random(), int(self.rng.integers(*n_step))) for _ in range(wanted)]
                sums, steps = [each for each, _ in drawn], [each for _, each in drawn]
            else:
                sums, steps = self.rng.random(wanted).tolist(), [n_step] * wanted
            for node, n in zip(find(tree, [each * total for each in sums]), steps, strict=True):
                stored, step = self.episodes.stored[self._number_at[node]], self._step_at[node]
                if step + n > len(stored):
                    continue
                chosen.append(Window(stored, step, n))
                weights.append(((tree[node] / total) * count) ** (-beta) / most * 1)
                self._last_sampled_indices.append(node)
        return chosen, weights, draws - size

    # -- checkpoints and pickling -------------------------------------------------------------------------------

    @property
    def _tree_idx_to_sample_idx(self) -> dict[int, int]:
        """By node: the position among the steps."""
        return {node: position for position, (_, _, node) in enumerate(self._indices)}

    @_tree_idx_to_sample_idx.setter
    def _tree_idx_to_sample_idx(self, given: dict[int, int]) -> None:
        """RLlib's own code calls this; the value follows from the steps."""

    def _fill(self, episodes: list[SingleAgentEpisode], numbers: dict[str, int], steps: Sequence[Any]) -> None:
        super()._fill(episodes, numbers, steps)
        for number, step, node in self._indices:
            self._number_at[node], self._step_at[node] = number, step

    def set_state(self, state: dict[str, Any]) -> None:
        """Replace the buffer's contents with a state that `get_state` returned.

        Raises:
            ValueError: the state is of a buffer with another capacity.
        """
        if len(state["_sum_segment"]) != len(self._sum_segment.value):
            raise ValueError(
                f"the state was saved by a buffer of another capacity than {self.capacity:,}, so its sum "
                "tree does not fit: make the buffer with that capacity"
            )
        super().set_state(state)

    def __getstate__(self) -> dict[str, Any]:
        """As `EpisodeReplayBuffer`."""
        state = super().__getstate__()
        if self._given is not None:
            return state
        return {name: value for name, value in state.items() if name not in ("_number_at", "_step_at")}

    def _forget_steps(self, gone: list[StoredEpisode]) -> None:
        values: dict[int, Any] = {}
        self._forget(gone, values)
        self._assign(values)
