"""A training with real processes: with a `Pace` nothing is too old, without one much is dropped."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from leasing import LONG, PATIENCE
from pains import until
from warm import WARM

import di_store
from di_store import Fifo, Pace, Queue, Spec

BATCH, WORKERS = 8, 3
ANSWER = {"prompt": Spec((), "i8"), "version": Spec((), "i8")}


def roll_out(store: str, names: list[tuple[str, str]]) -> None:
    """Answer prompts of both kinds in turn, each with the newest weights, until there are none."""
    own = di_store.attach(store, timeout=PATIENCE)
    tables = [(own.table(prompts), own.table(answers)) for prompts, answers in names]
    while tables:
        for each in list(tables):
            prompts, answers = each
            try:
                batch = prompts.sample(2, lease=LONG, timeout=0.01)
            except di_store.Timeout:
                continue
            except di_store.EndOfData:
                tables.remove(each)
                continue
            newest = own.latest("policy")
            assert newest is not None
            for prompt in batch.data["prompt"]:
                answers.insert({"prompt": prompt, "version": newest.version})
            assert prompts.ack(batch) == len(batch)


@pytest.mark.parametrize("ahead", [0, 1])
def test_nothing_trained_is_older_than_the_pace_allows(ahead: int) -> None:
    """Prompts are trained in order, a version for each batch. What dropping loses, the pace never makes."""
    versions = 12
    with di_store.open(memory="64MiB") as store:
        store.publish("policy", {"w": np.zeros(4)})
        names = [("paced", "answers"), ("free", "late")]
        for (prompts, answers), options in zip(names, ({"limiter": Pace("policy", BATCH, ahead)}, {}), strict=True):
            made = store.create_table(prompts, capacity=1_000, sampler=Fifo(), max_times_sampled=1, **options)
            made.extend({"prompt": np.arange(versions * BATCH)})
            made.finish()
            stale = {"weights": "policy", "max_staleness": ahead}
            store.create_table(answers, capacity=1_000, schema=ANSWER, limiter=Queue(1_000), **stale)
        workers: list[Any] = [
            WARM.Process(target=roll_out, args=(store.name, names), daemon=True) for _ in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        for answers, many in (("answers", (1 + ahead) * BATCH), ("late", 4 * BATCH)):
            made = store.table(answers)
            until(lambda made=made, many=many: made.stats()["inserts"] >= many, "workers that run ahead")
        there: dict[int, int] = {}
        ages = []
        for number in range(versions):
            wanted = range(number * BATCH, (number + 1) * BATCH)
            while not there.keys() >= set(wanted):
                batch = store.table("answers").sample(1, timeout=PATIENCE)
                there[int(batch.data["prompt"][0])] = int(batch.data["version"][0])
            newest = store.latest("policy")
            assert newest is not None
            ages += [newest.version - there[prompt] for prompt in wanted]
            with suppress(di_store.Timeout):
                store.table("late").sample(BATCH, timeout=0)
            store.publish("policy", {"w": np.full(4, number)})
        for worker in workers:
            worker.join(PATIENCE)
            assert worker.exitcode == 0
        with suppress(di_store.Timeout):
            store.table("late").sample(1, timeout=0)
        assert max(ages) == ahead
        assert (store.table("answers").stats()["stale_dropped"], store.table("paced").stats()["size"]) == (0, 0)
        assert store.table("late").stats()["stale_dropped"] > 0
        assert store.check() == []
