"""Clusters in virtual time, from the code that decides in the product: without sockets, threads or clocks.

From the repository root::

    python -m tests.cluster.sim --seeds 10000     # each rule of the tests, for so many random histories
    python -m tests.cluster.sim --nodes 1000      # how long weights take to so many, and what each link carries
    python -m tests.cluster.sim --actors 100000   # so many writers beside agents that die: no row lost, none twice

`tools/broadcast.py` measures what ``--nodes`` computes, with few nodes; docs/network_figures.md has both.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cluster import test_transfer, test_window
from cluster.simulated import Group


def histories(seeds: int) -> None:
    """The rules that the tests check for a few seeds."""

    def count(small: int, full: int) -> int:
        return seeds

    test_window.test_every_call_is_made_once(count)
    test_window.test_only_the_rest_of_cut_episodes_is_dropped(count)
    test_transfer.test_living_members_get_the_newest_despite_failures(count)
    for dies in (False, True):
        test_transfer.test_one_member_that_fails_delays_the_others_by_two_seconds(dies, count)


def broadcast(members: int, size: int, rate: float) -> tuple[float, float]:
    """Seconds until the last member has a version, and the most bytes that a node sends, by those of the version."""
    group = Group([rate] * (members + 1), size, tick=0.001)
    group.publish()
    while not all(node.finished for node in group.nodes[1:]):
        group.run(0.05)
        assert group.now < 600
    return max(node.finished[1] for node in group.nodes[1:]), max(node.sent for node in group.nodes) / size


def actors(number: int) -> None:
    """So many writers, of twenty rows each, beside broken connections and agents that die."""
    for seed in range(number):
        agent, window, _ = test_window.run(seed, 20, spans=seed % 2 == 1)
        assert agent.table == sorted(set(agent.table)), f"writer {seed}: twice, or out of order"
        assert len(agent.table) + window.lanes.dropped == 20, f"writer {seed}: lost"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=0)
    parser.add_argument("--actors", type=int, default=0)
    parser.add_argument("--megabytes", type=float, default=159)
    parser.add_argument("--mbit", type=float, default=500)
    asked = parser.parse_args()
    began = time.monotonic()
    if asked.seeds:
        histories(asked.seeds)
        print(f"{asked.seeds} histories of each kind hold ({time.monotonic() - began:.0f} s)", flush=True)
    members = [each for each in (1, 2, 4, 8, 64, asked.nodes) if 0 < each <= asked.nodes]
    for each in dict.fromkeys(members):
        seconds, most = broadcast(each, int(asked.megabytes * 1e6), asked.mbit * 1e6 / 8)
        print(f"{each} members: {seconds:.2f} s; the most that one node sends: {most:.3f} of the version", flush=True)
    if asked.actors:
        began = time.monotonic()
        actors(asked.actors)
        print(f"{asked.actors} writers: no row lost, none twice ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
