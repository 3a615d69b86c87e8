#include "replay/settings.h"

#include <cstring>

#include "replay/answers.h"
#include "replay/new_blocks.h"
#include "replay/pace.h"
#include "replay/priorities.h"
#include "replay/recovery.h"
#include "replay/texts.h"

namespace di {
namespace {

constexpr u32 kWordsToCountAnew = 64;  // of the undo record; forgetting draws commits when it needs more

}  // namespace

std::string TableSettings::text(const Shared<u32>& block) const {
  const u32 named = block.load(std::memory_order_acquire);
  std::string found;
  const bool sound = named == 0 || read_text(*core_.arena, named, &found);
  core_.require_live();  // checked after the read: otherwise the text may be another table's
  if (!sound) throw Error(Code::kCorruptData, "a text of table '" + core_.name + "' is damaged");
  return found;
}

bool TableSettings::declare_schema(const std::string& text, const Reserve& reserve, u64 item_bytes, Deadline deadline) {
  return patiently(*core_.arena, deadline, [&] { return try_declare(text, reserve, item_bytes, deadline); });
}

bool TableSettings::try_declare(const std::string& text, const Reserve& reserve, u64 item_bytes, Deadline deadline) {
  Heap& heap = core_.arena->heap();
  NewBlocks made(*core_.arena, core_.index);
  const u32 block = made.add(text.size() + 8, deadline);
  write_text(heap, block, text);
  for (;;) {
    u64 missing = 0;
    {
      TableGuard guard(core_, deadline);
      if (header_.schema_block != 0) return false;
      if (reserve.bytes == 0)
        header_.chunk_block.store(reserve.chunk_block);
      else
        missing = heap.claims.reserve_now(core_.index, reserve, deadline);
      if (missing == 0) {
        heap.claims.lower_reserve(core_.index, deadline);
        core_.change();
        made.seal();
        header_.item_bytes = item_bytes;
        header_.schema_block.store(block, std::memory_order_release);  // pairs with the acquire in text()
        return true;
      }
    }
    heap.claims.make_room(missing, deadline);  // takes locks of tables: not under this one
  }
}

u64 TableSettings::keep_gone_keys(Deadline deadline) {
  return patiently(*core_.arena, deadline, [&] {
    NewBlocks made(*core_.arena, core_.index);
    {
      TableGuard guard(core_, deadline);
      if (core_.gone.kept()) return core_.gone.count();
    }
    const u32 block = made.add(kGoneKeys * sizeof(u64), deadline);
    TableGuard guard(core_, deadline);
    if (core_.gone.kept()) return core_.gone.count();
    made.seal();
    core_.gone.begin(block);
    return core_.gone.count();
  });
}

void TableSettings::reset(Deadline deadline) {
  for (bool more = true; more;) {
    {
      TableGuard guard(core_, deadline);
      require_filled();
      core_.change();
      const OrderList& order = core_.items.order();
      const auto any = [&order] { return order.first() != kNone ? order.first() : order.first_waiting(); };
      for (u32 i = 0; i < kBatchStep && any() != kNone; ++i) {
        commit_if_short(core_, words_to_remove(core_) + kWordsToCountAnew);
        core_.remove(any(), GoneFor::kReset);
      }
      more = any() != kNone;
      if (!more) count_anew();
      core_.commit();
      core_.charge_held_soon();
      if (!more) core_.room_came().signal(kMaxClients);
    }
    core_.do_deferred(Deadline::only_try());
  }
}

void TableSettings::set_limiter(const LimiterState& fresh) {
  constexpr u64 kWords = sizeof(LimiterState) / sizeof(u64);
  u64 words[kWords];
  std::memcpy(words, &fresh, sizeof words);
  for (u64 i = 0; i < kWords; ++i) {
    u64& word = reinterpret_cast<u64*>(&header_.limiter)[i];
    if (word != words[i]) core_.undo.set(word, words[i]);  // `queue` and `weights` never change, and are read freely
  }
}

// Resets an empty table to the state of a new one, except for its settings and its largest priority.
void TableSettings::count_anew() {
  draws_.forget_undelivered();
  LimiterState fresh = header_.limiter;
  fresh.inserts = fresh.samples = 0;
  fresh.since = pace_version(core_);
  set_limiter(fresh);
  for (u64* word : {&header_.epoch, &header_.latest_epoch, &header_.finished, &header_.total_inserts,
                    &header_.total_samples, &header_.total_removed})
    core_.undo.set(*word, 0);
  header_.total_updates = header_.stale_updates = header_.evicted_for_room = 0;
  header_.stale_dropped = header_.episodes_cut = header_.groups_dropped = header_.groups_short = 0;
  header_.late_answers = 0;
  if (core_.groups.on()) core_.ended.forget();
  header_.steps_left_out.store(0, std::memory_order_relaxed);
  header_.sample_age = -1;
}

// Throws kInvalid unless the table, with this alpha, accepts the priorities of all its items and of new ones.
void TableSettings::require_alpha(double alpha) {
  const PriorityRange range = priority_range(static_cast<SamplerKind>(header_.sampler), alpha);
  const double fresh = header_.initial_priority >= 0 ? header_.initial_priority : header_.max_priority;
  require_priorities(range, {&fresh, 1}, "the priority of new items; alpha was not changed");
  for (u32 slot = 0; slot < core_.items.slots(); ++slot) {
    const Item& item = core_.items[slot];
    if (!item.is(ItemState::kFree)) require_priorities(range, {&item.priority, 1}, "an item's; alpha was not changed");
  }
}

void TableSettings::announce() {
  core_.items_came().signal(kMaxClients);
  core_.room_came().signal(kMaxClients);
}

void TableSettings::configure(const LimiterState* limiter, const double* alpha, const double* beta,
                              const i64* max_staleness, Deadline deadline, bool opens) {
  TableGuard guard(core_, deadline);
  if (!opens) require_filled();
  if (alpha != nullptr && *alpha != header_.alpha) require_alpha(*alpha);
  core_.change();
  if (limiter != nullptr && is_paced(*limiter)) {
    LimiterState before = header_.limiter;
    if (opens) before.samples = 0, before.since = pace_version(core_);
    set_limiter(paced_anew(*limiter, before, pace_version(core_)));
    core_.commit();
  } else if (limiter != nullptr) {
    if (limiter->queue == 0) {
      draws_.uncount_undelivered();
      for (u64 place = 0; place < core_.leases.places(); ++place)
        if (is_held(core_.leases.at(place))) core_.leases.at(place).holder |= kLeaseUncounted;
    }
    set_limiter(counted_anew(*limiter, static_cast<i64>(items_counted(core_.header)),
                             static_cast<i64>(items_outside(core_.header))));
    core_.commit();
  }
  if (beta != nullptr) header_.beta = *beta;
  if (max_staleness != nullptr) header_.max_staleness = *max_staleness;
  if (alpha != nullptr && *alpha != header_.alpha) {
    double raised_to = *alpha;
    __atomic_store(&header_.alpha, &raised_to, __ATOMIC_RELAXED);  // priority_range() reads it without the lock
    TableRecovery(core_).fill();
  }
  announce();
}

void TableSettings::require_filled() const {
  require_not_taken_over(core_);
  if (is_being_imported(header_.limiter))
    throw Error(Code::kStoreError, "table '" + std::string(header_.name) + "': " + kImportText).told();
}

void TableSettings::finish(Deadline deadline) {
  TableGuard guard(core_, deadline);
  require_filled();
  header_.finished = kFinished;
  if (header_.short_groups != 0) header_.group_due_ns.store(0, std::memory_order_relaxed);
  announce();
}

void TableSettings::give_up(Deadline deadline) {
  TableGuard guard(core_, deadline);
  header_.finished = kTakenOver;
  announce();
}

// A kill in between leaves some of the counts, and items in another order. That is harmless: the table is not open for
// draws yet (kBeingImported).
void TableSettings::restore(const RestoredCounts& counts, std::span<const u64> keys, Deadline deadline) {
  TableGuard guard(core_, deadline);
  core_.change();
  core_.undo.set(header_.epoch, counts.epoch);
  core_.undo.set(header_.latest_epoch, counts.latest_epoch);
  core_.undo.set(header_.rng_counter, counts.rng_counter);
  core_.undo.set(header_.next_number, u64{keys.size()} + 1);
  core_.commit();
  for (u64 i = 0; i < keys.size(); ++i)
    if (Item* const item = core_.items.find(keys[i]); item != nullptr) item->number = i + 1;  // else: deleted meanwhile
  TableRecovery(core_).fill();
  header_.max_priority = counts.max_priority;
  __atomic_store_n(&header_.max_bytes, counts.max_bytes, __ATOMIC_RELAXED);  // Budget reads it without this lock
}

}  // namespace di
