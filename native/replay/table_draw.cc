// Drawing items, delivering or giving back the draws. A draw is: uses + 1, samples + 1, a ledger entry, uses of the
// chunks. Whoever dies with undelivered draws has them given back by the reaper, exactly as a Timeout does.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "arena/learners.h"
#include "replay/table.h"

namespace di {
namespace {

constexpr u64 kPending = u64{1} << 32;  // of Item::state, where uses are limited: one undelivered draw
constexpr u64 kStateMask = 15;
constexpr u32 kAtOnce = 512;  // draws that room is made for before they are asked for

void prefetch(const Item& item) {  // about half of them lie in two cache lines
  __builtin_prefetch(&item.state, 1);
  __builtin_prefetch(&item.span, 1);
}

bool is(const Item& item, ItemState state) { return (item.state & kStateMask) == static_cast<u64>(state); }

}  // namespace

// Counter-based (splitmix64 of seed and counter): the same seed and history give the same draws, also after a restart.
u64 Table::next_random() {
  // mutant: seed-ignored
  u64 x = header_.seed + 0x9e3779b97f4a7c15u * ++header_.rng_counter;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

double Table::unit_random() { return static_cast<double>(next_random() >> 11) * 0x1p-53; }

// What a draw tells of an item; uses without it, and the chunks it covers not yet.
Drawn Table::describe(const Item& entry, u32 slot) const {
  Drawn drawn{};
  drawn.key = make_key(entry.state >> 4 & kGenerationMask, slot);
  drawn.number = entry.number;
  drawn.chunk = static_cast<u32>(entry.place >> 32);
  drawn.row = static_cast<u32>(entry.place);
  drawn.rows = span_rows(entry.span);
  drawn.back = span_back(entry.span);
  drawn.flags = span_flags(entry.span);
  drawn.uses = span_uses(entry.span);
  drawn.version = entry.version;
  drawn.priority = entry.priority;
  return drawn;
}

void Table::draw_one(DrawSet* set, u32 slot, double probability, u32 number) {
  Item& entry = item(slot);
  Drawn drawn = describe(entry, slot);
  drawn.chunks = cover(drawn.chunk, drawn.row, drawn.rows);
  drawn.probability = probability;
  drawn.entry = number;
  // mutant: drawn-rows-are-not-held
  use_chunks(drawn.chunk, drawn.chunks, +1);
  LedgerEntry& ledger = arena_->ledger().entry(number);
  ledger.ref.store(drawn.key, std::memory_order_relaxed);
  undo_.set(ledger.what, ledger_what(LedgerKind::kDraw, index_, drawn.chunk, drawn.chunks));
  count_use(entry);
  drawn.uses = span_uses(entry.span);
  if (header_.max_times_sampled != 0) {
    undo_.set(entry.state, entry.state + kPending);
    // mutant: used-up-items-stay-in-the-queue
    if (drawn.uses >= header_.max_times_sampled) {
      leave(slot);
      ++header_.held;
      undo_.set(entry.state, (entry.state & ~kStateMask) | static_cast<u64>(ItemState::kHeld));
    }
  }
  if (header_.sampler == static_cast<u64>(SamplerKind::kOnce) && is(entry, ItemState::kLive)) {
    const u64 epochs = drawn_epochs(entry);
    // mutant: drawn-items-stay-in-the-epoch
    if (epochs > header_.epoch) parts_.dense->mark_drawn(slot);
    if (parts_.best) parts_.best->set(slot, static_cast<double>(epochs), entry.number);
  }
  DI_FAULT("table.draw_item");
  set->items.push_back(drawn);
}

// Per writer, for its operator: whose experience comes too late.
void Table::count_stale(const Item& entry) {
  const ChunkHeader& chunk = chunk_header(arena_->heap(), static_cast<u32>(entry.place >> 32));
  if (chunk.writer < kMaxClients) arena_->client(chunk.writer).stale_dropped.fetch_add(1, std::memory_order_relaxed);
}

double Table::chance(u32 slot) const {
  switch (static_cast<SamplerKind>(header_.sampler)) {
    case SamplerKind::kUniform: return 1.0 / static_cast<double>(header_.size);
    case SamplerKind::kOnce: return parts_.dense->drawn(slot) ? 0.0 : 1.0 / static_cast<double>(header_.dense_left);
    case SamplerKind::kPrioritized: {
      const double total = parts_.sums->total();
      return total > 0 ? parts_.sums->get(slot) / total : 0.0;
    }
    default: return 1.0;
  }
}

// One slot by the sampler, kNone when nothing can be drawn now.
u32 Table::pick(double stratum_first, double strata) {
  switch (static_cast<SamplerKind>(header_.sampler)) {
    case SamplerKind::kFifo: return first_live();
    case SamplerKind::kLifo: return last_live();
    case SamplerKind::kMinHeap:
    case SamplerKind::kMaxHeap: return parts_.best->best();
    case SamplerKind::kUniform: {
      if (header_.dense_count == 0) return kNone;
      return parts_.dense->at(scaled(next_random(), header_.dense_count));
    }
    case SamplerKind::kOnce: {
      if (!open_epoch()) return kNone;
      if (header_.shuffle == 0) return parts_.best->best();
      return parts_.dense->at(scaled(next_random(), header_.dense_left));
    }
    case SamplerKind::kPrioritized: break;
  }
  const double total = parts_.sums->total();
  if (!(total > 0)) return kNone;
  const double unit = unit_random();
  const double target = total * (strata > 0 ? (stratum_first + unit) / strata : unit);
  u32 slot = kNone;
  parts_.sums->find(&target, 1, &slot);
  return slot;
}

bool Table::draws_freely() const {
  const auto kind = static_cast<SamplerKind>(header_.sampler);
  return (kind == SamplerKind::kUniform || kind == SamplerKind::kPrioritized) && header_.max_times_sampled == 0 &&
         header_.max_staleness < 0;
}

// At most kBatchStep slots, all at once, level by level; false: none can be drawn. For tables that draws_freely().
bool Table::pick_many(u32 count, double* stratum, double strata, u32* slots, double* probabilities) {
  if (header_.sampler == static_cast<u64>(SamplerKind::kUniform)) {
    const u64 present = header_.dense_count;
    if (present == 0) return false;
    u64 positions[kBatchStep];
    for (u32 i = 0; i < count; ++i) {
      positions[i] = scaled(next_random(), present);
      parts_.dense->prefetch(positions[i]);
    }
    for (u32 i = 0; i < count; ++i) {
      slots[i] = parts_.dense->at(positions[i]);
      probabilities[i] = 1.0 / static_cast<double>(present);
      prefetch(item(slots[i]));
    }
    return true;
  }
  const double total = parts_.sums->total();
  if (!(total > 0)) return false;
  double targets[kBatchStep];
  for (u32 i = 0; i < count; ++i) {
    const double unit = unit_random();
    targets[i] = total * (strata > 0 ? (*stratum + unit) / strata : unit);
    if (strata > 0) *stratum += 1;
  }
  parts_.sums->find(targets, count, slots);
  for (u32 i = 0; i < count; ++i) {
    probabilities[i] = parts_.sums->get(slots[i]) / total;
    prefetch(item(slots[i]));
  }
  return true;
}

u32 Table::draw_many(DrawSet* set, u32 count, double* stratum, double strata) {
  u32 slots[kBatchStep];
  double probabilities[kBatchStep];
  if (!pick_many(count, stratum, strata, slots, probabilities)) return 0;
  for (u32 i = 0; i < count; ++i) {
    __builtin_prefetch(&arena_->heap().descriptor(static_cast<u32>(item(slots[i]).place >> 32)), 1);
  }
  for (u32 i = 0; i < count; ++i) {
    const u32 number = set->spare.back();
    set->spare.pop_back();
    draw_one(set, slots[i], probabilities[i], number);
  }
  return count;
}

u32 Table::draw_step(DrawSet* set, u32 want, double* stratum, double strata) {
  u32 drawn = 0;
  if (draws_freely()) {
    const u64 allowed = samples_allowed(limiter_in_force(header_), static_cast<i64>(header_.size), want);
    drawn = allowed == 0 ? 0 : draw_many(set, static_cast<u32>(allowed), stratum, strata);
    if (drawn != 0) undo_.set(header_.limiter.samples, static_cast<u64>(header_.limiter.samples + drawn));
  } else {
    while (drawn < want && may_sample(limiter_in_force(header_), static_cast<i64>(header_.size))) {
      const u32 slot = pick(*stratum, strata);
      if (slot == kNone) break;
      Item& entry = item(slot);
      if (stale(entry)) {
        if (lower_.size() >= kBatchStep) break;  // enough for one hold; the caller comes again
        ++header_.stale_dropped;
        count_stale(entry);
        remove_slot(slot, true);
        continue;
      }
      const double probability = chance(slot);
      const u32 number = set->spare.back();
      set->spare.pop_back();
      undo_.set(header_.limiter.samples, static_cast<u64>(header_.limiter.samples + 1));
      draw_one(set, slot, probability, number);
      ++drawn;
      if (strata > 0) *stratum += 1;
    }
  }
  if (drawn != 0) undo_.set(header_.total_samples, header_.total_samples + drawn);
  return drawn;
}

// What the importance weights of these draws need to know of the table.
void Table::note_table(DrawSet* set) const {
  // mutant: batches-of-another-table-size
  set->table_size = header_.size;
  if (parts_.sums) set->total = parts_.sums->total();
  if (parts_.minimum && parts_.minimum->best() != kNone) set->least = parts_.minimum->key(parts_.minimum->best());
}

// Draws were made: inserts may pass now, and perhaps another learner. The inserts are woken later, by wake_inserts().
void Table::pass_on(DrawSet* set) {
  const i64 size = static_cast<i64>(header_.size);
  wake(header_.room_seq, header_.room_waiters, 0);
  // mutant: draw-announces-no-room
  if (may_insert(header_.limiter, size)) set->made_room = true;
  if (may_sample(limiter_in_force(header_), size)) wake(header_.items_seq, header_.items_waiters, 1);
}

u32 Table::draw(DrawSet* set, u32 want, double stratum_first, double strata, u64 deadline_ns, std::string* why) {
  u32 total = 0;
  double stratum = stratum_first;
  struct Shortfall {  // by an exception too
    Table& table;
    DrawSet* set;
    const u32 &total, want;
    ~Shortfall() {
      if (total < want) table.wake_inserts(set);
    }
  } shortfall{*this, set, total, want};
  set->items.reserve(set->items.size() + std::min(want, kAtOnce));
  while (total < want) {
    const u32 step = std::min(want - total, kBatchStep);
    if (set->spare.size() < step)
      arena_->ledger().take(std::min(want - total, kAtOnce) - static_cast<u32>(set->spare.size()), &set->spare,
                            deadline_ns);
    if (set->items.capacity() - set->items.size() < step) set->items.reserve(2 * set->items.size() + step);
    u32 got = 0;
    bool again = false;
    {
      Guard guard(*this, deadline_ns);
      struct Undrawn {  // after an error the hold is rolled back: its ledger entries are spare again
        DrawSet* set;
        std::size_t before;
        bool over = false;
        ~Undrawn() {
          for (; !over && set->items.size() > before; set->items.pop_back())
            set->spare.push_back(set->items.back().entry);
        }
      } undrawn{set, set->items.size()};
      const bool limited = header_.max_times_sampled != 0;
      const i64 each = static_cast<i64>(header_.item_bytes);
      if (limited && !arena_->heap().hold(index_, step * each, deadline_ns)) {
        *why = "the store has no free memory to hold drawn items in; raise memory=, or sample fewer at once";
        break;
      }
      change();
      if (set->items.empty()) set->rng_before = header_.rng_counter;
      const u64 held_before = header_.held;
      const u64 stale_before = header_.stale_dropped;
      got = draw_step(set, step, &stratum, strata);
      if (got != 0) note_learner(*arena_, index_);
      const u64 held = header_.held - held_before;
      again = header_.stale_dropped != stale_before;
      set->rng_after = header_.rng_counter;
      note_table(set);
      if (limited) set->table_size += held;
      const i64 size = static_cast<i64>(header_.size);
      if (got < step) {
        *why = di::why_no_sample(limiter_in_force(header_), size);
        if (why->empty())
          *why = size == 0     ? "the table is empty"
                 : parts_.sums ? "all " + std::to_string(size) + " priorities are 0: give some with update_priorities()"
                               : "every item was drawn in each of the epochs=" + std::to_string(header_.epochs);
        if (header_.stale_dropped != 0)
          *why += "; " + std::to_string(header_.stale_dropped) +
                  " items were dropped as older than max_staleness=" + std::to_string(header_.max_staleness);
      }
      undrawn.over = true;
      commit();
      if (got != 0) pass_on(set);
      settle_held_soon();
    }
    total += got;
    if (got < step && !again) break;
  }
  settle(0);
  return total;
}

// ----------------------------------------------------------------------------------------------- the end of the draws

void Table::copied(DrawSet* set, u64 deadline_ns) {
  wake_inserts(set);
  for (std::size_t first = 0; first < set->items.size(); first += kBatchStep) {
    Guard guard(*this, deadline_ns);
    change();
    const std::size_t end = std::min(set->items.size(), first + kBatchStep);
    for (std::size_t i = first; i < end; ++i) {
      Drawn& drawn = set->items[i];
      if (drawn.chunks == 0) continue;
      lower_.push_back({drawn.chunk, drawn.chunks});
      Shared<u64>& what = arena_->ledger().entry(drawn.entry).what;
      const u64 was = what.load();  // a draw, or a read of peek()
      what.store(ledger_what(ledger_kind(was), index_, kNone) | (was & kLedgerDropped), std::memory_order_release);
      drawn.chunks = 0;
    }
    commit();
  }
  settle(0);
}

// The item side of one draw that ends; true: a held item is held no more.
bool Table::settle_draw(u64 key, bool give_back) {
  if (!give_back && header_.max_times_sampled == 0) return false;
  const u32 slot = key_slot(key);
  if (slot >= parts_.slots) return false;
  Item& entry = item(slot);
  const bool there = (entry.state & kStateMask) != 0 && (entry.state >> 4 & kGenerationMask) == key_generation(key);
  if (there && give_back) uncount_use(entry);
  if (there && give_back && header_.sampler == static_cast<u64>(SamplerKind::kOnce)) {
    const u64 epochs = drawn_epochs(entry);
    if (epochs < header_.epoch) behind_ = true;
    if (epochs <= header_.epoch) parts_.dense->mark_undrawn(slot);
    if (parts_.best && is(entry, ItemState::kLive)) parts_.best->set(slot, static_cast<double>(epochs), entry.number);
  }
  if (!there || header_.max_times_sampled == 0) return false;
  undo_.set(entry.state, entry.state - kPending);
  const bool spent = span_uses(entry.span) >= header_.max_times_sampled;
  if (!is(entry, ItemState::kHeld)) return false;
  if (!spent) {  // back in its place in the order; may lift the table above its capacity
    undo_.set(entry.state, (entry.state & ~kStateMask) | static_cast<u64>(ItemState::kLive));
    --header_.held;
    join(slot, true);
    return true;
  }
  if (pending(entry) != 0) return false;  // somebody else has not received it yet
  --header_.held;
  forget(slot);
  return true;
}

// The table was dropped: nothing to settle, the entries only justify themselves.
void Table::forget_draws(DrawSet* set) {
  for (const Drawn& drawn : set->items) {
    if (drawn.entry == kNone) continue;
    arena_->ledger().entry(drawn.entry).what.store(0, std::memory_order_release);
    arena_->ledger().give(drawn.entry);
  }
  arena_->ledger().give(set->spare);
  set->items.clear();
  set->spare.clear();
}

void Table::finish_draws(DrawSet* set, bool give_back, u64 deadline_ns) {
  if (!live()) return forget_draws(set);
  wake_inserts(set);
  for (std::size_t first = 0; first < set->items.size(); first += kBatchStep) {
    Guard guard(*this, deadline_ns);
    change();
    const std::size_t end = std::min(set->items.size(), first + kBatchStep);
    u64 draws = 0, counted = 0;
    bool unheld = false;
    for (std::size_t i = first; i < end; ++i) {
      Drawn& drawn = set->items[i];
      if (drawn.entry == kNone) continue;
      LedgerEntry& entry = arena_->ledger().entry(drawn.entry);
      const u64 what = entry.what.load();
      if (drawn.chunks != 0) lower_.push_back({drawn.chunk, drawn.chunks});
      if (ledger_kind(what) == LedgerKind::kDraw) {
        ++draws;
        if (!(what & kLedgerDropped)) ++counted;
        if (settle_draw(drawn.key, give_back)) unheld = true;
      }
      undo_.set(entry.what, 0);
      DI_FAULT("table.settle_item");
    }
    if (give_back && draws != 0) {
      undo_.set(header_.limiter.samples, static_cast<u64>(header_.limiter.samples - static_cast<i64>(counted)));
      undo_.set(header_.total_samples, header_.total_samples - draws);
      if (first == 0 && header_.rng_counter == set->rng_after) undo_.set(header_.rng_counter, set->rng_before);
    }
    if (give_back) rewind_epoch();
    commit();
    for (std::size_t i = first; i < end; ++i) set->items[i].chunks = 0;  // a repeated call lowers nothing twice
    settle_held_soon();
    // mutant: give-back-announces-nothing
    if (give_back) wake(header_.items_seq, header_.items_waiters, kMaxClients);
    if (!give_back && header_.finished != 0)  // who waits for these draws to come back waits in vain
      wake(header_.items_seq, header_.items_waiters, kMaxClients);
    if (!give_back || unheld) wake(header_.room_seq, header_.room_waiters, unheld ? kMaxClients : 0);
  }
  forget_draws(set);
  settle(0);
}

void Table::deliver(DrawSet* set, u64 deadline_ns) { finish_draws(set, false, deadline_ns); }
void Table::give_back(DrawSet* set, u64 deadline_ns) { finish_draws(set, true, deadline_ns); }

void Table::settle_entry(LedgerEntry& entry, u64 deadline_ns) {
  {
    Guard guard(*this, deadline_ns);
    change();
    const u64 what = entry.what.load();
    const LedgerKind kind = ledger_kind(what);
    if (kind == LedgerKind::kWriter) --header_.writers;
    if (kind == LedgerKind::kDraw) {
      // mutant: draws-of-the-dead-not-given-back
      settle_draw(entry.ref.load(), true);
      rewind_epoch();
      if (!(what & kLedgerDropped)) undo_.set(header_.limiter.samples, static_cast<u64>(header_.limiter.samples - 1));
      // mutant: draws-of-the-dead-stay-counted
      undo_.set(header_.total_samples, header_.total_samples - 1);
    }
    if ((kind == LedgerKind::kDraw || kind == LedgerKind::kRead) && ledger_descriptor(what) != kNone)
      lower_.push_back({ledger_descriptor(what), ledger_chunks(what)});
    undo_.set(entry.what, 0);
    DI_FAULT("reap.draw_before_commit");
    commit();
    settle_held_soon();
    wake(header_.items_seq, header_.items_waiters, kMaxClients);
    wake(header_.room_seq, header_.room_waiters, kMaxClients);
  }
  settle(deadline_ns);
}

// Calls `what` with the client and entry of every undelivered draw of the table.
template <class What>
void Table::each_draw(What&& what) {
  for (u32 client = 0; client < kMaxClients; ++client)
    for_ledger_blocks(*arena_, client, [this, client, &what](LedgerBlock& block, u32) {
      for (LedgerEntry& entry : block.entries) {
        const u64 word = entry.what.load();
        if (ledger_kind(word) == LedgerKind::kDraw && ledger_table(word) == index_) what(client, entry);
      }
    });
}

// The limiter counts anew: draws made before are not its own when they are given back. They carry the mark that says so,
// through the undo record; of very many the last are marked beside it: a kill then leaves the samples too high by those.
void Table::uncount_draws() {
  constexpr u32 kSpare = 64;  // entries left for what else the caller changes
  each_draw([this](u32, LedgerEntry& entry) {
    if (undo_.left() > kSpare)
      undo_.set(entry.what, entry.what.load() | kLedgerDropped);
    else
      entry.what.fetch_or(kLedgerDropped);
  });
}

// The table is empty and counts anew. A draw whose item is gone has nothing to give back and counts nowhere any more: it
// becomes a read, which only holds the chunks it copies from. Where the undo record has no room for all of them it is
// committed on the way: a kill then leaves the table empty, and `samples` too high by the draws that became reads.
void Table::forget_undelivered() {
  constexpr u32 kSpare = 64;  // entries left for what else the caller changes
  each_draw([this](u32, LedgerEntry& entry) {
    if (undo_.left() <= kSpare) commit();
    const u64 what = entry.what.load();
    undo_.set(entry.what, ledger_what(LedgerKind::kRead, index_, ledger_descriptor(what), ledger_chunks(what)));
  });
}

u64 Table::undelivered(u32* client, u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  u64 count = 0;
  each_draw([&](u32 who, const LedgerEntry&) {
    if (count++ == 0 || *client == arena_->slot()) *client = who;
  });
  return count;
}

}  // namespace di
