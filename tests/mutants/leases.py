"""Mutants of leases: who holds an item, how that ends, and what comes back."""

from __future__ import annotations

from mutants.mutant import Mutant

LEASES = "tests/replay/test_leases.py"
KILLED = "tests/replay/test_leases_killed.py"
LOADER = "tests/replay/test_leased_loader.py"
MIXTURE = "tests/replay/test_leased_mixture.py"
CLIENTS = "tests/client/test_client_leases.py"
PROGRAM = "native:test_leases"

MUTANTS = [
    Mutant(
        "a-leased-item-is-drawn-again",
        "leases",
        "native/replay/lease_ends.cc::take_leases",
        "  end_live(core, slots);",
        "",
        (f"{LEASES}::test_nobody_else_draws_a_leased_item",),
    ),
    Mutant(
        "a-late-acknowledgement-ends-the-next-lease",
        "leases",
        "native/replay/leases.cc::Leases::find",
        "return number == kNoLease || lease->number == number ? lease : nullptr;",
        "return lease;",
        (f"{LEASES}::test_what_comes_back_is_drawn_next_and_undoes_its_draw",),
    ),
    Mutant(
        "draws-given-back-by-leases-stay-counted",
        "leases",
        "native/replay/lease_ends.cc::LeaseHold::commit",
        "core_.header.total_samples - undrawn_",
        "core_.header.total_samples",
        (f"{LEASES}::test_what_comes_back_is_drawn_next_and_undoes_its_draw", KILLED),
    ),
    Mutant(
        "given-back-items-wait-for-their-turn",
        "leases",
        "native/replay/draws.cc::Draws::independent",
        " &&\n         header_.given_back == 0",
        "",
        (f"{LEASES}::test_given_back_items_come_first_whoever_draws",),
    ),
    Mutant(
        "the-dead-keep-their-leases",
        "leases",
        "native/replay/lease_ends.cc::is_orphaned",
        "return lock_owner_word(slot, core.arena->client(slot).generation.load(std::memory_order_acquire)) != word;",
        "return false;",
        (KILLED,),
    ),
    Mutant(
        "leases-never-end-by-themselves",
        "leases",
        "native/replay/lease_ends.cc::end_due_leases",
        "if (now < lease.end_ns && !is_orphaned(core, lease)) {",
        "if (!is_orphaned(core, lease)) {",
        (f"{LEASES}::test_a_waiting_call_gets_what_comes_back_by_itself",),
    ),
    Mutant(
        "an-ended-lease-lowers-the-epoch",
        "leases",
        "native/replay/lease_ends.cc::LeaseHold::commit",
        "  if (undrawn_ != 0) {\n",
        "  {\n",
        (f"{LEASES}::test_calls_on_ended_leases_touch_nothing",),
    ),
    Mutant(
        "checkpoints-lose-leased-items",
        "leases",
        "native/snapshot/snapshot.cc::copy_leased",
        "    image->draws.push_back(key);\n",
        "",
        (f"{LEASES}::test_files_hold_leased_items_as_not_drawn",),
    ),
    Mutant(
        "a-killed-growth-forgets-leases",
        "leases",
        "native/replay/leases.cc::Leases::move_to",
        "  if (before != 0) std::memcpy(static_cast<void*>(to), leases_, before * sizeof(Lease));\n",
        "",
        (f"{LEASES}::test_many_open_leases",),
    ),
    Mutant(
        "who-fails-at-a-value-fails-again",
        "leases",
        "native/replay/lease_ends.cc::settle_leases",
        "} else if (set.lease.ends) {",
        "} else if (false) {",
        (f"{LEASES}::test_values_that_cannot_be_loaded_are_acknowledged",),
    ),
    Mutant(
        "leases-end-while-a-batch-is-ahead",
        "leases",
        "native/replay/lease_ends.cc::take_leases",
        "delivered ? lease_end(now, set->lease.span_ns) : kLeaseNeverEnds",
        "lease_end(now, set->lease.span_ns)",
        (f"{LOADER}::test_the_seconds_begin_with_next",),
    ),
    Mutant(
        "a-loader-ends-while-its-batches-may-come-back",
        "leases",
        "src/di_store/replay/prefetch.py::Prefetch._note_end",
        "self._terms.lease is None or not self._queue",
        "True",
        (f"{LOADER}::test_a_finished_table_gives_each_item_until_it_is_acknowledged",),
    ),
    Mutant(
        "a-dropped-table-keeps-the-leases-of-others",
        "leases",
        "src/di_store/replay/mixture.py::MixtureBackend._in_each",
        "except TableNotFound:",
        "except ZeroDivisionError:",
        (f"{MIXTURE}::test_a_dropped_table_does_not_keep_the_others",),
    ),
    Mutant(
        "a-mixture-ends-leases-of-a-later-draw",
        "leases",
        "src/di_store/replay/mixture.py::MixtureBackend._in_each",
        "else numbers[place]",
        "else ANY_LEASE",
        (f"{MIXTURE}::test_each_table_holds_its_part", f"{MIXTURE}::test_a_lease_belongs_to_who_drew_it"),
    ),
    Mutant(
        "leases-end-with-their-agent",
        "leases",
        "native/replay/lease_ends.cc::settle_leases",
        "      lease->holder = session_holder(session.mark) | (lease->holder & kLeaseUncounted);\n",
        "",
        (f"{CLIENTS}::test_leases_outlive_agents", PROGRAM),
    ),
    Mutant(
        "a-loader-hands-out-what-a-dead-agent-has-lost",
        "leases",
        "src/di_store/client/drawing.py::RemoteDraws.deliver",
        "not holds_all(self._lease, self._seconds, deadline)",
        "False",
        (f"{CLIENTS}::test_an_agent_dies_while_a_batch_is_delivered",),
    ),
    Mutant(
        "a-replaced-agent-delivers-leases",
        "leases",
        "native/replay/lease_ends.cc::is_ours",
        "mark->owner.load(std::memory_order_relaxed) == session.owner",
        "true",
        (PROGRAM,),
    ),
    Mutant(
        "sessions-outlive-their-last-agent",
        "leases",
        "native/replay/lease_ends.cc::is_over",
        "return process == 0 || owner_gone(*core.arena, process);",
        "return false;",
        (PROGRAM,),
    ),
    Mutant(
        "leases-of-undelivered-batches-are-extended",
        "leases",
        "native/replay/lease_ends.cc::is_delivered",
        "lease.end_ns == kLeaseNeverEnds || ",
        "",
        (PROGRAM,),
    ),
    Mutant(
        "agents-forget-who-has-leases",
        "leases",
        "src/di_store/server/peer.py::Peer.is_needed",
        " or self.leases.any",
        "",
        (f"{CLIENTS}::test_leases_outlive_a_broken_connection",),
    ),
]
