"""Programs of DI-engine with DI_STORE=on, each run in a process of its own by `test_ding.py`."""

DISTRIBUTED = """
import multiprocessing as mp
from types import SimpleNamespace
import torch

def learner(refs, found):
    from ding.utils import get_data_decompressor
    from ding.worker.learner.comm.flask_fs_learner import FlaskFileSystemLearner
    for ref in iter(refs.get, None):
        meta = {"unroll_len": 1, "unroll_split_begin": 1, "data_id": "x"}
        step = FlaskFileSystemLearner.load_data_fn(ref, meta, get_data_decompressor("none"))
        found.put((step["obs"].tolist(), step["data_id"]))

if __name__ == "__main__":
    from ding.worker.collector.comm.flask_fs_collector import FlaskFileSystemCollector
    context = mp.get_context("spawn")
    refs, found = context.Queue(), context.Queue()
    reader = context.Process(target=learner, args=(refs, found))
    reader.start()
    steps = [{"obs": torch.full((2,), float(t))} for t in range(3)]
    collector = SimpleNamespace(_collector_close_flag=False)
    ref = FlaskFileSystemCollector.send_stepdata(collector, "x", steps)
    for _ in range(3):  # the replay buffer of DI-engine's coordinator draws it again and again
        refs.put(ref)
        assert found.get(timeout=60) == ([1.0, 1.0], "x")
    refs.put(None)
    reader.join()
    print("read", len(ref))
"""

PIPELINE = """
from dizoo.classic_control.cartpole.config.parallel.cartpole_dqn_config import create_config, main_config, system_config

if __name__ == "__main__":
    from ding.entry.parallel_entry import parallel_pipeline

    system_config.learner_gpu_num = 0
    parallel_pipeline((main_config, create_config, system_config), seed=0)
"""
