#include "replay/draws.h"

#include "process/learners.h"
#include "replay/answers.h"
#include "replay/due_groups.h"
#include "replay/lease_ends.h"
#include "replay/pace.h"
#include "replay/sample_age.h"

namespace di {
namespace {

static_assert(kAtOnceItems + kBatchStep <= kUndoEntries);
constexpr u32 kAtOnceLeases = 128;  // the most draws of one draw_at_once() with a lease
static_assert(kAtOnceLeases * (1 + kWordsOfLease) + kBatchStep <= kUndoEntries);

// Returns how many items it picked. These are fewer than n if nothing can be drawn, or if so many picks are of items
// that the call already has that draw() is the better way.
u32 pick_for_take(TableCore& core, DrawSet* set, u32 n, u32* slots, double* probabilities) {
  Strata strata{0, core.header.stratified != 0 ? static_cast<double>(n) : 0};
  u32 picked = 0, rejected = 0;
  while (picked < n && rejected <= kBatchStep + n) {
    const u32 count = std::min(n - picked, kBatchStep);
    if (!core.selection.sampler().pick_many(count, &strata, slots + picked, probabilities + picked)) break;
    if (!set->distinct) {
      picked += count;
      continue;
    }
    const u32 end = picked + count;
    for (u32 i = picked; i < end; ++i) {
      if (!set->keys.insert(core.items[slots[i]].key(slots[i]))) continue;
      slots[picked] = slots[i];
      probabilities[picked++] = probabilities[i];
    }
    rejected += end - picked;
  }
  return picked;
}

}  // namespace

// Draws, copies and delivers a small batch in one hold of the lock. This takes less time than to note the draws, copy
// outside the lock and deliver in another hold. It needs no ledger entry and no use of a chunk: no item leaves a table
// whose lock is held, and an item holds its chunks.
bool Draws::draw_at_once(DrawSet* set, u32 n, const std::function<bool()>& copy, Deadline deadline) {
  if (n > kAtOnceItems / core_.groups.size()) return false;
  {
    TableGuard guard(core_, deadline);
    require_not_taken_over(core_);
    if (header_.leased != 0) end_due_leases(core_);
    end_due_groups(core_);
    if (set->lease.on && core_.leases.free_places() < n) return false;
    const bool drawn = set->lease.on && !independent() ? lease_held(set, n, copy, deadline) : take_held(set, n, copy);
    if (!drawn) return false;
    note_learner(arena_, core_.index);
    note_ages(*set, 0, &header_);
    pass_on(set);
  }
  wake_inserts(set);
  core_.do_deferred(Deadline::only_try());
  return true;
}

// Until the copy is done only the counter of the random numbers changes. Later changes go through the undo record, so a
// killed process has drawn all of the batch, or nothing; with a lease some of it, which the others give back.
bool Draws::take_held(DrawSet* set, u32 n, const std::function<bool()>& copy) {
  const u32 rows = core_.groups.size();
  const i64 size = static_cast<i64>(items_counted(core_.header));
  const bool chosen = set->chosen != nullptr;
  if (!(chosen ? keys_are_independent(core_) : independent())) return false;
  if (samples_allowed(draw_limiter(core_), size, n) < n) return false;
  if (set->distinct && n > header_.size) return false;
  if (set->distinct) set->keys.reserve(n);
  const u64 counter = header_.rng_counter;
  u32 slots[kAtOnceItems];
  Item* items[kAtOnceItems];
  double probabilities[kAtOnceItems];
  const u32 picked = chosen ? find_chosen(core_, *set->chosen, n, slots, probabilities)
                            : pick_for_take(core_, set, n, slots, probabilities);
  set->items.resize(picked * rows);
  for (u32 i = 0; i < picked; ++i) {
    Drawn* to = &set->items[i * rows];
    items[i] = &core_.items[slots[i]];
    describe(*items[i], slots[i], to);
    to->probability = probabilities[i];
    if (set->chooses) to->pick = static_cast<u32>(core_.random.next() >> 32);
    if (rows > 1) describe_answers(core_, slots[i], to);
  }
  note_table(set);
  DI_FAULT("table.take_drawn");
  if (picked < n || !copy()) {
    set->items.clear();
    header_.rng_counter = counter;
    return false;
  }
  DI_FAULT("table.take_copied");
  core_.change();
  const u32 step = set->lease.on ? kAtOnceLeases : kAtOnceItems;
  for (u32 first = 0; first < picked; first += step) {
    const u32 end = std::min(picked, first + step);
    for (u32 i = first; i < end; ++i) {
      Drawn& drawn = set->items[i * rows];
      core_.uses.count(*items[i]);
      drawn.uses = items[i]->uses();
      if (i % UsedChunks::kReadsOf == 0) core_.chunks.note_read(drawn.chunk, drawn.row, drawn.rows);
      DI_FAULT("table.draw_item");
    }
    if (set->lease.on) take_leases(core_, set, {slots + first, end - first}, true);
    core_.undo.set(header_.limiter.samples, static_cast<u64>(header_.limiter.samples + (end - first)));
    core_.undo.set(header_.total_samples, header_.total_samples + (end - first));
    core_.commit();
  }
  return true;
}

// The same with a lease, for tables whose draws influence each other. Draws first, and gives back if the copy is not
// possible.
bool Draws::lease_held(DrawSet* set, u32 n, const std::function<bool()>& copy, Deadline deadline) {
  if (n > header_.size) return false;
  const i64 bytes = static_cast<i64>(n * header_.item_bytes);
  if (core_.uses.limited() && !arena_.heap().claims.hold(core_.index, bytes, deadline)) return false;
  core_.change();
  set->distinct = false;  // a leased item is not drawn again
  set->in_one_hold = true;
  set->items.reserve(n * core_.groups.size());
  Strata strata{0, header_.stratified != 0 ? static_cast<double>(n) : 0};
  u32 drawn = 0;
  for (u32 some = 1; some != 0 && drawn < n; drawn += some) {
    some = draw_step(set, std::min(n - drawn, kBatchStep), &strata);
    core_.commit();
  }
  note_table(set);
  set->table_size += drawn;
  const auto give_back = [&] {
    settle_leases(core_, *set, 0, set->items.size(), true);
    set->items.clear();
    set->first.clear();
    return false;
  };
  try {
    if (drawn < n || !copy()) return give_back();
  } catch (...) {
    give_back();
    throw;
  }
  core_.charge_held_soon();
  return true;
}

}  // namespace di
