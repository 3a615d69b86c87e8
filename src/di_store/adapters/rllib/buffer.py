"""RLlib's `EpisodeReplayBuffer` with its steps in a table."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import force_list
from ray.rllib.utils.replay_buffers import episode_replay_buffer as rllib

from di_store.adapters.rllib.archive import Archive
from di_store.adapters.rllib.batch import BatchRows
from di_store.adapters.rllib.drawn import Maker, drawn_values, windows
from di_store.adapters.rllib.rows import EpisodeTable
from di_store.adapters.rllib.steps import EpisodeSteps
from di_store.adapters.rllib.stored import Episodes, StoredEpisode
from di_store.adapters.rllib.windows import Window
from di_store.adapters.stores import MadeAtFirst, StoreLike, given_store

_MOST_DRAWS = 10_000
"""If so many draws for each wanted step find no episode that is long enough, the call raises."""
_STATE = ("_archive", "episodes", "_indices", "episode_id_to_index", "_maker")


class Named(ABCMeta):
    """A class that also acts as its own name: RLlib 2.60 compares ``replay_buffer_config["type"]`` with names only.

    DQN checks ``"EpisodeReplayBuffer" in type``, and SAC ``type in ["EpisodeReplayBuffer", …]``.
    """

    def __contains__(cls, text: str) -> bool:
        return text in cls.__name__

    def __eq__(cls, other: object) -> bool:
        return cls is other or (isinstance(other, str) and other == cls.__name__)

    def __hash__(cls) -> int:
        return super().__hash__()


class EpisodeReplayBuffer(MadeAtFirst, rllib.EpisodeReplayBuffer, metaclass=Named):  # type: ignore[misc]
    """A replacement for RLlib's `EpisodeReplayBuffer`, with its arguments.

    It has a store of its own, which takes memory as it fills. `episodes` reads copies from the store.

    Args:
        capacity: number of steps. If there are more, the oldest episodes leave, except for the last one.
        batch_size_B: rows of a batch.
        batch_length_T: steps of a row.
        metrics_num_episodes_for_smoothing: number of samples over which metrics are averaged.
        store: the store of the steps, see `adapters.stores.StoreLike`; None: stores of its own.
        table: name of the table there.

    Raises:
        ValueError: no capacity.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 64,
        metrics_num_episodes_for_smoothing: int = 100,
        store: StoreLike = None,
        table: str = "steps",
        **kwargs: Any,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: a buffer holds at least one step")
        super().__init__(
            capacity,
            batch_size_B=batch_size_B,
            batch_length_T=batch_length_T,
            metrics_num_episodes_for_smoothing=metrics_num_episodes_for_smoothing,
            **kwargs,
        )
        self._maker = Maker()
        self._given, self._name = given_store(store), table
        self._open(0)

    def _made(self) -> EpisodeTable | None:
        """The steps of the first form that episodes had."""
        return self._archive.places[0] if self._archive.places else None

    def _open(self, first: int) -> None:
        """Begin without episodes; the next one gets the number `first`."""
        before: Archive | None = getattr(self, "_archive", None)
        if before is not None:
            before.close()
        self._archive: Archive = Archive(self.capacity, first, self._given, self._name)
        self.episodes: Episodes = self._archive.episodes
        self.episode_id_to_index: dict[str, int] = self._archive.numbers
        self._indices: EpisodeSteps = self._new_steps()

    def _new_steps(self) -> EpisodeSteps:
        return EpisodeSteps()

    # -- writing ------------------------------------------------------------------------------------------------

    def add(self, episodes: SingleAgentEpisode | list[SingleAgentEpisode]) -> None:
        """Add episodes, and continue episodes that already have chunks in the buffer.

        Raises:
            TypeError: a table has no columns for observations, actions, rewards or model outputs.
            ValueError: a chunk does not continue the episode with its id_. di_store.CapacityError.
        """
        steps = new = evicted = evicted_steps = 0
        chunks = self._archive.write(force_list(episodes))
        while chunks:
            try:
                stored, before, begins = self._archive.add(chunks[0])
            except Exception:  # whatever refuses a chunk: those after it would not continue it
                self._archive.drop(chunks)
                raise
            count = len(chunks.pop(0).episode)
            self._num_timesteps += count
            self._num_timesteps_added += count
            steps += count
            new += begins
            self._indices.extend(stored.number, before, count)
            while self._num_timesteps > self.capacity and len(self.episodes) > 1:
                gone = self._archive.evict()
                self._indices.remove([gone.number], len(gone))
                self._num_timesteps -= len(gone)
                self._num_episodes_evicted += 1
                evicted += 1
                evicted_steps += len(gone)
        self._log_added(new, steps, evicted, evicted_steps)

    def _log_added(self, episodes: int, steps: int, evicted: int, evicted_steps: int) -> None:
        agent, module = DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
        self._update_add_metrics(
            num_episodes_added=episodes,
            num_env_steps_added=steps,
            num_episodes_evicted=evicted,
            num_env_steps_evicted=evicted_steps,
            agent_to_num_episodes_added={agent: episodes},
            agent_to_num_steps_added={agent: steps},
            agent_to_num_episodes_evicted={agent: evicted},
            agent_to_num_steps_evicted={agent: evicted_steps},
            module_to_num_episodes_added={module: episodes},
            module_to_num_steps_added={module: steps},
            module_to_num_episodes_evicted={module: evicted},
            module_to_num_steps_evicted={module: evicted_steps},
        )

    # -- reading ------------------------------------------------------------------------------------------------

    def _sample_batch(
        self, num_items: int | None = None, *, batch_size_B: int | None = None, batch_length_T: int | None = None
    ) -> dict[str, Any]:
        """Rows of consecutive steps, as RLlib's: ``[batch_size_B, batch_length_T, …]``.

        Raises:
            ValueError: the buffer is empty. TypeError: observations or actions are nested.
        """
        size, length = self._size(num_items, batch_size_B), batch_length_T or self.batch_length_T
        rows = BatchRows(size, length)
        while not rows.full:
            stored, step = self._drawn_one()
            rows.add(stored, step)
        self.sampled_timesteps += size * length
        self._log_sampled(size * length, rows.steps, None)
        return rows.read()

    def _sample_episodes(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        to_numpy: bool = False,
        lookback: int = 1,
        min_batch_length_T: int = 0,
        **kwargs: Any,
    ) -> list[SingleAgentEpisode]:
        """Episodes of one step or, with `batch_length_T`, of several, as RLlib's.

        Raises:
            ValueError: the buffer is empty; or n_step is missing, or not 1 with batch_length_T.
        """
        size = self._size(num_items, batch_size_B)
        self._last_sampled_indices: list[int] = []
        if n_step is None:
            raise ValueError("sample() of episodes needs n_step=")
        if batch_length_T:
            if n_step != 1:
                raise ValueError(f"n_step={n_step}: it must be 1 if batch_length_T= is given")
            chosen = self._choose_windows(size, batch_length_T, min_batch_length_T)
            found, n_steps = windows(self._maker, chosen, lookback), len(chosen)
        else:
            chosen = self._choose_transitions(size, n_step, min_batch_length_T)
            found = self._transitions(chosen, gamma, include_extra_model_outputs, lookback)
            n_steps = sum(each.count for each in chosen)
        self.sampled_timesteps += size
        self._log_sampled(size, [(each.stored, each.step) for each in chosen], n_steps / size)
        return found

    def _size(self, num_items: int | None, batch_size: int | None) -> int:
        if num_items is not None and batch_size is not None:
            raise ValueError("sample() takes num_items= or batch_size_B=, not both: they mean the same")
        if not len(self._indices):
            raise ValueError("the replay buffer is empty: add() episodes before sample()")
        return num_items or batch_size or self.batch_size_B

    def _drawn(self, count: int) -> list[tuple[StoredEpisode, int]]:
        """Steps, all equally likely: the same steps as `count` draws of RLlib's."""
        positions = self.rng.integers(len(self._indices), size=count)
        stored = self.episodes.stored
        return [(stored[number], step) for number, step in self._indices.at(positions)]

    def _drawn_one(self) -> tuple[StoredEpisode, int]:
        number, step = self._indices.one(int(self.rng.integers(len(self._indices))))
        return self.episodes.stored[number], step

    @staticmethod
    def _check_draws(draws: int, size: int, what: str) -> None:
        if draws > _MOST_DRAWS * size:
            raise ValueError(
                f"the episodes in the buffer are too short for {what}: lower it, or add() longer ones first"
            )

    def _choose_transitions(self, size: int, n_step: int | tuple[int, int], least: int) -> list[Window]:
        """The result may have more than `size` steps, because it counts steps near an episode's end as RLlib does."""
        chosen: list[Window] = []
        count = draws = 0
        while count < size:
            if isinstance(n_step, tuple):
                drawn = [(self._drawn_one(), int(self.rng.integers(*n_step))) for _ in range(size - count)]
            else:
                drawn = [(each, n_step) for each in self._drawn(size - count)]
            draws += len(drawn)
            self._check_draws(draws, size, f"{n_step=}, min_batch_length_T={least}")
            for (stored, step), n in drawn:
                length = len(stored)
                if least > 0 and step + least >= length:
                    continue
                chosen.append(Window(stored, step, n))
                count += (min(length, step + n - 1) - step - n + 2) or 1
        return chosen

    def _choose_windows(self, size: int, length: int, least: int) -> list[Window]:
        chosen: list[Window] = []
        count = draws = 0
        while count < size:
            stored, step = self._drawn_one()
            draws += 1
            self._check_draws(draws, size, f"min_batch_length_T={least}")
            if least > 0 and step + least >= len(stored):
                continue
            chosen.append(Window(stored, step, length))
            count += chosen[-1].stop - step + 1
        return chosen

    def _transitions(
        self, chosen: Sequence[Window], gamma: float, extras: bool, lookback: int
    ) -> list[SingleAgentEpisode]:
        # RLlib takes the model outputs of an episode's first step.
        values = drawn_values(chosen, gamma, [0] * len(chosen) if extras else None)
        maker, width = self._maker, (len(chosen), 1 + lookback)
        n_steps = np.empty(width, np.int64)
        n_steps[:] = np.array([[each.count] for each in chosen])
        found = []
        for each, drawn, n, weights in zip(chosen, values, n_steps, np.ones(width), strict=True):
            stored, (obs, action, reward, outputs) = each.stored, drawn
            model = {name: maker.buffer([item]) for name, item in outputs.items()}
            model["n_step"] = maker.buffer(n, None, lookback)
            model["weights"] = maker.buffer(weights, None, lookback)
            infos = [stored.info(each.step), stored.info(each.stop)]
            found.append(maker.transition(each, stored.id_, (obs, action, reward, infos), model))
        return found

    def _log_sampled(
        self, size: int, steps: Iterable[tuple[StoredEpisode, int]], n_step: float | None, resamples: int = 0
    ) -> None:
        different = {(stored.number, step) for stored, step in steps}
        episodes = len({number for number, _ in different})
        agent, module, n = DEFAULT_AGENT_ID, DEFAULT_MODULE_ID, n_step
        self._update_sample_metrics(
            num_env_steps_sampled=size,
            num_episodes_per_sample=episodes,
            num_env_steps_per_sample=len(different),
            sampled_n_step=n,
            num_resamples=resamples,
            agent_to_num_steps_sampled={agent: size},
            agent_to_num_episodes_per_sample={agent: episodes},
            agent_to_num_steps_per_sample={agent: len(different)},
            agent_to_sampled_n_step=None if n is None else {agent: n},
            agent_to_num_resamples={agent: resamples},
            module_to_num_steps_sampled={module: size},
            module_to_num_episodes_per_sample={module: episodes},
            module_to_num_steps_per_sample={module: len(different)},
            module_to_sampled_n_step=None if n is None else {module: n},
            module_to_num_resamples={module: resamples},
        )

    # -- checkpoints and pickling -------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """The whole state, steps included, in RLlib's form: RLlib's buffer and this one can load each other's state."""
        state: dict[str, Any] = super().get_state()
        return state | {"_indices": list(self._indices)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Replace the buffer's contents with a state that `get_state` returned."""
        episodes = [SingleAgentEpisode.from_state(each) for each in state["episodes"]]
        numbers = dict(state["episode_id_to_index"])
        super().set_state(state | {"_indices": [], "episodes": []})
        self._fill(episodes, numbers, state["_indices"])

    def _set_episodes(self, state: dict[str, Any]) -> None:
        """Part of RLlib's `set_state`; `_fill` does it."""

    def _fill(self, episodes: list[SingleAgentEpisode], numbers: dict[str, int], steps: Sequence[Any]) -> None:
        self._open(self._num_episodes_evicted)
        self._archive.restore(episodes)
        if self.episode_id_to_index != numbers:
            raise ValueError("the state is not one of an episode replay buffer: its ids do not belong to its episodes")
        self._indices.restore(steps)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle all attributes and the steps themselves; with a given store, the table's name instead of the steps."""
        names = {name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ())}
        state = {name: getattr(self, name) for name in names | set(vars(self)) if hasattr(self, name)}
        if self._given is not None:
            return {name: value for name, value in state.items() if name != "_maker"}
        state["_filled"] = list(self.episodes), dict(self.episode_id_to_index), list(self._indices)
        return {name: value for name, value in state.items() if name not in _STATE} | {"_given": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        filled = state.pop("_filled", None)
        for name, value in state.items():
            setattr(self, name, value)
        self._maker = Maker()
        if filled is not None:
            self._fill(*filled)
            return
        gone = self._archive.match()
        self._num_timesteps -= sum(map(len, gone))
        self._num_episodes_evicted += len(gone)
        self._forget_steps(gone)

    def _forget_steps(self, gone: list[StoredEpisode]) -> None:
        if gone:
            self._indices.remove([stored.number for stored in gone], sum(map(len, gone)))
