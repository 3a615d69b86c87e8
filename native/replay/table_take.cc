// A small batch is drawn, copied and delivered in one hold of the lock: that is shorter than keeping count of its draws
// while they are copied outside it. No ledger entry and no use of a chunk is needed, as nothing leaves a table whose
// lock is held, and an item holds its chunks. Nothing changes before the copy but the counter of the random numbers;
// what changes then goes through the undo record: whoever is killed has drawn all of the batch, or nothing.
#include <algorithm>

#include "arena/learners.h"
#include "replay/table.h"

namespace di {

static_assert(kTakeItems + kBatchStep <= kUndoEntries);

bool Table::take(DrawSet* set, u32 n, const std::function<bool()>& copy, u64 deadline_ns) {
  if (n > kTakeItems) return false;
  {
    Guard guard(*this, deadline_ns);
    const i64 size = static_cast<i64>(header_.size);
    if (!draws_freely() || samples_allowed(limiter_in_force(header_), size, n) < n) return false;
    const u64 counter = header_.rng_counter;
    const double strata = header_.stratified != 0 ? n : 0;
    double stratum = 0;
    u32 slots[kTakeItems];
    double probabilities[kTakeItems];
    u32 picked = 0;
    while (picked < n) {
      const u32 count = std::min(n - picked, kBatchStep);
      if (!pick_many(count, &stratum, strata, slots + picked, probabilities + picked)) break;
      picked += count;
    }
    set->items.resize(picked);
    for (u32 i = 0; i < picked; ++i) {
      set->items[i] = describe(item(slots[i]), slots[i]);
      set->items[i].probability = probabilities[i];
    }
    note_table(set);
    DI_FAULT("table.take_drawn");
    if (picked < n || !copy()) {
      set->items.clear();
      header_.rng_counter = counter;
      return false;
    }
    DI_FAULT("table.take_copied");
    change();
    note_learner(*arena_, index_);
    for (Drawn& drawn : set->items) {
      Item& entry = item(key_slot(drawn.key));
      // mutant: taken-items-count-no-use
      count_use(entry);
      drawn.uses = span_uses(entry.span);
      DI_FAULT("table.draw_item");
    }
    undo_.set(header_.limiter.samples, static_cast<u64>(header_.limiter.samples + n));
    undo_.set(header_.total_samples, header_.total_samples + n);
    commit();
    pass_on(set);
  }
  wake_inserts(set);
  settle(0);
  return true;
}

}  // namespace di
