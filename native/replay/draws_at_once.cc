#include "replay/draws.h"

#include "process/learners.h"
#include "replay/answers.h"
#include "replay/lease_ends.h"
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
// whose lock is held, and an item holds its chunks. Until the copy is done only the counter of the random numbers
// changes. Later changes go through the undo record, so a killed process has drawn all of the batch, or nothing.
bool Draws::draw_at_once(DrawSet* set, u32 n, const std::function<bool()>& copy, Deadline deadline) {
  const u32 rows = core_.groups.size();
  if (n > kAtOnceItems / rows) return false;
  if (set->distinct) set->keys.reserve(n);
  {
    TableGuard guard(core_, deadline);
    require_not_taken_over(core_);
    if (core_.leases.in_use()) end_due_leases(core_);
    if (set->lease.on && (n > kAtOnceLeases || core_.leases.free_places() < n)) return false;
    const i64 size = static_cast<i64>(core_.counted());
    if (!independent() || samples_allowed(limiter_in_force(header_), size, n) < n) return false;
    if (set->distinct && n > header_.size) return false;
    const u64 counter = header_.rng_counter;
    u32 slots[kAtOnceItems];
    Item* items[kAtOnceItems];
    double probabilities[kAtOnceItems];
    const u32 picked = pick_for_take(core_, set, n, slots, probabilities);
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
    note_learner(arena_, core_.index);
    note_ages(*set, 0, &header_);
    for (u32 i = 0; i < picked; ++i) {
      Drawn& drawn = set->items[i * rows];
      core_.uses.count(*items[i]);
      drawn.uses = items[i]->uses();
      if (i % UsedChunks::kReadsOf == 0) core_.chunks.note_read(drawn.chunk, drawn.row, drawn.rows);
      DI_FAULT("table.draw_item");
    }
    if (set->lease.on) take_leases(core_, set, {slots, picked}, true);
    core_.undo.set(header_.limiter.samples, static_cast<u64>(header_.limiter.samples + n));
    core_.undo.set(header_.total_samples, header_.total_samples + n);
    core_.commit();
    pass_on(set);
  }
  wake_inserts(set);
  core_.do_deferred(Deadline::only_try());
  return true;
}

}  // namespace di
