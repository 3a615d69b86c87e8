#include "replay/table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>

#include "replay/power.h"
#include "replay/priorities.h"
#include "rows/chunk_uses.h"

namespace di {

Table::Table(std::shared_ptr<Arena> arena, u32 index)
    : arena_(std::move(arena)),
      index_(index),
      generation_(arena_->table(index).generation.load()),
      fork_generation_(arena_->fork_generation()),
      header_(arena_->table(index)),
      name_(read_name(header_.name)),
      lock_(*arena_, header_.lock, "table '" + name_ + "'"),
      undo_(*arena_, header_.undo) {}

Table::~Table() {
  if (!arena_->owns(fork_generation_)) forget_parent();
}

Table::Guard::Guard(Table& table, u64 deadline_ns) : table_(table), exceptions_(std::uncaught_exceptions()) {
  const auto enter = [&table, deadline_ns]() DI_UNCHECKED {
    table.lock_.acquire(deadline_ns);
    try {
      if (table.fork_generation_ != table.arena_->fork_generation()) table.forget_parent();
      // mutant: table-not-rebuilt-after-a-death
      if (table.lock_.needs_recovery() || table.undo_.pending()) table.recover(deadline_ns);
      table.require_live();
      table.refresh();
      table.lower_.reserve(kMostRemovals);
    } catch (...) {  // what could not be recovered stays marked: the next owner tries again
      table.lock_.release();
      throw;
    }
  };
  patiently(*table.arena_, deadline_ns, enter);  // a recovery needs the heap
}

Table::Guard::~Guard() {
  const bool clean = std::uncaught_exceptions() == exceptions_;
  if (clean) {
    table_.header_.stat_size.store(table_.header_.size, std::memory_order_relaxed);
    if (!marked_) table_.lock_.end_change();
  } else {
    table_.forget_hold();
  }
  table_.lock_.release();
}

// What an error leaves of a hold: its words go back at once, so that ledger entries which the caller takes back are free,
// and nothing is lowered later for what did not happen. What is derived stays marked, for the next owner.
void Table::forget_hold() noexcept {
  lower_.clear();
  try {
    undo_.roll_back();
  } catch (...) {  // a damaged record: the next owner meets it too
  }
}

// In a forked child: what a thread of the parent was in the middle of is the parent's, and may be half changed here.
void Table::forget_parent() {
  fork_generation_ = arena_->fork_generation();
  new (&parts_) Parts{};  // not destroyed: its parts may be in any state
  new (&lower_) std::vector<Use>{};
  new (&detach_) std::vector<u32>{};
  new (&detach_later_) std::vector<u32>{};
  new (&close_later_) std::vector<u32>{};
  detach_pending_.store(false, std::memory_order_relaxed);
  late_.store(false, std::memory_order_relaxed);
}

// The state first: a generation that is still this one's says that the state seen before was too.
bool Table::live() const {
  return header_.state.load(std::memory_order_acquire) == 2 &&
         header_.generation.load(std::memory_order_acquire) == generation_;
}

void Table::require_live() const {
  if (!live()) throw Error(Code::kTableNotFound, "the table was dropped; create it again with store.create_table()");
}

// ------------------------------------------------------------------------------------------------------ small helpers

void Table::bad_slot() const { throw Error(Code::kCorruptData, "a list of table '" + name_ + "' is damaged"); }

double Table::mass(double priority) {
  // mutant: priority-zero-drawn
  if (priority <= 0) return 0;
  if (header_.alpha == 1) return priority;
  if (header_.alpha == 0) return 1;
  if (priority != mass_of_.priority || header_.alpha != mass_of_.alpha)  // items come with the largest one, mostly
    // mutant: alpha-applied-twice
    mass_of_ = {priority, header_.alpha, power(priority, header_.alpha)};
  return mass_of_.mass;
}

void Table::to_masses(const double* priorities, u32 count, double* masses) {
  if (header_.alpha == 0 || header_.alpha == 1) {
    for (u32 i = 0; i < count; ++i) masses[i] = mass(priorities[i]);
    return;
  }
  // mutant: alpha-applied-twice-to-updates
  powers(priorities, count, header_.alpha, masses);
  for (u32 i = 0; i < count; ++i)
    if (priorities[i] <= 0) masses[i] = 0;
}

void Table::wake(Shared<u32>& seq, Shared<u32>& waiters, u64 count) {
  seq.fetch_add(1, std::memory_order_seq_cst);  // after the change it announces; pairs with the load before a wait
  if (count != 0 && waiters.load(std::memory_order_seq_cst) != 0)
    os::futex_wake(seq, static_cast<u32>(std::min<u64>(count, kMaxClients)));
}

// Who waits for room is woken when the batch is copied, or before its learner waits for more: a core that the woken
// one takes at once would be the learner's, in the middle of a batch. Dying in between costs a waiter one slice.
void Table::wake_inserts(DrawSet* set) {
  if (!set->made_room) return;
  set->made_room = false;
  if (header_.room_waiters.load(std::memory_order_seq_cst) != 0) os::futex_wake(header_.room_seq, kMaxClients);
}

i64 Table::newest_version() const {
  return header_.weights == 0
             ? 0
             : arena_->weights(static_cast<u32>(header_.weights - 1)).newest.load(std::memory_order_acquire);
}

bool Table::stale(const Item& entry) const {
  return header_.max_staleness >= 0 && newest_version() - entry.version > header_.max_staleness;
}

// ------------------------------------------------------------------------------------------------ chunks and their uses

// Most ranges lie in one chunk, and most chunks are closed: their descriptors tell.
u32 Table::cover(u32 chunk, u32 row, u32 rows) {
  const u64 end = u64{row} + rows;
  if (end <= arena_->heap().descriptor(chunk).summary.rows.load(std::memory_order_relaxed)) return 1;
  return chunks_covered(arena_->heap(), chunk, row, rows);
}

void Table::use_chunks(u32 chunk, u32 count, i32 delta) {
  const Heap& heap = arena_->heap();
  for (u32 i = 0; i < count && chunk != kNone; ++i) {
    // Read before: the chunk may go with its last use. Where there is no other, its cache line is left alone.
    const u32 next = i + 1 < count ? chunk_header(heap, chunk).next.load(std::memory_order_acquire) - 1 : kNone;
    if (Uses* uses = uses_of(heap, chunk, index_)) {
      // release: what was read of the chunk, before whoever frees it; acquire: pairs with the close.
      const u32 now = uses->fetch_add(static_cast<u32>(delta), std::memory_order_acq_rel) + static_cast<u32>(delta);
      if (now == kUsesClosed) note_unused(chunk);
    }
    chunk = next;
  }
}

// After the commit: it may not fail. A chunk without a note is found by who is short of room (Heap::sweep_chunks).
void Table::note_unused(u32 chunk) noexcept {
  try {
    detach_.push_back(chunk);
    detach_pending_.store(true, std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {
  }
}

// The bytes that held items are charged follow their number: called under the lock before the guard ends, and after a
// recovery, so that no kill leaves them apart. They may go past the budget by what draw() has asked room for.
void Table::settle_held(u64 deadline_ns) {
  const u64 right = header_.held * header_.item_bytes, now = header_.held_bytes.load();
  if (right != now) arena_->heap().hold(index_, static_cast<i64>(right - now), deadline_ns, true);
}

// The same after a hold has had its effect. Where the heap is held up they stay too high, never too low: draw() has asked
// for more before. The next settle() lowers them.
void Table::settle_held_soon() {
  try {
    settle_held(Deadline::brief());
  } catch (...) {
    rethrow_lasting();
    be_late();
  }
}

void Table::be_late() {
  late_.store(true, std::memory_order_relaxed);
  detach_pending_.store(true, std::memory_order_relaxed);
}

void Table::commit() {
  undo_.commit();
  for (std::size_t i = 0; i < lower_.size();) {  // neighbours of one chunk go in one step
    const Use& use = lower_[i];
    i32 times = 0;
    for (; i < lower_.size() && lower_[i].chunk == use.chunk && lower_[i].count == use.count; ++i) ++times;
    use_chunks(use.chunk, use.count, -times);
  }
  lower_.clear();
}

// Frees chunks that no item of this table uses any more. With deadline 0 it only tries: after a call has had its effect,
// housekeeping must neither fail nor wait; the next call finds what is left.
void Table::settle(u64 deadline_ns) {
  if (!detach_pending_.load(std::memory_order_relaxed)) return;
  std::vector<u32> chunks;
  try {
    {
      Guard guard(*this, deadline_ns);
      chunks.swap(detach_);
      os::LocalGuard<std::recursive_mutex> local(arena_->local());
      chunks.insert(chunks.end(), detach_later_.begin(), detach_later_.end());
      detach_later_.clear();
      detach_pending_.store(false, std::memory_order_relaxed);
    }
    arena_->heap().detach(chunks, index_, deadline_ns);
    settle_late(deadline_ns);
  } catch (...) {
    try {
      os::LocalGuard<std::recursive_mutex> guard(arena_->local());
      detach_later_.insert(detach_later_.end(), chunks.begin(), chunks.end());
    } catch (const std::bad_alloc&) {  // a store that is short of room looks for chunks that nobody uses
    }
    detach_pending_.store(true, std::memory_order_relaxed);
    if (deadline_ns != 0) throw;
  }
}

// ------------------------------------------------------------------------------------- sampler, remover, order cursors

u32 Table::first_live() { return header_.first_live - 1; }
u32 Table::last_live() { return header_.last_live - 1; }

void Table::cursor_left(u32 slot) {
  Steps steps(2 * parts_.slots, "a table's order");
  const auto is_live = [this, &steps](u32 at) {
    steps.take();
    return (item(at).state & 15) == static_cast<u64>(ItemState::kLive);
  };
  if (header_.first_live == slot + 1) {
    u32 at = parts_.order->next(slot);
    while (at != kNone && !is_live(at)) at = parts_.order->next(at);
    header_.first_live = at + 1;
  }
  if (header_.last_live == slot + 1) {
    u32 at = parts_.order->previous(slot);
    while (at != kNone && !is_live(at)) at = parts_.order->previous(at);
    header_.last_live = at + 1;
  }
}

void Table::cursor_joined(u32 slot) {
  const u64 number = item(slot).number;
  if (header_.first_live == 0 || number < item(header_.first_live - 1).number) header_.first_live = slot + 1;
  if (header_.last_live == 0 || number > item(header_.last_live - 1).number) header_.last_live = slot + 1;
}

// A live item enters what draws and removes; `state` is set already.
void Table::join(u32 slot, bool) {
  const Item& entry = item(slot);
  const bool once = header_.sampler == static_cast<u64>(SamplerKind::kOnce);
  const u64 epochs = once ? drawn_epochs(entry) : 0;
  if (parts_.dense) parts_.dense->insert(slot, epochs <= header_.epoch);
  if (parts_.remover_dense) parts_.remover_dense->insert(slot, true);
  if (parts_.sums || parts_.minimum) {
    const double weight = mass(entry.priority);
    if (parts_.sums) parts_.sums->set(&slot, &weight, 1);
    if (parts_.minimum && weight > 0) parts_.minimum->set(slot, weight, entry.number);
  }
  if (parts_.best) parts_.best->set(slot, once ? static_cast<double>(epochs) : entry.priority, entry.number);
  if (parts_.remover_best) parts_.remover_best->set(slot, entry.priority, entry.number);
  cursor_joined(slot);
  ++header_.size;
}

void Table::leave(u32 slot) {
  if (parts_.dense) parts_.dense->erase(slot);
  if (parts_.remover_dense) parts_.remover_dense->erase(slot);
  if (parts_.sums) {
    const double zero = 0;
    parts_.sums->set(&slot, &zero, 1);
  }
  if (parts_.best) parts_.best->erase(slot);
  if (parts_.remover_best) parts_.remover_best->erase(slot);
  if (parts_.minimum) parts_.minimum->erase(slot);
  cursor_left(slot);
  --header_.size;
}

u32 Table::victim() {
  switch (static_cast<SamplerKind>(header_.remover)) {
    // mutant: fifo-removes-the-newest
    case SamplerKind::kFifo: return first_live();
    case SamplerKind::kLifo: return last_live();
    case SamplerKind::kUniform: return victim_uniform();
    default:
      return parts_.remover_best ? parts_.remover_best->best() : parts_.best ? parts_.best->best() : first_live();
  }
}

u32 Table::victim_uniform() {
  const DenseSet& set = parts_.remover_dense ? *parts_.remover_dense : *parts_.dense;
  const u64 count = parts_.remover_dense ? header_.remover_count : header_.dense_count;
  if (count == 0) return kNone;
  return set.at(scaled(next_random(), count));
}

// Frees a live or held slot. The words go through the undo record; uses of chunks are lowered after the commit.
void Table::remove_slot(u32 slot, bool undrawn_counts) {
  Item& entry = item(slot);
  const bool was_live = (entry.state & 15) == static_cast<u64>(ItemState::kLive);
  require_sound(was_live || (entry.state & 15) == static_cast<u64>(ItemState::kHeld));
  const u32 uses = span_uses(entry.span);
  if (was_live) {
    leave(slot);
  } else {
    --header_.held;
  }
  if (undrawn_counts && header_.limiter.queue != 0 && uses == 0)
    undo_.set(header_.limiter.inserts, static_cast<u64>(header_.limiter.inserts - 1));
  forget(slot);
}

void Table::forget(u32 slot) {
  Item& entry = item(slot);
  const u64 generation = (entry.state >> 4 & kGenerationMask) + 1;
  const u32 chunk = static_cast<u32>(entry.place >> 32), row = static_cast<u32>(entry.place);
  const u32 rows = span_rows(entry.span);
  undo_.set(entry.state, (generation & kGenerationMask) << 4);
  undo_.set(header_.total_removed, header_.total_removed + 1);
  parts_.order->erase(slot);
  parts_.order->free_push(slot);
  ++header_.free_slots;
  lower_.push_back({chunk, cover(chunk, row, rows)});
}

// ---------------------------------------------------------------------------------------------------------- inserting

std::string Table::why_no_insert() {
  if (header_.finished != 0) throw Error(Code::kEndOfData, "table.finish() was called: no more inserts");
  const i64 size = static_cast<i64>(header_.size);
  if (!may_insert(header_.limiter, size)) return di::why_no_insert(header_.limiter, size);
  // Unless nothing can be drawn either (a changed limiter counts given-back draws of the old one on neither side). Where
  // uses are not limited no draw makes room: there it is a resize() that was killed half-way, and insert() ends it.
  if (header_.max_times_sampled != 0 && header_.size > header_.capacity && may_sample(limiter_in_force(header_), size))
    return "draws were given back and lift the table above capacity=" + std::to_string(header_.capacity) +
           " until they are drawn again";
  return "";
}

void Table::insert(std::span<const NewItem> items, std::vector<u64>* keys) {
  change();
  for (const NewItem& fresh : items) {                        // no allocation: the rows are published already
    const u32 most = header_.max_times_sampled != 0 ? 1 : 2;  // two for one, as long as a killed resize() left too many
    for (u32 i = 0; i < most && header_.size >= header_.capacity && header_.limiter.queue == 0; ++i) {
      const u32 out = victim();
      if (out == kNone) break;
      remove_slot(out, true);
    }
    if (header_.free_slots == 0 &&
        header_.limiter.queue == 0) {  // there was no memory for more: see Writer::try_commit
      if (const u32 out = victim(); out != kNone) {
        remove_slot(out, true);
        ++header_.evicted_for_room;
      }
    }
    const u32 slot = parts_.order->free_pop();
    if (slot == kNone) throw Error(Code::kStoreError, "no free slot in table '" + name_ + "'");
    --header_.free_slots;
    const bool given = !std::isnan(fresh.priority);
    const double priority = given                           ? fresh.priority
                            : header_.initial_priority >= 0 ? header_.initial_priority
                                                            : header_.max_priority;
    if (given && fresh.priority > header_.max_priority) header_.max_priority = fresh.priority;
    Item& entry = item(slot);
    require_sound((entry.state & 15) == static_cast<u64>(ItemState::kFree));
    const u64 generation = entry.state >> 4 & kGenerationMask;
    use_chunks(fresh.chunk, cover(fresh.chunk, fresh.row, fresh.rows), +1);
    entry.number = header_.next_number;
    entry.priority = priority;
    entry.version = fresh.version;
    entry.place = u64{fresh.chunk} << 32 | fresh.row;
    entry.span = make_span(fresh.rows, fresh.back, fresh.flags);
    DI_FAULT("table.insert_before_state");
    undo_.set(entry.state, new_state(generation));
    undo_.set(header_.next_number, header_.next_number + 1);
    undo_.set(header_.total_inserts, header_.total_inserts + 1);
    undo_.set(header_.limiter.inserts, static_cast<u64>(header_.limiter.inserts + 1));
    parts_.order->push_back(slot);
    join(slot, false);
    if (fresh.flags & kItemCut) ++header_.episodes_cut;
    if (keys != nullptr) keys->push_back(make_key(generation, slot));
    DI_FAULT("table.insert_item");
  }
  header_.last_insert_ns.store(os::now_ns(), std::memory_order_relaxed);
  // mutant: insert-announces-nothing
  commit();
  wake(header_.items_seq, header_.items_waiters,
       samples_allowed(limiter_in_force(header_), static_cast<i64>(header_.size), kMaxClients));
}

bool Table::evict_for_room(u64 deadline_ns) {
  bool any = false;
  {
    Guard guard(*this, deadline_ns);
    change();
    any = !detach_.empty();  // there is something to settle already
    // As few as free a chunk: where rows are large, 64 items may be all there are.
    for (u32 i = 0; i < kBatchStep && header_.limiter.queue == 0 && detach_.empty(); ++i) {
      const u32 out = victim();
      if (out == kNone) break;
      remove_slot(out, true);
      ++header_.evicted_for_room;
      any = true;
      commit();
    }
    if (any) wake(header_.room_seq, header_.room_waiters, 1);
  }
  settle(deadline_ns);
  return any;
}

// --------------------------------------------------------------------------------------------------------- priorities

u64 Table::update_priorities(std::span<const u64> keys, std::span<const double> priorities, u64 deadline_ns) {
  u64 live = 0;
  double alpha = 0;
  __atomic_load(&header_.alpha, &alpha, __ATOMIC_RELAXED);  // without the lock: compared under it
  require_priorities(priority_range(header_), priorities, "nothing was changed");
  constexpr std::size_t kStep = 512;  // words and leaves only: more fit into one hold than items drawn
  u32 slots[kStep];
  double given[kStep], masses[kStep];
  for (std::size_t first = 0; first < keys.size(); first += kStep) {
    const std::size_t count = std::min(kStep, keys.size() - first);
    Guard guard(*this, deadline_ns);
    if (alpha != header_.alpha) [[unlikely]] {  // configure() came in between
      alpha = header_.alpha;
      require_priorities(priority_range(header_), priorities.subspan(first),
                         first == 0 ? "nothing was changed" : "those before were set");
    }
    change();
    const u64 live_before = live;
    u32 changed = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const u64 key = keys[first + i];
      const u32 slot = key_slot(key);
      if (i + 8 < count && key_slot(keys[first + i + 8]) < parts_.slots)
        __builtin_prefetch(&item(key_slot(keys[first + i + 8])));
      if (slot >= parts_.slots) continue;
      Item& entry = item(slot);
      // mutant: stale-key-reaches-a-successor
      if ((entry.state & 15) == 0 || (entry.state >> 4 & kGenerationMask) != key_generation(key) ||
          key >> (kSlotBits + kGenerationBits) != 0)
        continue;
      const double priority = priorities[first + i];
      // mutant: largest-priority-forgotten
      if (priority > header_.max_priority) header_.max_priority = priority;
      entry.priority = priority;  // one store: torn by no kill
      ++live;
      if ((entry.state & 15) != static_cast<u64>(ItemState::kLive)) continue;
      if (parts_.sums) {
        slots[changed] = slot;
        // mutant: updates-miss-the-tree
        given[changed++] = priority;
      }
      if (parts_.minimum) {
        const double weight = mass(priority);
        if (weight > 0)
          parts_.minimum->set(slot, weight, entry.number);
        else
          parts_.minimum->erase(slot);
      }
      if (parts_.best && header_.sampler != static_cast<u64>(SamplerKind::kOnce))
        parts_.best->set(slot, priority, entry.number);
      if (parts_.remover_best) parts_.remover_best->set(slot, priority, entry.number);
    }
    DI_FAULT("table.update_middle");
    const bool was_empty = parts_.sums && parts_.sums->total() <= 0;
    to_masses(given, changed, masses);
    if (changed != 0) parts_.sums->set(slots, masses, changed);
    if (was_empty) wake(header_.items_seq, header_.items_waiters, kMaxClients);
    header_.total_updates += count;
    header_.stale_updates += count - (live - live_before);
  }
  return live;
}

}  // namespace di
