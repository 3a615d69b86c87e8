#include "bindings/held_draws.h"

namespace di::py {

std::list<Held>& orphans() {
  static auto* const all = new std::list<Held>;
  return *all;
}

void require_own(Draws& draws) {
  if (draws.is_own()) return;
  draws.set() = DrawSet{};
  throw Error(Code::kStoreError, "this batch was drawn in the parent process, which still holds it; draw in the child");
}

void end_draws(Draws& draws, bool delivered) {
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

void end_copied(Draws& draws, const std::vector<bool>& open) {
  try {
    // Of a part this is tried for a moment only: what stays held is released with the next part, or with all.
    draws.table->draws.copied(&draws.set(), open.empty() ? Deadline::slice() : Deadline::brief(), open);
  } catch (...) {
    rethrow_lasting();  // else the chunks are released later; the batch is complete all the same
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
      return;  // its table's lock is not available; the current call may be about another table
    } catch (...) {
      if (!held.set.items.empty()) orphans().splice(orphans().end(), one);
      throw;
    }
  }
}

}  // namespace di::py
