"""RLlib learns in a Ray cluster of three nodes whose agents, workers, raylets and nodes are killed.

Its replay buffer lies in a store of its own process: beside it runs the job of tests/cluster/test_chaos.py, in the
cluster's stores. What a run found is printed (-s).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("ray.rllib", reason="needs RLlib", exc_type=ImportError)

from cluster.chaos.learning import Learning
from cluster.chaos.ledger import Board
from cluster.chaos.world import RayWorld
from cluster.test_chaos import MEMORY, SEED, check, run


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_rllib_learns_through_chaos(tmp_path: Path) -> None:
    with ExitStack() as running:
        board = Board(tmp_path)
        world = RayWorld(board, running, MEMORY)
        learning = Learning(SEED)
        running.callback(learning.stop)
        world.kinds = {**world.kinds, "runner": 2}
        world.others["runner"] = learning.hit
        report, killer = run(world, board)
        wrong = learning.end()
        print(
            f"rounds: {learning.rounds}, steps: {learning.steps[-1:]}, "
            f"slowest: {learning.slowest:.1f} s, {learning.hits}"
        )
        assert not wrong, wrong
        check(report, killer)
