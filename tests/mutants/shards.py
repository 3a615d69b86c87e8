"""Mutants of tables in parts over several nodes."""

from __future__ import annotations

from mutants.mutant import Mutant

SHARDS = "tests/cluster/test_shards.py"
LITTLE = "tests/cluster/test_who_has_seen_little.py"
LOST = "tests/cluster/test_sharded_writers.py"

MUTANTS = [
    Mutant(
        "shards-are-drawn-alike",
        "shards",
        "masses / total",
        "(masses > 0) / (masses > 0).sum()",
        (f"{SHARDS}::test_draws_follow_their_probabilities",),
    ),
    Mutant(
        "weights-of-one-shard-alone",
        "shards",
        "batch.probabilities * shares",
        "batch.probabilities * 1.0",
        (f"{SHARDS}::test_weights_are_those_of_one_table",),
    ),
    Mutant(
        "shares-newer-than-the-draw",
        "shards",
        "self._chances.shares[shards_of(batch.keys)]",
        "by_mass(source.parts.answers.newest(0.0)).shares[shards_of(batch.keys)]",
        (f"{SHARDS}::test_weights_are_unbiased_while_masses_move",),
    ),
    Mutant(
        "each-shard-begins-by-itself",
        "shards",
        "if size < wanted and",
        "if False and",
        (f"{SHARDS}::test_draws_by_mass_wait_for_items",),
    ),
    Mutant(
        "a-limit-is-not-divided",
        "shards",
        "MinSize(part_of(limiter.n, shards))",
        "limiter",
        (f"{SHARDS}::test_each_shard_has_its_part_of_the_limits",),
    ),
    Mutant(
        "keys-without-their-shard",
        "shards",
        "with_shard(batch.keys, number)",
        "batch.keys",
        (f"{SHARDS}::test_one_stream_and_whole_items",),
    ),
    Mutant(
        "lanes-follow-no-hash",
        "shards",
        "live[chosen(lane_key(self._key, lane), live)]",
        "min(live.values())",
        (f"{SHARDS}::test_every_row_is_there_once_and_an_episode_in_one_shard",),
    ),
    Mutant(
        "a-lane-changes-its-shard-in-mid-episode",
        "shards",
        "self._cut |= cut",
        "cut[:] = False",
        (f"{LOST}::test_a_lost_node",),
    ),
    Mutant(
        "shards-that-are-missing-stay-so",
        "shards",
        "if self._entry(name, deadline) != entry:",
        "if True:",
        (f"{SHARDS}::test_whoever_opens_it_makes_what_is_missing",),
    ),
    Mutant(
        "a-part-is-taken-for-the-whole-table",
        "shards",
        "entry is None or ",
        "True or ",
        ("tests/cluster/test_lost_nodes.py::test_a_table_in_parts_while_the_directory_is_away",),
    ),
    Mutant(
        "a-late-call-asks-for-another-second",
        "shards",
        "newest(0.0, deadline)",
        "newest(0.0)",
        (f"{LOST}::test_a_late_call_does_not_ask_for_long_whether_a_shard_is_lost",),
    ),
    Mutant(
        "each-step-has-a-grace-of-its-own",
        "shards",
        "max((self.grace - after - spent) / steps, least)",
        "self.grace",
        ("tests/cluster/test_shard_deadlines.py",),
    ),
    Mutant(
        "parts-stay-where-an-agent-was-killed",
        "shards",
        "once=False",
        "once=True",
        ("tests/cluster/test_lost_nodes.py::test_an_agent_is_killed_while_a_table_is_dropped",),
    ),
    Mutant(
        "one-silent-part-takes-the-time-of-all",
        "shards",
        "deadline.another().sooner(0.0)",
        "deadline",
        ("tests/cluster/test_shard_deadlines.py::test_a_silent_part_leaves_time_for_the_others",),
    ),
    Mutant(
        "a-late-step-has-one-attempt",
        "shards",
        "found.tries = found.since - found.began + GRACE_SECONDS",
        "pass",
        ("tests/cluster/test_shard_deadlines.py::test_a_step_that_begins_late_connects_again",),
    ),
    Mutant(
        "a-table-is-opened-at-once-or-not",
        "shards",
        "open_remote(session, name, 0, deadline)",
        "open_remote(session, name, 0)",
        ("tests/cluster/test_silent_nodes.py::test_a_table_of_a_node_that_is_stopped_for_a_while",),
    ),
    Mutant(
        "the-directory-has-a-grace-of-its-own",
        "shards",
        "deadline.another()",
        "deadline.left",
        ("tests/cluster/test_silent_nodes.py::test_a_table_while_the_directory_has_just_fallen_silent",),
    ),
    Mutant(
        "a-peer-that-is-silent-fails-what-needs-no-directory",
        "shards",
        "raise unavailable(error.message) from None",
        "raise",
        (f"{LITTLE}::test_a_peer_that_does_not_say_what_it_keeps",),
    ),
    Mutant(
        "each-thread-waits-for-the-looks-of-all",
        "remote",
        "acquire(timeout=patience)",
        "acquire()",
        (f"{LITTLE}::test_a_call_waits_for_no_other_ones_look",),
    ),
    Mutant(
        "a-hasty-look-is-shared",
        "shards",
        "rest is None or rest >= LOOK_SECONDS / 2 or not self.directory.missing(found)",
        "True",
        (f"{LITTLE}::test_a_hasty_look_is_for_its_own_call",),
    ),
    Mutant(
        "a-node-that-is-silent-is-taken-for-gone",
        "shards",
        "and self.missing() and",
        "and False and",
        (f"{LITTLE}::test_a_table_is_dropped",),
    ),
    Mutant(
        "publishers-wait-for-each-other",
        "chain",
        "acquire(timeout=-1.0 if rest is None else rest)",
        "acquire()",
        (f"{LITTLE}::test_publishers_of_a_process_beside_each_other",),
    ),
    Mutant(
        "each-member-has-its-own-second",
        "chain",
        "deadline.another().sooner(_NEWEST_SECONDS)",
        "Deadline(_NEWEST_SECONDS)",
        (f"{LITTLE}::test_the_publisher_before_is_silent",),
    ),
    Mutant(
        "an-object-of-a-node-that-nobody-knows-is-not-there",
        "remote",
        "home is None and not found and",
        "False and",
        (f"{LITTLE}::test_an_object",),
    ),
    Mutant(
        "a-list-of-before-says-that-nodes-are-away",
        "remote",
        "fresh=True",
        "fresh=False",
        (f"{LITTLE}::test_copies_after_a_look_that_missed_a_node",),
    ),
    Mutant(
        "a-store-is-two-nodes",
        "remote",
        "if not same:",
        "if True:",
        ("tests/cluster/test_unlucky_clusters.py::test_a_store_that_is_a_node_is_served_once",),
    ),
]
