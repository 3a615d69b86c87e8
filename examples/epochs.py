"""A fixed data set shared by two learner processes: each item exactly once per epoch, whichever process draws it.

Needs nothing but di-store: pip install di-store
"""

import multiprocessing as mp
from multiprocessing.synchronize import Barrier

import numpy as np

import di_store

ITEMS, EPOCHS = 10_000, 3


def learner(data: di_store.Table, both_up: Barrier, drawn: "mp.Queue[list[int]]") -> None:
    values: list[int] = []
    both_up.wait(120)  # otherwise the first learner to start may draw everything
    for batch in data.loader(32):
        values += batch.data["value"].tolist()
    drawn.put(values)


if __name__ == "__main__":
    with di_store.open(memory="256MiB") as store:
        data = store.create_table(
            "data", capacity=ITEMS, view=di_store.Step(), sampler=di_store.Once(epochs=EPOCHS, shuffle=True)
        )
        data.extend({"value": np.arange(ITEMS)})
        data.finish()
        drawn, both_up = mp.Queue(), mp.Barrier(2)
        learners = [mp.Process(target=learner, args=(data, both_up, drawn)) for _ in range(2)]
        for process in learners:
            process.start()
        parts = [drawn.get(timeout=120) for _ in learners]
        for process in learners:
            process.join()
        counts = np.bincount([value for part in parts for value in part], minlength=ITEMS)
        assert (counts == EPOCHS).all()
        print(f"each of {ITEMS:,} items {EPOCHS} times, by {len(learners)} learners: {[len(part) for part in parts]}")
