"""A fixed data set shared by two learner processes: every item exactly once per epoch, whoever draws it."""

import multiprocessing as mp
from multiprocessing.synchronize import Barrier

import numpy as np

import di_store

ITEMS, EPOCHS = 10_000, 3


def learner(data: di_store.Table, together: Barrier, drawn: "mp.Queue[list[int]]") -> None:
    values: list[int] = []
    together.wait(120)  # else the first one up may draw everything
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
        drawn, together = mp.Queue(), mp.Barrier(2)
        learners = [mp.Process(target=learner, args=(data, together, drawn)) for _ in range(2)]
        for process in learners:
            process.start()
        parts = [drawn.get(timeout=120) for _ in learners]
        for process in learners:
            process.join()
        counts = np.bincount([value for part in parts for value in part], minlength=ITEMS)
        assert (counts == EPOCHS).all()
        print(f"each of {ITEMS:,} items {EPOCHS} times, by {len(learners)} learners: {[len(part) for part in parts]}")
