#include "bindings/held_draws.h"

namespace di::py {

std::list<Held>& orphans() {
  static auto* const all = new std::list<Held>;
  return *all;
}

void require_own(CallDraws& draws) {
  if (draws.is_own()) return;
  draws.set() = DrawSet{};
  throw Error(Code::kStoreError, "this batch was drawn in the parent process, which still holds it; draw in the child");
}

void end_draws(CallDraws& draws, bool delivered) {
  try {
    if (delivered)
      draws.table->draws.deliver(&draws.set(), Deadline::slice());
    else
      draws.table->draws.give_back(&draws.set(), Deadline::slice());
  } catch (...) {
    rethrow_lasting();
    draws.leave(delivered);
  }
}

void deliver_some(CallDraws& draws, const std::vector<u32>& places) {
  std::vector<bool> wanted(draws.count());
  for (const u32 place : places)
    if (place < wanted.size()) wanted[place] = true;
  const u32 rows = draws.table->core.groups.size();
  CallDraws some(draws.table, false);
  some.set().lease = draws.set().lease;
  some.set().lease.ends = true;
  std::vector<Drawn>& all = draws.set().items;
  std::vector<Drawn> others;
  others.reserve(all.size());
  some.set().items.reserve(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) (wanted[i / rows] ? some.set().items : others).push_back(all[i]);
  all.swap(others);
  draws.set().rng_after = ~u64{0};  // no counter has this value: delivered draws' random numbers must not repeat
  end_draws(some, true);
  end_draws(draws, false);
}

void keep_first(CallDraws& draws, u32 count) {
  require_own(draws);
  std::vector<Drawn>& all = draws.set().items;
  const std::size_t kept = std::min(all.size(), std::size_t{count} * draws.table->core.groups.size());
  CallDraws rest(draws.table, false);
  rest.set().lease = draws.set().lease;
  rest.set().first = draws.set().first;
  rest.set().rng_after = ~u64{0};  // no counter has this value: the random numbers of kept draws must not repeat
  const auto from = all.begin() + static_cast<std::ptrdiff_t>(kept);
  rest.set().items.assign(from, all.end());
  all.erase(from, all.end());
  end_draws(rest, false);
}

void end_copied(CallDraws& draws, const std::vector<bool>& open) {
  try {
    // For a part the lock is tried only briefly: the next part, or the whole batch, ends the remaining uses.
    draws.table->draws.copied(&draws.set(), open.empty() ? Deadline::slice() : Deadline::brief(), open);
  } catch (...) {
    rethrow_lasting();  // other errors: the batch is complete, and its chunks are released later
  }
}

void settle_orphans() {
  while (!orphans().empty()) {
    std::list<Held> one;
    one.splice(one.begin(), orphans(), std::prev(orphans().end()));
    Held& held = one.front();
    if (!held.table->arena().owns(held.fork_generation)) continue;
    try {
      if (held.delivered)
        held.table->draws.deliver(&held.set, Deadline::brief());
      else
        held.table->draws.give_back(&held.set, Deadline::brief());
    } catch (const Error& error) {
      if (!held.set.items.empty()) orphans().splice(orphans().end(), one);
      if (error.code() != Code::kTimeout) throw;
      return;  // its table's lock is not available; the current call may use another table
    } catch (...) {
      if (!held.set.items.empty()) orphans().splice(orphans().end(), one);
      throw;
    }
  }
}

}  // namespace di::py
