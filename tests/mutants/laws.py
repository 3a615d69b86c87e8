"""Mutants of draws by a law of the caller's: of chosen items, and up to a budget."""

from __future__ import annotations

from mutants.mutant import Mutant

LAWS, BUDGETS = "tests/replay/test_laws.py", "tests/replay/test_budgets.py"
KILLED = "tests/replay/test_laws_killed.py"

MUTANTS = [
    Mutant(
        "chosen-draws-are-weighed-by-the-sampler",
        "laws",
        "native/replay/draws.cc::Draws::draw_singly",
        "set->chosen->probability(set->chosen->next++)",
        "(set->chosen->next++, sampler.probability(slot))",
        (f"{LAWS}::test_weights_follow_from_the_given_probabilities",),
    ),
    Mutant(
        "chosen-draws-at-once-have-no-probability",
        "laws",
        "native/replay/chosen.cc::find_chosen",
        "chosen.probability(i)",
        "1",
        (f"{LAWS}::test_the_laws_of_the_documentation_draw_as_they_say",),
    ),
    Mutant(
        "what-is-held-is-drawn-by-its-key",
        "laws",
        "native/replay/chosen.cc::drawable",
        "core.items[slot].is(ItemState::kLive)",
        "!core.items[slot].is(ItemState::kFree)",
        (f"{LAWS}::test_items_that_cannot_be_drawn_are_named_and_nothing_is_drawn",),
    ),
    Mutant(
        "an-epoch-draws-a-key-twice",
        "laws",
        "native/replay/once.cc::OnceSelector::may_draw",
        "uses_.drawn_epochs(items_[slot]) <= header_.epoch",
        "true",
        (f"{LAWS}::test_items_that_cannot_be_drawn_are_named_and_nothing_is_drawn",),
    ),
    Mutant(
        "a-mark-outlives-the-draw-by-its-key",
        "laws",
        "native/replay/chosen.cc::next_chosen",
        "        core.leases.clear_mark(slot);\n",
        "",
        (f"{LAWS}::test_items_that_were_given_back_still_come_before_others",),
    ),
    Mutant(
        "draws-above-a-budget-count",
        "laws",
        "native/bindings/held_draws.cc::keep_first",
        "end_draws(rest, false)",
        "end_draws(rest, true)",
        (f"{BUDGETS}::test_a_batch_is_the_longest_row_of_items_that_fit",),
    ),
    Mutant(
        "draws-up-to-a-budget-are-of-a-slice",
        "laws",
        "src/di_store/replay/laws.py::Budget.draw",
        "draw(draws, wanted, False)",
        "draw(draws, wanted, True)",
        (f"{BUDGETS}::test_draws_up_to_a_budget_follow_the_samplers_law",),
    ),
    Mutant(
        "a-budget-forgets-earlier-steps",
        "laws",
        "src/di_store/replay/laws.py::Budget._fill",
        "sums = self._sum + np.cumsum",
        "sums = np.cumsum",
        (f"{BUDGETS}::test_every_sampler_keeps_to_a_budget",),
    ),
    Mutant(
        "a-look-is-a-change-of-a-finished-table",
        "laws",
        "native/replay/draws.cc::Draws::end",
        "!give_back && draws != 0 && header_",
        "!give_back && header_",
        (f"{LAWS}::test_a_chosen_draw_from_a_finished_table_ends",),
    ),
    Mutant(
        "a-held-lock-ends-a-chosen-draw",
        "laws",
        "src/di_store/replay/laws.py::_find",
        "except Timeout:",
        "except KeyError:",
        (f"{LAWS}::test_a_chosen_draw_waits_for_the_lock_of_a_stopped_process",),
    ),
    Mutant(
        "a-chosen-draw-waits-for-what-is-gone",
        "laws",
        "src/di_store/replay/laws.py::Chosen.draw",
        "return count + len(missing) >= terms.n",
        "return tried >= terms.n",
        (f"{LAWS}::test_a_chosen_draw_waits_for_the_limiter",),
    ),
    Mutant(
        "killed-chosen-draws-count-for-the-limiter",
        "laws",
        "native/replay/draws.cc::Draws::draw_singly",
        "core_.undo.set(header_.limiter.samples, static_cast<u64>(header_.limiter.samples + 1))",
        "++header_.limiter.samples",
        (KILLED,),
    ),
]
