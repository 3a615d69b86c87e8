"""Agents, workers, raylets and nodes are killed by chance beside a job: nothing that was acknowledged is lost.

DI_STORE_CHAOS_SECONDS and DI_STORE_CHAOS_SEED choose how long and which kills; what a run found is printed (-s).
"""

from __future__ import annotations

import os
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.chaos.job import Job
from cluster.chaos.judge import TAKEN_AT_ONCE, Report, judge
from cluster.chaos.kills import Killer
from cluster.chaos.ledger import Board, Ledger
from cluster.chaos.world import EtcdWorld, RayWorld, World

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(1_500)]
SECONDS = float(os.environ.get("DI_STORE_CHAOS_SECONDS", "300"))
SEED = int(os.environ.get("DI_STORE_CHAOS_SEED", "1"))
QUIET_SECONDS = 1.0
MEMORY = "1GiB"
LATE_SECONDS = 1.0
"""By how much a call may outlast its deadline, without the time in which its process got no processor."""
SLOW_SECONDS = 15.0
"""The same, with all: a machine may have much else to do."""


def run(world: World, board: Board) -> tuple[Report, Killer]:
    job = Job(world, board)
    killer = Killer(world, Ledger(board, "killer", 0), SEED, job.administrator.lose)
    killer.run(SECONDS)
    job.end(QUIET_SECONDS)
    report = judge(world, board, job.administrator)
    print(f"\nseed {SEED}, {SECONDS:.0f} s, hits: {dict(sorted(killer.hits.items()))}\n{report}")
    return report, killer


def check(report: Report, killer: Killer) -> None:
    """What must hold whatever was killed."""
    assert not report.faults, report.faults[:3]
    assert not report.damage
    assert report.evicted == 0, "rows left for others: the tables of this test are too small"
    assert not report.lost, f"{len(report.lost)} acknowledged rows or objects are lost: {report.lost[:5]}"
    assert not report.twice, f"{len(report.twice)} came twice: {report.twice[:5]}"
    assert report.torn == 0, "torn rows, windows or objects"
    assert report.back == 0, "an older version of weights after a newer one"
    assert report.not_taken <= TAKEN_AT_ONCE * killer.agents_of_the_queue, "more than what was on its way is lost"
    assert min(report.acknowledged, report.sampled, report.versions, report.taken) > 0
    assert report.latest <= LATE_SECONDS, report.late[:5]
    assert all(late <= SLOW_SECONDS for _, late, _ in report.late), report.late[:5]


def test_a_cluster_with_etcd_survives_chaos(tmp_path: Path) -> None:
    with ExitStack() as running:
        board = Board(tmp_path)
        world = EtcdWorld(board, tmp_path, f"c-{uuid.uuid4().hex[:10]}", running, MEMORY)
        check(*run(world, board))


def test_a_cluster_on_ray_survives_chaos(tmp_path: Path) -> None:
    with ExitStack() as running:
        board = Board(tmp_path)
        world = RayWorld(board, running, MEMORY)
        check(*run(world, board))
