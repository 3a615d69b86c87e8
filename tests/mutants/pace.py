"""Mutants of a pace: what draws count, who wakes them, what gives room back, and why items left."""

from __future__ import annotations

from mutants.mutant import Mutant

PACE = "tests/replay/test_pace.py"
HERE = "tests/replay/test_pace_here.py"
EVICTED = "tests/replay/test_evicted.py::test_each_key_says_why_its_item_left"

MUTANTS = [
    Mutant(
        "versions-allow-no-draws",
        "pace",
        "native/replay/limiter.cc::limiter_in_force",
        "state.inserts = version - state.since;",
        "state.inserts = 0;",
        (f"{PACE}::test_a_version_allows_a_batch", "native:test_limiter"),
    ),
    Mutant(
        "a-pace-counts-from-the-first-version",
        "pace",
        "native/replay/directory.cc::TableDirectory::try_create",
        "  header.limiter.since = pace_version(table->core);\n",
        "",
        (f"{PACE}::test_a_version_allows_a_batch",),
    ),
    Mutant(
        "publish-lets-paced-draws-sleep",
        "pace",
        "native/objects/weights.cc::Weights::publish",
        "  wake_paced(index);\n",
        "",
        (f"{HERE}::test_publish_wakes_no_draws_for_other_weights",),
    ),
    Mutant(
        "dropped-work-keeps-its-room",
        "pace",
        "native/replay/lease_ends.cc::LeaseHold::end",
        "if (how != LeaseEnd::kAcknowledged && (lease.holder & kLeaseUncounted) == 0) ++uncounted_;",
        "if (how > LeaseEnd::kDropped && (lease.holder & kLeaseUncounted) == 0) ++uncounted_;",
        (f"{PACE}::test_what_is_not_trained_gives_its_room_back[dropped]",),
    ),
    Mutant(
        "a-finished-table-loses-its-pace",
        "pace",
        "src/di_store/replay/sampling.py::collecting",
        "if finished and not draws.paced_out:",
        "if finished:",
        (f"{PACE}::test_a_finished_table_keeps_its_pace_to_the_end",),
    ),
    Mutant(
        "workers-hold-what-the-trainer-waits-for",
        "pace",
        "src/di_store/replay/sampling.py::collecting",
        "if draws.paced_out and held and terms.short:",
        "if draws.paced_out and held and not terms:",
        (f"{PACE}::test_a_short_batch_rather_than_a_standstill",),
    ),
    Mutant(
        "a-new-pace-forgets-the-draws-ahead",
        "pace",
        "native/replay/limiter.cc::paced_anew",
        "before.samples - (version - before.since) * static_cast<i64>(before.ratio)",
        "0",
        (f"{PACE}::test_configure_keeps_the_draws_that_are_ahead", "native:test_limiter"),
    ),
    Mutant(
        "a-restored-table-has-no-pace",
        "pace",
        "native/snapshot/restore.cc::set_counts",
        "  limiter.weights = header.limiter.weights;",
        "",
        (f"{HERE}::test_a_checkpoint_goes_on_where_it_was",),
    ),
    Mutant(
        "who-waits-for-a-version-is-abandoned",
        "pace",
        "src/di_store/runtime/waits.py::SampleWait.check_attended",
        " or table.paced_out",
        "",
        (f"{HERE}::test_who_waits_for_a_version_is_not_abandoned",),
    ),
    Mutant(
        "all-items-leave-for-one-reason",
        "pace",
        "native/replay/gone_keys.h::GoneKeys",
        "key | u64{static_cast<u8>(why)} << kGoneForAt",
        "key | u64{why == GoneFor::kReset} << kGoneForAt",
        (EVICTED,),
    ),
]
