"""RLlib's own buffers beside ours: the same episodes go in, and the same must come out."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray.rllib", reason="runs with make adapters ADAPTER=rllib")

from gymnasium import spaces
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer as Theirs
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer as TheirPrioritized

import di_store
from di_store.adapters.rllib import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

PAIRS = {"uniform": (Theirs, EpisodeReplayBuffer), "prioritized": (TheirPrioritized, PrioritizedEpisodeReplayBuffer)}
KINDS = ("vectors", "images", "nested", "numbers", "lists", "nested lists")
BOX, TWO = spaces.Box(-10.0, 10.0, (3,), np.float32), spaces.Discrete(2)


def observation(kind: str, rng: np.random.Generator) -> Any:
    if kind in ("vectors", "lists"):
        return rng.normal(size=3).astype(np.float32)
    if kind == "images":
        return rng.integers(0, 255, (4, 4, 2)).astype(np.uint8)
    if kind == "numbers":
        return float(rng.normal())
    return {"a": rng.normal(size=2).astype(np.float32), "b": (rng.integers(5), rng.normal(size=(2, 1)))}


class Environment:
    """Makes episodes in chunks, as an environment runner does: `cut` leaves them with steps to look back to."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.rng, self.count = kind, np.random.default_rng(seed), 0
        self.numpy = kind in ("vectors", "images", "nested")
        self.infos, self.extras = seed % 2 == 0, seed % 3 > 0
        self.open: list[SingleAgentEpisode] = [self.begin() for _ in range(3)]

    def begin(self) -> SingleAgentEpisode:
        self.count += 1
        known = {"observation_space": BOX, "action_space": TWO} if self.kind == "vectors" else {}
        episode = SingleAgentEpisode(id_=f"episode{self.count}", **known)
        episode.add_env_reset(observation(self.kind, self.rng), self.info())
        episode.custom_data["begun"] = [self.count]
        return episode

    def info(self) -> dict[str, Any]:
        return {"n": int(self.rng.integers(9)), "list": [1]} if self.infos and self.rng.random() < 0.5 else {}

    def chunk(self) -> SingleAgentEpisode:
        lane = int(self.rng.integers(len(self.open)))
        episode, ends = self.open[lane], self.rng.random() < 0.3
        steps = int(self.rng.integers(1, 12)) if self.rng.random() < 0.5 else 1
        for step in range(steps):
            last = ends and step == steps - 1
            extras = {"logp": np.float32(self.rng.normal()), "state": {"h": self.rng.normal(size=2)}}
            number = self.kind == "numbers"
            episode.add_env_step(
                observation(self.kind, self.rng),
                int(self.rng.integers(3)) if number else self.rng.integers(3),
                float(self.rng.normal()) if number else np.float64(self.rng.normal()),
                self.info(),
                terminated=last and step % 2 == 0,
                truncated=last and step % 2 == 1,
                extra_model_outputs=extras if self.extras else None,
            )
        self.open[lane] = self.begin() if ends else episode.cut(len_lookback_buffer=lane)
        return episode.to_numpy() if self.numpy else episode

    def chunks(self, count: int) -> list[SingleAgentEpisode]:
        return [self.chunk() for _ in range(count)]


def check(ours: Any, theirs: Any, where: str, ids: bool = True) -> None:
    """Fail unless both are the same, types and bits included."""
    if ours is theirs:
        return
    if isinstance(theirs, SingleAgentEpisode):
        assert type(ours) is SingleAgentEpisode
        for name in set(SingleAgentEpisode.__slots__) - {"_last_added_observation", "_last_added_infos"}:
            if ids or name != "id_":
                check(getattr(ours, name), getattr(theirs, name), f"{where}.{name}")
    elif isinstance(theirs, InfiniteLookbackBuffer):
        assert type(ours) is InfiniteLookbackBuffer, where
        for name in set(vars(ours)) | set(vars(theirs)):
            check(getattr(ours, name), getattr(theirs, name), f"{where}.{name}")
    elif isinstance(theirs, dict):
        assert isinstance(ours, dict), where
        assert list(ours) == list(theirs), where
        for name, value in theirs.items():
            check(ours[name], value, f"{where}[{name!r}]")
    elif isinstance(theirs, (list, tuple)):
        assert type(ours) is type(theirs), where
        assert len(ours) == len(theirs), (where, len(ours), len(theirs))
        for number, value in enumerate(theirs):
            check(ours[number], value, f"{where}[{number}]", ids)
    elif isinstance(theirs, (np.ndarray, np.generic)):
        assert type(ours) is type(theirs), (where, type(ours), type(theirs))
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), (where, ours, theirs)
        assert ours.tobytes() == theirs.tobytes(), (where, ours, theirs)
    else:
        assert type(ours) is type(theirs), (where, ours, theirs)
        assert ours == theirs, (where, ours, theirs)


def pair(which: str, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    """RLlib's buffer and ours, which draw alike."""
    theirs, ours = (kind(**options) for kind in PAIRS[which])
    theirs.rng, ours.rng = np.random.default_rng(seed), np.random.default_rng(seed)
    return theirs, ours


def both(buffers: tuple[Any, Any], environment: Environment, count: int) -> None:
    """Add the same chunks to both, and compare what the buffers say then."""
    theirs, ours = buffers
    chunks = environment.chunks(count)
    before = copy.deepcopy(chunks)
    ours.add(chunks if count > 1 else chunks[0])
    check(chunks, before, "what was added")
    theirs.add(chunks if count > 1 else chunks[0])
    check_counts(theirs, ours)


def check_counts(theirs: Any, ours: Any) -> None:
    assert len(ours) == len(theirs)
    for name in ("episodes", "episodes_evicted", "timesteps"):
        assert getattr(ours, f"get_num_{name}")() == getattr(theirs, f"get_num_{name}")()
    assert ours.get_added_timesteps() == theirs.get_added_timesteps()
    assert ours.get_sampled_timesteps() == theirs.get_sampled_timesteps()
    assert list(ours._indices) == theirs._indices


def draws(which: str, environment: Environment) -> Iterator[dict[str, Any]]:
    """Arguments of `sample`."""
    extras = environment.extras
    for n_step in (1, 3, 5, (1, 4)):
        yield {"num_items": 16, "n_step": n_step, "gamma": 0.97, "beta": 0.4, "sample_episodes": True}
    more: dict[str, Any] = {"include_infos": True, "include_extra_model_outputs": extras, "sample_episodes": True}
    yield {"batch_size_B": 9, "n_step": 2, "to_numpy": which == "prioritized", **more}
    if which == "uniform":
        yield {"num_items": 12, "n_step": 1, "batch_length_T": 6, "lookback": 1, "sample_episodes": True}
        if not extras and environment.kind != "nested":  # RLlib fails if that is more than a dict has keys
            yield {"num_items": 12, "n_step": 1, "batch_length_T": 4, "lookback": 3, "sample_episodes": True}
        yield {"num_items": 8, "n_step": 1, "batch_length_T": 9, "min_batch_length_T": 2, "sample_episodes": True}
        yield {"num_items": 8, "n_step": 1, "lookback": 1, "min_batch_length_T": 1, "sample_episodes": True}
        if environment.kind not in ("nested", "nested lists"):
            yield {"batch_size_B": 3, "batch_length_T": 7}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", PAIRS)
def test_the_same_seed_gives_the_same_samples(which: str, kind: str) -> None:
    for seed in range(2):
        environment = Environment(kind, seed)
        theirs, ours = buffers = pair(which, seed, capacity=250, **({"alpha": 0.6} if which == "prioritized" else {}))
        for round_ in range(40):
            both(buffers, environment, int(environment.rng.integers(1, 5)))
            if round_ % 5 or len(theirs) < 20:
                continue
            for options in draws(which, environment):
                expected, found = theirs.sample(**options), ours.sample(**options)
                check(found, expected, f"{options}", ids=which == "uniform")
                if which == "prioritized":
                    errors = environment.rng.random(len(expected)).astype(np.float32)
                    theirs.update_priorities(errors)
                    ours.update_priorities(errors)
        assert ours.rng.bit_generator.state == theirs.rng.bit_generator.state
        assert theirs.get_num_episodes_evicted() > 3
        check(list(ours.episodes), list(theirs.episodes), "episodes")
        check(ours.get_metrics(), theirs.get_metrics(), "metrics")


def filled(which: str, kind: str = "vectors", seed: int = 1, rounds: int = 30, **options: Any) -> tuple[Any, Any]:
    buffers = pair(which, seed, **{"capacity": 150, **options})
    environment = Environment(kind, seed)
    for _ in range(rounds):
        both(buffers, environment, 2)
    return buffers


def same_samples(one: Any, other: Any, ids: bool, **options: Any) -> None:
    """Draw from both, which have the same numbers to come."""
    one.rng, other.rng = np.random.default_rng(5), np.random.default_rng(5)
    for _ in range(3):
        given = {"num_items": 8, "n_step": 2, "beta": 0.5, "sample_episodes": True, **options}
        check(one.sample(**given), other.sample(**given), "sample", ids)


@pytest.mark.parametrize("kind", ["vectors", "nested lists"])
@pytest.mark.parametrize("which", PAIRS)
def test_pickles_and_copies_hold_the_steps(which: str, kind: str) -> None:
    _, ours = filled(which, kind)
    ours.sample(4, n_step=1, sample_episodes=True)
    numbers_to_come = copy.deepcopy(ours.rng.bit_generator.state)
    for copied in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert copied.rng.bit_generator.state == numbers_to_come
        check(list(copied.episodes), list(ours.episodes), "episodes")
        assert list(copied._indices) == list(ours._indices)
        same_samples(copied, ours, which == "uniform")
        length = len(ours)
        copied.add(Environment(kind, 9).chunks(3))  # its store is another one
        assert len(ours) == length


@pytest.mark.parametrize("kind", ["vectors", "nested lists"])
@pytest.mark.parametrize("which", PAIRS)
def test_states_can_be_exchanged_with_the_buffer_of_rllib(which: str, kind: str) -> None:
    theirs, ours = filled(which, kind)
    their_state, state = copy.deepcopy(theirs.get_state()), ours.get_state()
    for one in (state, their_state):
        for episode in one["episodes"]:
            if not episode["extra_model_outputs"]:
                del episode["extra_model_outputs"]
        one.pop("_tree_idx_to_sample_idx", None)
    check(state, their_state, "state")
    for kinds in (PAIRS[which], PAIRS[which][::-1]):
        for source in (theirs, ours):
            loaded = kinds[0](capacity=150)
            loaded.set_state(pickle.loads(pickle.dumps(source.get_state())))
            same_samples(loaded, ours, which == "uniform")
    ours.set_state(theirs.get_state())  # in place of what it holds
    check(list(ours.episodes), list(theirs.episodes), "episodes")


def numbers(id_: str, steps: int, first: int = 0, **more: Any) -> SingleAgentEpisode:
    """An episode that counts."""
    times = range(first, first + steps)
    return SingleAgentEpisode(
        id_=id_,
        observations=[float(each) for each in (*times, first + steps)],
        actions=list(times),
        rewards=[0.5 * each for each in times],
        len_lookback_buffer=0,
        t_started=first,
        **more,
    )


@pytest.mark.parametrize("which", PAIRS)
def test_chunks_of_other_types_are_concatenated_as_in_rllib(which: str) -> None:
    theirs, ours = pair(which)
    begin = numbers("a", 0)  # no step yet
    for chunk in (begin, numbers("a", 0), numbers("a", 3), numbers("a", 2, 3).to_numpy(), numbers("a", 1, 5)):
        theirs.add(chunk)
        ours.add(chunk)
        assert len(ours) == len(theirs)
    last = numbers("a", 0, 6)
    last.is_terminated = True  # after its last step
    theirs.add(last)
    ours.add(last)
    assert list(ours._indices) == theirs._indices
    found, expected = ours.episodes[0], theirs.episodes[0]
    assert found.get_observations() == expected.get_observations() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert found.get_rewards() == expected.get_rewards() and found.is_terminated  # noqa: PT018


@pytest.mark.parametrize("which", PAIRS)
def test_one_episode_may_be_longer_than_the_capacity(which: str) -> None:
    theirs, ours = pair(which, capacity=50)
    for part in range(60):
        chunk = numbers("long", 1, part)
        theirs.add(chunk)
        ours.add(chunk)
    assert len(ours) == len(theirs) == 60
    same_samples(ours, theirs, which == "uniform")
    theirs.add(numbers("next", 5))
    ours.add(numbers("next", 5))
    assert [each.id_ for each in ours.episodes] == [each.id_ for each in theirs.episodes] == ["next"]
    if which == "uniform":
        ours.add(numbers("longest", 5_000))  # its table grows
        return
    with pytest.raises(ValueError, match="above the longest episode"):
        ours.add(numbers("longest", 5_000))
    ours.add(numbers("b", 3))
    ours.sample(20)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_oldest_episode_may_leave_with_its_newest_chunk(steps: int) -> None:
    """RLlib's buffer ends with an IndexError if that chunk has two steps."""
    buffer = EpisodeReplayBuffer(capacity=10)
    buffer.add([numbers("old", 5), numbers("new", 5), numbers("old", steps, 5)])
    assert list(buffer._indices) == [(1, step) for step in range(5)]
    assert [each.id_ for each in buffer.sample(20, n_step=1, sample_episodes=True)] == ["new"] * 20
    buffer.add(numbers("old", 2, 5 + steps))  # goes on as an episode that begins there
    assert [(each.id_, each.t_started) for each in buffer.episodes] == [("new", 0), ("old", 5 + steps)]


def test_more_new_episodes_than_fit_raise_no_index_error() -> None:
    """RLlib's prioritized buffer ends with an IndexError as it has no more episodes to evict."""
    buffer = PrioritizedEpisodeReplayBuffer(capacity=10)
    buffer.add([numbers(str(number), 6) for number in range(3)])
    assert len(buffer) == 18
    buffer.add(numbers("last", 1))
    assert [each.id_ for each in buffer.episodes] == ["2", "last"]


@pytest.mark.parametrize(
    ("episodes", "text"),
    [
        (lambda: SingleAgentEpisode(observations=["a", "b"], actions=[0], rewards=[0.0], len_lookback_buffer=0), "<U1"),
        (
            lambda: SingleAgentEpisode(observations=[{1}, {2}], actions=[0], rewards=[0.0], len_lookback_buffer=0),
            "object",
        ),
        (
            lambda: SingleAgentEpisode(
                observations=[np.zeros(1), np.zeros(2)], actions=[0], rewards=[0.0], len_lookback_buffer=0
            ),
            "differ in their shape",
        ),
        (
            lambda: SingleAgentEpisode(observations=[(1,), (1, 2)], actions=[0], rewards=[0.0], len_lookback_buffer=0),
            "differ in their nesting",
        ),
        (
            lambda: SingleAgentEpisode(observations=[0, 1], actions=["up"], rewards=[0.0], len_lookback_buffer=0),
            "actions are <U2",
        ),
    ],
)
def test_episodes_that_no_table_can_hold_are_refused(episodes: Any, text: str) -> None:
    buffer = EpisodeReplayBuffer(capacity=100)
    buffer.add(numbers("before", 3))
    with pytest.raises(TypeError, match=text) as caught:
        buffer.add([numbers("with it", 2), episodes()])
    assert "Gymnasium wrapper" in str(caught.value)
    assert [each.id_ for each in buffer.episodes] == ["before"]


def test_too_many_types_are_refused() -> None:
    buffer = EpisodeReplayBuffer(capacity=100)
    with pytest.raises(TypeError, match="same dtype and shape"):
        for width in range(1, 20):
            values = [np.zeros(width)] * 2
            buffer.add(SingleAgentEpisode(observations=values, actions=[0], rewards=[0.0], len_lookback_buffer=0))


@pytest.mark.parametrize("which", PAIRS)
def test_a_chunk_that_does_not_continue_its_episode_is_refused(which: str) -> None:
    _, buffer = pair(which)
    buffer.add([numbers("open", 3), numbers("ended", 2, terminated=True)])
    wrong = numbers("open", 2, 3)
    wrong.observations.data[0] = 7.0
    for chunk, text in (
        (numbers("open", 2, 4), "starts at step 4, and the buffer has its steps before 3"),
        (numbers("ended", 2, 2), "after the episode's end"),
        (wrong, "does not start with the observation"),
    ):
        with pytest.raises(ValueError, match=text):
            buffer.add(chunk)
    buffer.add(numbers("open", 2, 3))
    assert len(buffer.episodes[0]) == 5


@pytest.mark.parametrize("which", PAIRS)
def test_wrong_arguments_are_refused(which: str) -> None:
    _, buffer = pair(which)
    for options in ({}, {"sample_episodes": True}):
        with pytest.raises(ValueError, match="the replay buffer is empty"):
            buffer.sample(4, n_step=1, **options)
    with pytest.raises(ValueError, match="capacity=0"):
        PAIRS[which][1](capacity=0)
    buffer.add(numbers("a", 9))
    with pytest.raises(ValueError, match="num_items= or batch_size_B="):
        buffer.sample(4, batch_size_B=4, n_step=1, sample_episodes=True)
    frame = np.zeros((210, 160, 3), np.uint8)
    with pytest.raises(di_store.CapacityError, match=r"more than this machine has.*lower replay_buffer_config"):
        EpisodeReplayBuffer(capacity=10**8).add(
            SingleAgentEpisode(observations=[frame] * 2, actions=[0], rewards=[0.0], len_lookback_buffer=0)
        )


def test_wrong_arguments_of_either_class_are_refused() -> None:
    buffer = EpisodeReplayBuffer()
    buffer.add(numbers("a", 9))
    with pytest.raises(ValueError, match="n_step="):
        buffer.sample(4, sample_episodes=True)
    with pytest.raises(ValueError, match="it must be 1"):
        buffer.sample(4, n_step=3, batch_length_T=2, sample_episodes=True)
    nested = SingleAgentEpisode(observations=[(1, 2)] * 3, actions=[0] * 2, rewards=[0.0] * 2, len_lookback_buffer=0)
    other = EpisodeReplayBuffer()
    other.add(nested)
    with pytest.raises(TypeError, match="sample_episodes=True"):
        other.sample(2)
    prioritized = PrioritizedEpisodeReplayBuffer(capacity=100)
    prioritized.add(numbers("a", 9))
    with pytest.raises(ValueError, match="beta=-1"):
        prioritized.sample(4, beta=-1)
    assert len(prioritized.sample(4, beta=None)) == 4  # as DQN asks, if replay_buffer_config has no beta
    with pytest.raises(ValueError, match="2 priorities were given, and the last sample"):
        prioritized.update_priorities(np.ones(2))
    with pytest.raises(ValueError, match="priorities must be finite"):
        prioritized.update_priorities(np.array([1, 2, np.nan, 3]))
    with pytest.raises(ValueError, match="alpha=-1"):
        PrioritizedEpisodeReplayBuffer(alpha=-1)
    with pytest.raises(ValueError, match="another capacity"):
        PrioritizedEpisodeReplayBuffer(capacity=1_000).set_state(prioritized.get_state())


def test_sampling_from_too_short_episodes_raises() -> None:
    """RLlib's buffers draw for ever."""
    for which, more in (
        ("uniform", {"n_step": 5}),
        ("prioritized", {"n_step": 5}),
        ("uniform", {"min_batch_length_T": 4}),
    ):
        _, buffer = pair(which, capacity=64)
        buffer.add([numbers("a", 1), numbers("b", 2)])
        with pytest.raises(ValueError, match="too short"):
            buffer.sample(2, **{"n_step": 1, "sample_episodes": True, **more})


def test_each_observation_is_stored_once() -> None:
    """Chunks of one step, each of which brings the last observation of the one before, and episodes that leave."""
    frame, steps = np.zeros((64, 64, 4), np.uint8), 600
    buffer = EpisodeReplayBuffer(capacity=steps)
    rng = np.random.default_rng(0)
    lanes = [SingleAgentEpisode() for _ in range(4)]
    for lane in lanes:
        lane.add_env_reset(frame)
    for _ in range(5 * steps):
        number = int(rng.integers(4))
        lane, ends = lanes[number], rng.random() < 0.05
        lane.add_env_step(frame, 0, 0.0, terminated=bool(ends))
        if ends:
            lanes[number] = SingleAgentEpisode()
            lanes[number].add_env_reset(frame)
        else:
            lanes[number] = lane.cut(1)
        buffer.add(lane.to_numpy())
    store = next(iter(buffer._archive._places.values())).store
    assert store.stats()["present"] < 1.7 * steps * frame.nbytes


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def algorithm(name: str, kind: Any, runners: int = 0) -> Any:
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.sac import SACConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    config = {"DQN": DQNConfig, "SAC": SACConfig}[name]()
    config.environment({"DQN": "CartPole-v1", "SAC": "Pendulum-v1"}[name])
    more = {"alpha": 0.6, "beta": 0.4} if "Prioritized" in kind.__name__ else {}
    own = kind.__module__.startswith("ray.")  # RLlib 2.60 takes only the names of its own classes
    config.training(
        train_batch_size=16,
        num_steps_sampled_before_learning_starts=40,
        replay_buffer_config={"type": kind.__name__ if own else kind, "capacity": 1_000, **more},
    )
    config.env_runners(num_env_runners=runners, rollout_fragment_length=8)
    config.fault_tolerance(restart_failed_env_runners=True)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16]))
    config.reporting(min_sample_timesteps_per_iteration=80, min_time_s_per_iteration=0)  # 1 s: any number of steps
    return config.debugging(seed=3, log_level="ERROR").build_algo()


@pytest.mark.parametrize(("name", "which"), [("DQN", "prioritized"), ("SAC", "uniform")])
def test_training_gives_the_same_result_as_with_the_buffer_of_rllib(cluster: None, name: str, which: str) -> None:
    results = []
    for kind in PAIRS[which]:
        trained = algorithm(name, kind)
        assert type(trained.local_replay_buffer) is kind
        trained.local_replay_buffer.rng = np.random.default_rng(1)
        trained.train()
        results.append(trained.get_weights())
        trained.stop()
    check(*results, "weights")


def test_training_continues_after_a_worker_died(cluster: None, tmp_path: Any) -> None:
    trained = algorithm("DQN", PrioritizedEpisodeReplayBuffer, runners=1)
    trained.train()
    before = trained.local_replay_buffer.get_added_timesteps()
    trained.env_runner_group.foreach_env_runner(
        lambda runner: __import__("os")._exit(1), local_env_runner=False, timeout_seconds=5
    )
    for _ in range(20):
        trained.train()
        if trained.local_replay_buffer.get_added_timesteps() > before + 80:
            break
    assert trained.local_replay_buffer.get_added_timesteps() > before + 80
    trained.stop()
