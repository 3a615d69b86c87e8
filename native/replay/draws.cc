#include "replay/draws.h"

#include <algorithm>

#include "process/learners.h"
#include "replay/answers.h"
#include "replay/due_groups.h"
#include "replay/lease_ends.h"
#include "replay/pace.h"
#include "replay/sample_age.h"

namespace di {
namespace {

constexpr u32 kAtOnce = 512;    // number of draws for which ledger entries are taken at a time
constexpr u32 kSpareUndo = 64;  // entries of the undo record left for the caller's other changes

}  // namespace

void describe(const Item& item, u32 slot, Drawn* to) {
  to->key = item.key(slot);
  to->number = item.number;
  to->chunk = item.chunk();
  to->row = item.row();
  to->rows = item.rows();
  to->back = static_cast<u16>(item.back());
  to->flags = static_cast<u16>(item.flags());
  to->uses = item.uses();
  to->version = item.version;
  to->priority = item.priority;
}

// ------------------------------------------------------------------------------------------------------------- drawing

namespace {

// Writes the ledger entry of a draw, which keeps its chunks. A lease counts for the draw itself.
void hold_drawn(TableCore& core, DrawSet* set, Drawn* drawn) {
  drawn->entry = set->spare.back();
  set->spare.pop_back();
  drawn->chunks = core.chunks.covered(drawn->chunk, drawn->row, drawn->rows);
  core.chunks.use(drawn->chunk, drawn->chunks, kUseOfReader);
  LedgerEntry& ledger = core.arena->ledger().entry(drawn->entry);
  ledger.ref.store(drawn->key, std::memory_order_relaxed);
  const LedgerKind kind = set->lease.on ? LedgerKind::kRead : LedgerKind::kDraw;
  core.undo.set(ledger.what, ledger_what(kind, core.index, drawn->chunk, drawn->chunks));
}

}  // namespace

void Draws::draw_one(DrawSet* set, u32 slot, double probability) {
  Item& item = core_.items[slot];
  Drawn drawn{};
  describe(item, slot, &drawn);
  drawn.probability = probability;
  if (set->chooses) drawn.pick = static_cast<u32>(core_.random.next() >> 32);
  if (!set->in_one_hold) hold_drawn(core_, set, &drawn);
  core_.uses.count(item);
  drawn.uses = item.uses();
  if (set->lease.on) {
    take_leases(core_, set, {&slot, 1}, set->in_one_hold);
  } else if (core_.uses.limited()) {
    core_.uses.add_undelivered(item);
    if (core_.uses.used_up(item)) {
      core_.end_live(slot);
      ++header_.held;
      core_.undo.set(item.state, item.state_as(ItemState::kHeld));
    }
  }
  DI_FAULT("table.draw_item");
  set->items.push_back(drawn);
  const u32 rows = core_.groups.size();
  if (rows == 1) return;
  if (!set->in_one_hold) return hold_answers(core_, set, slot);
  set->items.resize(set->items.size() + rows - 1);
  describe_answers(core_, slot, &set->items[set->items.size() - rows]);
}

// Whether all draws can be made at once: none of them changes the sampler, uses an item up or drops a stale one, and no
// item comes before the sampler's picks.
bool Draws::independent() const {
  return core_.selection.sampler().independent() && !core_.uses.limited() && header_.max_staleness < 0 &&
         header_.given_back == 0;
}

// The slot of the next draw; kNone: nothing can be drawn now.
u32 Draws::next_slot(DrawSet* set, DistinctPicks* distinct, const Strata& strata) {
  if (set->chosen != nullptr) return next_chosen(core_, set);
  if (header_.given_back == 0) [[likely]]
    return distinct->pick(strata);
  u32 picked = kNone;
  for (const bool begun : {false, true}) {
    if (begun) picked = distinct->pick(strata);  // may begin an epoch, for which items were given back
    for (u32 slot = core_.leases.next_given_back(); slot != kNone; slot = core_.leases.next_given_back()) {
      core_.leases.clear_mark(slot);
      if (!(core_.selection.sampler().probability(slot) > 0)) continue;  // its priority is 0 by now
      set->first.push_back(core_.items[slot].key(slot));
      return slot;
    }
  }
  return picked;
}

u32 Draws::draw_many(DrawSet* set, u32 count, Strata* strata, DistinctPicks* distinct) {
  u32 slots[kBatchStep];
  double probabilities[kBatchStep];
  u32 drawn = 0;
  while (drawn < count) {
    const u32 some = count - drawn;
    if (!core_.selection.sampler().pick_many(some, strata, slots, probabilities)) break;
    for (u32 i = 0; i < some; ++i) {
      __builtin_prefetch(&arena_.heap().descriptor(core_.items[slots[i]].chunk()), 1);
    }
    for (u32 i = 0; i < some; ++i) {
      if (!distinct->accept(slots[i])) continue;
      draw_one(set, slots[i], probabilities[i] * distinct->share());
      ++drawn;
    }
    distinct->after_picks();
  }
  return drawn;
}

u32 Draws::draw_singly(DrawSet* set, u32 want, Strata* strata, DistinctPicks* distinct) {
  Selector& sampler = core_.selection.sampler();
  u32 drawn = 0;
  for (; drawn < want && may_sample(draw_limiter(core_), static_cast<i64>(items_counted(core_.header)));
       distinct->after_picks()) {
    const u32 slot = next_slot(set, distinct, *strata);
    if (slot == kNone) break;
    const Item& item = core_.items[slot];
    if (core_.is_stale(item)) {
      if (core_.chunks.ending() >= kBatchStep) break;  // enough removals for one hold; draw() calls again
      ++header_.stale_dropped;
      // Counted for the item's writer, so that stats show which process's experience comes too late.
      const ChunkHeader& chunk = arena_.heap().chunk_memory.head(item.chunk());
      if (chunk.writer < kMaxClients) arena_.client(chunk.writer).stale_dropped.fetch_add(1, std::memory_order_relaxed);
      core_.remove(slot, GoneFor::kStale);
      continue;
    }
    strata->advance();
    if (!distinct->accept(slot)) continue;
    const double probability = set->chosen != nullptr ? set->chosen->probability(set->chosen->next++)
                                                      : sampler.probability(slot) * distinct->share();
    core_.undo.set(header_.limiter.samples, static_cast<u64>(header_.limiter.samples + 1));
    draw_one(set, slot, probability);
    if (item.is(ItemState::kLive)) sampler.drawn(slot);
    ++drawn;
  }
  return drawn;
}

u32 Draws::draw_step(DrawSet* set, u32 want, Strata* strata) {
  DistinctPicks distinct(core_, set);
  u32 drawn = 0;
  if (independent() && !set->lease.on && set->chosen == nullptr) {
    const u64 allowed = samples_allowed(draw_limiter(core_), static_cast<i64>(items_counted(core_.header)), want);
    drawn = allowed == 0 ? 0 : draw_many(set, static_cast<u32>(allowed), strata, &distinct);
    if (drawn != 0) core_.undo.set(header_.limiter.samples, static_cast<u64>(header_.limiter.samples + drawn));
  } else {
    drawn = draw_singly(set, want, strata, &distinct);
  }
  distinct.put_back();
  if (drawn != 0) core_.undo.set(header_.total_samples, header_.total_samples + drawn);
  return drawn;
}

// After draws were made, inserts may pass, and perhaps another learner's draws. This announces both, and wakes a
// learner; wake_inserts() wakes waiting inserts later.
void Draws::pass_on(DrawSet* set) {
  const i64 size = static_cast<i64>(items_counted(core_.header));
  core_.room_came().signal(0);
  if (may_insert(header_.limiter, size)) set->made_room = true;
  if (may_sample(draw_limiter(core_), size)) core_.items_came().signal(1);
}

// Wakes writers that wait for room. It runs once the batch is copied, or before the learner waits for more draws: woken
// earlier, writers would take the CPU from the learner in mid-batch. If the learner dies, they wake at their slice's end.
void Draws::wake_inserts(DrawSet* set) {
  if (!set->made_room) return;
  set->made_room = false;
  if (header_.room_waiters.load(std::memory_order_seq_cst) != 0) os::futex_wake(header_.room_seq, kMaxClients);
}

namespace {

std::string why_no_more(TableCore& core, const DrawSet& set) {
  const TableHeader& header = core.header;
  std::string why = why_no_sample(draw_limiter(core), static_cast<i64>(items_counted(core.header)), pace_weights(core));
  if (why.empty() && set.distinct && !set.items.empty() && header.size != 0)
    why = "the batch holds every item that can be drawn, and replace=False wants each once";
  if (why.empty() && header.size == 0) why = header.leased == 0 ? "the table is empty" : "no item is left to draw";
  if (why.empty()) why = core.selection.sampler().why_none();
  why += leased_text(header) + why_waiting(core);
  if (header.stale_dropped != 0)
    why += "; " + std::to_string(header.stale_dropped) +
           " items were dropped as older than max_staleness=" + std::to_string(header.max_staleness);
  return why;
}

// Takes room and ledger entries for `step` draws, and entries for more of `want` that may follow; one for each answer.
void prepare(const TableCore& core, DrawSet* set, u32 step, u32 want, Deadline deadline) {
  const u32 rows = core.groups.size();
  if (set->spare.size() < step * rows)
    core.arena->ledger().take(std::min(want, std::max(kAtOnce / rows, 1u)) * rows - static_cast<u32>(set->spare.size()),
                              &set->spare, deadline);
  if (set->items.capacity() - set->items.size() < step * rows) set->items.reserve(2 * set->items.size() + step * rows);
}

// Calls `what` with the client slot and ledger entry of every undelivered draw of the table.
template <class What>
void each_undelivered(const TableCore& core, What&& what) {
  for (u32 client = 0; client < kMaxClients; ++client)
    for_ledger_blocks(core.arena->heap(), client, [&core, client, &what](LedgerBlock& block, u32) {
      for (LedgerEntry& entry : block.entries) {
        const u64 word = entry.what.load();
        if (ledger_kind(word) == LedgerKind::kDraw && ledger_table(word) == core.index) what(client, entry);
      }
    });
}

struct Undrawn {  // after an exception the guard rolls the hold back; this makes its ledger entries spare again
  DrawSet* set;
  std::size_t before;
  bool over = false;
  ~Undrawn() {
    for (; !over && set->items.size() > before; set->items.pop_back())
      if (set->items.back().entry != kNone) set->spare.push_back(set->items.back().entry);
  }
};

}  // namespace

u32 Draws::draw(DrawSet* set, u32 want, Strata strata, Deadline deadline, std::string* why) {
  u32 total = 0;
  struct Shortfall {  // if draws are missing at the end, or after an exception: wakes the inserts before the wait
    Draws& draws;
    DrawSet* set;
    const u32 &total, want;
    ~Shortfall() {
      if (total < want) draws.wake_inserts(set);
    }
  } shortfall{*this, set, total, want};
  const u32 rows = core_.groups.size();  // each row takes a ledger entry and a Drawn
  set->items.reserve(set->items.size() + std::min(want, kAtOnce) * rows);
  if (set->distinct) set->keys.reserve(set->items.size() / rows + want);
  while (total < want) {
    const u32 step = std::min(want - total, std::max(kBatchStep / rows, 1u));
    prepare(core_, set, step, want - total, deadline);
    bool again = false;
    const u32 got = draw_in_a_hold(set, step, &strata, deadline, why, &again);
    total += got;
    if (got < step && !again) break;
  }
  core_.do_deferred(Deadline::only_try());
  return total;
}

// Makes up to `step` draws and returns their number. *again: if there are fewer, a further hold may make some.
u32 Draws::draw_in_a_hold(DrawSet* set, u32 step, Strata* strata, Deadline deadline, std::string* why, bool* again) {
  {
    TableGuard guard(core_, deadline);
    require_not_taken_over(core_);
    if (header_.leased != 0) end_due_leases(core_);
    end_due_groups(core_);
    if (!set->lease.on || core_.leases.free_places() >= step) {
      const i64 bytes = step * static_cast<i64>(header_.item_bytes);
      if (!core_.uses.limited() || arena_.heap().claims.hold(core_.index, bytes, deadline))
        return draw_held(set, step, strata, why, again);
      *why = "the store has no free memory to hold drawn items in; raise memory=, or sample fewer at once";
      return 0;
    }
  }
  ensure_lease_places(core_, step, deadline);
  *again = true;
  return 0;
}

u32 Draws::draw_held(DrawSet* set, u32 step, Strata* strata, std::string* why, bool* again) {
  Undrawn undrawn{set, set->items.size()};
  core_.change();
  if (set->items.empty()) set->rng_before = header_.rng_counter;
  const u64 outside_before = items_outside(core_.header);
  const u64 stale_before = header_.stale_dropped;
  const std::size_t missing_before = set->chosen == nullptr ? 0 : set->chosen->missing.size();
  const u32 got = draw_step(set, step, strata);
  if (got != 0) note_learner(arena_, core_.index);
  note_ages(*set, undrawn.before, &header_);
  *again = header_.stale_dropped != stale_before || is_group_due(header_) ||
           (set->chosen != nullptr && set->chosen->missing.size() != missing_before);
  set->rng_after = header_.rng_counter;
  note_table(set);
  set->table_size += set->lease.on ? got : items_outside(core_.header) - outside_before;  // as before the draws
  if (got < step) *why = why_no_more(core_, *set);
  set->paced_out = got < step && is_paced_out(core_);
  undrawn.over = true;
  core_.commit();
  if (got != 0) pass_on(set);
  core_.charge_held_soon();
  return got;
}

bool Draws::may_draw(u32 n, bool distinct) {
  TableGuard guard(core_, Deadline::only_try());
  end_due_groups(core_);
  const bool passes = samples_allowed(draw_limiter(core_), static_cast<i64>(items_counted(core_.header)), n) == n;
  if (header_.finished != 0) return passes || !is_paced(header_.limiter);  // fewer items may be left
  const u64 most = header_.max_times_sampled;
  const u64 each = distinct || most == 1 ? 1 : most == 0 ? u64{n} : most;
  return passes && header_.size >= (n + each - 1) / each;
}

// ------------------------------------------------------------------------------------------- delivering, giving back

void Draws::copied(DrawSet* set, Deadline deadline, const std::vector<bool>& open) {
  wake_inserts(set);
  const auto ends = [&](std::size_t i) { return set->items[i].chunks != 0 && (open.empty() || !open[i]); };
  const std::size_t count = set->items.size();
  for (std::size_t i = 0;;) {
    while (i < count && !ends(i)) ++i;
    if (i == count) break;
    TableGuard guard(core_, deadline);
    core_.change();
    for (u32 ended = 0; i < count && ended < kBatchStep; ++i) {
      if (!ends(i)) continue;
      Drawn& drawn = set->items[i];
      core_.chunks.end_later(drawn.chunk, drawn.chunks, kUseOfReader);
      Shared<u64>& what = arena_.ledger().entry(drawn.entry).what;
      const u64 was = what.load();  // a draw, or a read of peek()
      what.store(ledger_what(ledger_kind(was), core_.index, kNone) | (was & kLedgerDropped), std::memory_order_release);
      drawn.chunks = 0;
      ++ended;
    }
    core_.commit();
  }
  core_.do_deferred(Deadline::only_try());
}

// Ends one draw in its item's words. True: this ended the item's hold.
bool Draws::end_draw(u64 key, bool give_back) {
  const bool limited = core_.uses.limited();
  if (!give_back && !limited) return false;
  Item* const item = core_.items.find(key);
  if (item == nullptr) return false;
  if (give_back) {
    const bool leased_used_up = item->is(ItemState::kLeased) && limited && core_.uses.used_up(*item);
    core_.uses.uncount(*item);
    if (leased_used_up) --header_.leased_used_up;
    core_.selection.sampler().given_back(key_slot(key));
  }
  if (!limited) return false;
  core_.uses.end_undelivered(*item);
  if (!item->is(ItemState::kHeld)) return false;
  if (!core_.uses.used_up(*item)) {  // live again, in its old place of the order; the size may exceed the capacity
    core_.undo.set(item->state, item->state_as(ItemState::kLive));
    --header_.held;
    core_.make_live(key_slot(key));
    return true;
  }
  if (core_.uses.undelivered(*item) != 0) return false;  // another draw of it is not delivered yet
  --header_.held;
  core_.free_slot(key_slot(key), GoneFor::kUsedUp);
  return true;
}

namespace {

// For draws that are settled, or of a dropped table: gives back their ledger entries, cleared. Takes no shared lock.
void forget(Arena& arena, DrawSet* set) {
  for (const Drawn& drawn : set->items)
    if (drawn.entry != kNone) arena.ledger().entry(drawn.entry).what.store(0, std::memory_order_release);
  arena.ledger().give_of(set->items);
  arena.ledger().give(set->spare);
  set->items.clear();
  set->spare.clear();
}

}  // namespace

void Draws::end(DrawSet* set, bool give_back, Deadline deadline) {
  if (!core_.live()) return forget(arena_, set);
  wake_inserts(set);
  for (std::size_t first = 0; first < set->items.size(); first += kBatchStep) {
    TableGuard guard(core_, deadline);
    const std::size_t end = std::min(set->items.size(), first + kBatchStep);
    LeaseSession& session = set->lease.session;
    if (!give_back && session.mark != kNone && !is_ours(core_, session)) give_back = session.lost = true;
    if (set->lease.on) settle_leases(core_, *set, first, end, give_back);
    core_.change();
    u64 draws = 0, counted = 0;
    bool unheld = false;
    for (std::size_t i = first; i < end; ++i) {
      Drawn& drawn = set->items[i];
      if (drawn.entry == kNone) continue;
      LedgerEntry& entry = arena_.ledger().entry(drawn.entry);
      const u64 what = entry.what.load();
      if (drawn.chunks != 0) core_.chunks.end_later(drawn.chunk, drawn.chunks, kUseOfReader);
      if (ledger_kind(what) == LedgerKind::kDraw) {
        ++draws;
        if (!(what & kLedgerDropped)) ++counted;
        if (end_draw(drawn.key, give_back)) unheld = true;
        if (give_back && set->was_first(drawn.key)) core_.leases.mark_again(key_slot(drawn.key));
      }
      core_.undo.set(entry.what, 0);
      DI_FAULT("table.settle_item");
    }
    if (give_back && draws != 0) {
      core_.undo.set(header_.limiter.samples, static_cast<u64>(header_.limiter.samples - static_cast<i64>(counted)));
      core_.undo.set(header_.total_samples, header_.total_samples - draws);
      if (first == 0 && header_.rng_counter == set->rng_after) core_.undo.set(header_.rng_counter, set->rng_before);
    }
    if (give_back && !set->lease.on) core_.selection.sampler().end_give_back();
    core_.commit();
    for (std::size_t i = first; i < end; ++i) set->items[i].chunks = 0;  // a repeated call must not end a use twice
    core_.charge_held_soon();
    if (give_back) core_.items_came().signal(kMaxClients);
    if (!give_back && draws != 0 && header_.finished != 0)  // learners wait because these draws might be given back
      core_.items_came().signal(kMaxClients);
    if (!give_back || unheld) core_.room_came().signal(unheld ? kMaxClients : 0);
  }
  forget(arena_, set);
  core_.do_deferred(Deadline::only_try());
}

void Draws::settle_entry(LedgerEntry& entry, Deadline deadline) {
  {
    TableGuard guard(core_, deadline);
    core_.change();
    const u64 what = entry.what.load();
    const LedgerKind kind = ledger_kind(what);
    if (kind == LedgerKind::kWriter) --header_.writers;
    if (kind == LedgerKind::kDraw) {
      end_draw(entry.ref.load(), true);
      core_.selection.sampler().end_give_back();
      if (!(what & kLedgerDropped))
        core_.undo.set(header_.limiter.samples, static_cast<u64>(header_.limiter.samples - 1));
      core_.undo.set(header_.total_samples, header_.total_samples - 1);
    }
    if (holds_chunks(kind) && ledger_descriptor(what) != kNone)
      core_.chunks.end_later(ledger_descriptor(what), ledger_chunks(what), kUseOfReader);
    core_.undo.set(entry.what, 0);
    DI_FAULT("reap.draw_before_commit");
    core_.commit();
    core_.charge_held_soon();
    core_.items_came().signal(kMaxClients);
    core_.room_came().signal(kMaxClients);
  }
  core_.do_deferred(deadline);
}

// Sets the `dropped` bit in the ledger entries of undelivered draws: giving such a draw back does not lower `samples`.
// It uses the undo record while the record has room. After a kill, draws marked without the record stay marked, and
// `samples` is too high by their number.
void Draws::uncount_undelivered() {
  each_undelivered(core_, [this](u32, LedgerEntry& entry) {
    if (core_.undo.left() > kSpareUndo)
      core_.undo.set(entry.what, entry.what.load() | kLedgerDropped);
    else
      entry.what.fetch_or(kLedgerDropped);
  });
}

// Turns each undelivered draw into a read, which only holds the chunks that are being copied. If the undo record gets
// full, it is committed on the way. A kill after such a commit leaves the table empty, with `samples` too high by the
// number of draws that were turned into reads.
void Draws::forget_undelivered() {
  each_undelivered(core_, [this](u32, LedgerEntry& entry) {
    if (core_.undo.left() <= kSpareUndo) core_.commit();
    const u64 what = entry.what.load();
    core_.undo.set(entry.what,
                   ledger_what(LedgerKind::kRead, core_.index, ledger_descriptor(what), ledger_chunks(what)));
  });
}

u64 Draws::undelivered(u32* client, Deadline deadline) {
  TableGuard guard(core_, deadline);
  u64 count = 0;
  const auto note = [&](u32 who) {
    if (count++ == 0 || *client == arena_.slot()) *client = who;
  };
  each_undelivered(core_, [&](u32 who, const LedgerEntry&) { note(who); });
  for (u64 place = 0; place < core_.leases.places(); ++place)
    if (is_held(core_.leases.at(place))) note(client_of(core_, core_.leases.at(place)));
  return count;
}

}  // namespace di
