"""Laws of sampling: proportions, weights, exactly once, reproducible, and Reverb's decisions."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from model import limiters
from model.selectors import importance, probabilities
from model.table import Draft, ModelTable
from model.views import Step
from scipy import stats

import di_store

FULL = os.environ.get("DI_STORE_TEST_SCALE", "small") == "full"
DRAWS = 1_000_000 if FULL else 50_000
SURE = 0.001  # a correct sampler fails one such test in a thousand seeds; the seeds are fixed
TRACES = json.loads((Path(__file__).parents[1] / "golden" / "reverb_limiter_traces.json").read_text())


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="128MiB", seed=7) as opened:
        yield opened


def filled(store: Any, n: int, priorities: Any = None, name: str = "t", **options: Any) -> tuple[Any, Any]:
    """A table of `n` numbered steps and their keys."""
    table = store.create_table(name, **{"capacity": n, "seed": 11, **options})
    with table.writer() as writer:
        items = writer.extend({"number": np.arange(n)}, priority=priorities)
    return table, items.keys


def drawn(table: Any, draws: int, size: int = 1000) -> np.ndarray[Any, Any]:
    """The numbers of `draws` drawn steps."""
    batches = [table.sample(size, timeout=60) for _ in range(draws // size)]
    return np.concatenate([np.array(batch.data["number"]) for batch in batches])


def chi_square(numbers: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """P of the observed counts under the expected probabilities; what has none must not appear."""
    counts = np.bincount(numbers, minlength=len(expected))
    assert (counts[expected == 0] == 0).all(), "drew what has no chance"
    possible = expected > 0
    return float(stats.chisquare(counts[possible], expected[possible] * counts.sum()).pvalue)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("stratified", [False, True])
def test_prioritized_draws_follow_p_to_the_alpha(store: Any, alpha: float, stratified: bool) -> None:
    values = np.linspace(0.05, 3.0, 97)
    values[[5, 50]] = 0.0
    table, _ = filled(store, 97, values, sampler=di_store.Prioritized(alpha, stratified=stratified))
    numbers = drawn(table, DRAWS)
    expected = probabilities(values.tolist(), alpha)
    if not stratified:
        assert chi_square(numbers, expected) > SURE
    else:  # less variance than independent draws, so only the means are tested
        share = np.bincount(numbers, minlength=97) / len(numbers)
        assert (np.abs(share - expected) <= 4 * np.sqrt(expected / len(numbers)) + 1e-12).all()


def test_draws_follow_updated_priorities(store: Any) -> None:
    """After many updates, deletes and evictions the tree still says what the priorities say."""
    rng = np.random.default_rng(3)
    table, keys = filled(store, 50, sampler=di_store.Prioritized(0.7))
    with table.writer() as writer:
        for number in range(50, 90):
            keys = np.append(keys, writer.append({"number": number}).keys)
    for _ in range(300):
        table.update_priorities(rng.choice(keys, 20), rng.random(20) * 4)
    table.delete(keys[60:65])
    final = rng.random(90) * 4
    final[70] = 0.0
    table.update_priorities(keys, final)
    live = np.zeros(90, bool)
    live[40:] = True
    live[60:65] = False
    expected = np.zeros(90)
    expected[live] = probabilities(final[live].tolist(), 0.7)
    assert chi_square(drawn(table, DRAWS), expected) > SURE


def test_uniform_draws_are_uniform(store: Any) -> None:
    table, _ = filled(store, 100, sampler=di_store.Uniform())
    assert chi_square(drawn(table, DRAWS), np.full(100, 0.01)) > SURE


def test_a_uniform_remover_is_uniform(store: Any) -> None:
    """Each of 8 places is as likely to be the first victim."""
    gone: Counter[int] = Counter()
    for seed in range(400):
        table = store.create_table("t", capacity=8, remover=di_store.Uniform(), seed=seed)
        table.extend({"number": np.arange(8)})
        table.insert({"number": 8})
        left = set(np.asarray(table.peek(table.keys()).data["number"]).tolist())
        gone.update(set(range(8)) - left)
        store.drop_table("t")
    assert sum(gone.values()) == 400
    assert stats.chisquare([gone[i] for i in range(8)]).pvalue > SURE


@pytest.mark.parametrize("normalize", ["batch", "table"])
def test_importance_weights_follow_their_formula(store: Any, normalize: Literal["batch", "table"]) -> None:
    values = np.array([0.5, 1.0, 2.0, 4.0, 0.25])
    sampler = di_store.Prioritized(0.6, 0.4, normalize=normalize)
    table, _ = filled(store, 5, values, sampler=sampler)
    chances = probabilities(values.tolist(), 0.6)
    for beta in (None, 0.4, 1.0, 0.0):
        batch = table.sample(3, timeout=60, beta=beta)
        mine = chances[np.asarray(batch.data["number"])]
        np.testing.assert_allclose(batch.probabilities, mine, rtol=1e-5)
        exponent = 0.4 if beta is None else beta
        largest = (5 * chances.min()) ** -exponent if normalize == "table" else None
        expected = (5 * mine) ** -exponent / largest if largest else importance(mine, 5, exponent)
        np.testing.assert_allclose(batch.weights, expected, rtol=1e-4)
    unweighted, _ = filled(store, 5, values, name="u", sampler=di_store.Prioritized(0.6))
    assert np.asarray(unweighted.sample(9, timeout=60).weights).tolist() == [1.0] * 9


def learner(store: str, batch: int, pipe: Any) -> None:
    """Draw until the data ends; tell everything that was drawn."""
    seen: list[int] = []
    with di_store.attach(store, timeout=60) as attached:
        table = attached.table("t")
        pipe.send("ready")
        try:
            while True:
                seen += np.asarray(table.sample(batch, min_n=1, timeout=60).data["number"]).tolist()
        except di_store.EndOfData:
            pipe.send(seen)


@pytest.mark.parametrize(("epochs", "start"), [(1, "fork"), (3, "spawn")])
def test_once_over_three_learners_is_exactly_once_per_epoch(store: Any, epochs: int, start: str) -> None:
    items = 20_000 if FULL else 2_000
    table, _ = filled(store, items, sampler=di_store.Once(epochs))
    context = mp.get_context(start)
    pipes = []
    processes = []
    for batch in (1, 32, 7):
        ours, theirs = context.Pipe()
        process = context.Process(target=learner, args=(store.name, batch, theirs))  # type: ignore[attr-defined]
        process.start()
        processes.append(process)
        pipes.append(ours)
    for pipe in pipes:
        assert pipe.recv() == "ready"
    table.finish()
    counts = Counter(number for pipe in pipes for number in pipe.recv())
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert counts == Counter(dict.fromkeys(range(items), epochs))


def test_an_epoch_ends_before_the_next_begins(store: Any) -> None:
    table, _ = filled(store, 10, sampler=di_store.Once(None))
    numbers = drawn(table, 100, size=4)
    for epoch in range(10):
        assert sorted(numbers[10 * epoch : 10 * epoch + 10].tolist()) == list(range(10))


@pytest.mark.parametrize("shuffle", [True, False])
def test_draws_given_back_leave_no_trace(store: Any, shuffle: bool) -> None:
    """A `sample` that fails after it went on to the second epoch leaves the table in the first."""
    table, _ = filled(store, 3, sampler=di_store.Once(2, shuffle), capacity=10)
    with pytest.raises(di_store.Timeout):
        table.sample(7, timeout=0.05)
    table.extend({"number": np.arange(3, 5)})
    numbers = [int(table.sample(1, timeout=60).data["number"][0]) for _ in range(10)]
    assert sorted(numbers[:5]) == sorted(numbers[5:]) == list(range(5))


SEEDED = [
    di_store.Uniform(),
    di_store.Prioritized(0.6, 0.4),
    di_store.Prioritized(0.6, stratified=True),
    di_store.Once(None),
]


@pytest.mark.parametrize("sampler", SEEDED, ids=str)
def test_the_same_seed_gives_the_same_batches(sampler: Any) -> None:
    def batches(seed: int) -> list[bytes]:
        with di_store.open(memory="64MiB") as store:
            values = np.random.default_rng(0).random(200) + 0.1
            options = {"sampler": sampler, "remover": di_store.Uniform(), "capacity": 150, "seed": seed}
            table, keys = filled(store, 150, values[:150], **options)
            table.extend({"number": np.arange(150, 200)}, priority=values[150:])
            found = []
            for _ in range(5):
                batch = table.sample(64, timeout=60)
                found.append(batch.data["number"].tobytes() + batch.weights.tobytes() + batch.keys.tobytes())
                table.update_priorities(batch.keys, values[:64])
            table.delete(keys[:10])
            found.append(table.sample(64, timeout=60).data["number"].tobytes())
            return found

    assert batches(3) == batches(3)
    assert batches(3) != batches(4)


def limiter_of(kind: str, numbers: dict[str, float]) -> tuple[limiters.Limiter, Any]:
    """The model's and the store's limiter of one trace."""
    if kind == "MinSize":
        return limiters.MinSize(int(numbers["n"])), di_store.MinSize(int(numbers["n"]))
    if kind == "SamplesPerInsert":
        options = (numbers["ratio"], int(numbers["min_size"]), numbers["tolerance"])
        return limiters.SamplesPerInsert(*options), di_store.SamplesPerInsert(*options)
    return limiters.Queue(int(numbers["size"])), getattr(di_store, kind)(int(numbers["size"]))


def trace_name(trace: dict[str, Any]) -> str:
    """What a failing trace is called."""
    return "-".join(map(str, [*trace["limiter"].values(), trace["capacity"], trace["max_times_sampled"]]))


@pytest.mark.parametrize("trace", TRACES, ids=trace_name)
def test_limiter_decisions_match_reverb(store: Any, trace: dict[str, Any]) -> None:
    """Operation by operation what the real Reverb 0.14 let pass, in the model and in the store."""
    kind = trace["limiter"]["kind"]
    model_limiter, limiter = limiter_of(kind, trace["limiter"])
    remover = "Lifo" if kind == "Stack" else "Fifo"
    sampler = trace["sampler"].title()
    model = ModelTable(
        "t", Step(), trace["capacity"], sampler, remover, model_limiter, max_times_sampled=trace["max_times_sampled"]
    )
    options: dict[str, Any] = {}
    if kind not in ("Queue", "Stack"):
        options = {"max_times_sampled": trace["max_times_sampled"], "sampler": getattr(di_store, sampler)()}
    table = store.create_table("t", capacity=trace["capacity"], limiter=limiter, **options)
    for at, (op, allowed) in enumerate(trace["ops"] if FULL else trace["ops"][:160]):
        assert decide(model, op) == allowed, f"the model at operation {at}"
        assert decide_really(table, op) == allowed, f"the store at operation {at}"
    assert len(table) == len(model)


def decide(model: ModelTable, op: str) -> bool:
    """One operation on the model."""
    if op == "delete":
        return bool(model.delete([model.items[0].number]))
    if op == "sample":
        return model.draw(1) is not None
    if not model.admits(1):
        return False
    return bool(model.insert([Draft(0, 0, 0, {})]))


def decide_really(table: Any, op: str) -> bool:
    """One operation on the store, which must not wait."""
    try:
        if op == "delete":
            table.delete(table.keys(n=1))
        elif op == "sample":
            table.sample(1, timeout=0)
        else:
            table.insert({"number": 1}, timeout=0)
    except di_store.Timeout:
        return False
    return True


def test_a_mixing_ratio_of_one_in_256_holds(store: Any) -> None:
    agent, _ = filled(store, 500, name="agent")
    demo, _ = filled(store, 50, name="demo")
    mixture = store.mix({"agent": 255, "demo": 1}, seed=5)
    total = 256 * (2_000 if FULL else 200)
    from_demo = 0
    for _ in range(total // 256):
        batch = mixture.sample(256, timeout=60)
        source = np.asarray(batch.source)
        assert source.dtype == np.int32
        from_demo += int((source == 1).sum())
        assert set(np.unique(source)) <= {0, 1}
    sigma = np.sqrt(total * (1 / 256) * (255 / 256))
    assert abs(from_demo - total / 256) <= 3 * sigma
    assert agent.stats()["samples"] + demo.stats()["samples"] == total


def test_stale_items_are_never_drawn(store: Any) -> None:
    """Items older than the newest published weights by more than `max_staleness` go, and are counted."""
    table = store.create_table("t", capacity=100, weights="policy", max_staleness=2)
    for version in range(1, 7):
        assert store.publish("policy", {"w": np.float32(version)}) == version
        table.extend({"number": np.full(5, version), "version": np.full(5, version)})
    batches = [table.sample(10, timeout=60) for _ in range(20)]
    assert set(np.concatenate([batch.versions for batch in batches]).tolist()) == {4, 5, 6}
    assert set(np.concatenate([batch.data["number"] for batch in batches]).tolist()) == {4, 5, 6}
    for _ in range(3):
        store.publish("policy", None)
    with pytest.raises(di_store.Timeout) as caught:
        table.sample(1, timeout=0.05)
    assert "stale" in str(caught.value.reason)


def test_late_priority_updates_never_reach_a_successor(store: Any) -> None:
    """A key of an evicted item stays dead, however often its slot is used again."""
    table, keys = filled(store, 3, sampler=di_store.Prioritized(1.0))
    with table.writer() as writer:
        for number in range(5_000):
            writer.append({"number": number}, priority=1.0)
            assert table.update_priorities(keys[:1], [100.0]) == 0
    assert np.asarray(table.peek(table.keys()).priorities).tolist() == [1.0] * 3
