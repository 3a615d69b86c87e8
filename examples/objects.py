"""Arrays passed between processes without copying them: one copy on writing, none on reading.

Needs nothing but di-store: pip install di-store
"""

import multiprocessing as mp

import numpy as np

import di_store


def total(store: di_store.Store, ref: di_store.Ref, answer: str) -> None:
    frames = store.get(ref)["frames"]  # a read-only view of shared memory, which is kept for as long as the view exists
    store.put({"sum": int(frames.sum()), "shape": frames.shape}, id=answer)


if __name__ == "__main__":
    with di_store.open(memory="256MiB") as store:
        frames = np.random.default_rng(0).integers(0, 255, (100, 84, 84), dtype=np.uint8)
        ref = store.put({"frames": frames, "note": "any nesting of arrays, numbers and strings"})
        answer = "a" * 40  # an id of 40 hex characters, known to both processes
        worker = mp.Process(target=total, args=(store, ref, answer))
        worker.start()
        # `get` waits for an id that does not exist yet.
        result = store.get(di_store.Ref.parse(answer), timeout=60)
        worker.join()
        assert result["sum"] == frames.sum()
        print(f"{store.get(ref)['note']}: sum {result['sum']:,} of {result['shape']}")
        deleted = store.delete([ref])
        assert deleted == 1
