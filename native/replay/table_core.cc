#include "replay/table_core.h"

#include <algorithm>
#include <exception>

#include "heap/meta_places.h"
#include "replay/recovery.h"
#include "replay/texts.h"

namespace di {

void Event::signal(u64 count) {
  seq.fetch_add(1, std::memory_order_seq_cst);  // after the change it announces; pairs with the load before a wait
  if (count != 0 && waiters.load(std::memory_order_seq_cst) != 0)
    os::futex_wake(seq, static_cast<u32>(std::min<u64>(count, kMaxClients)));
}

TableCore::TableCore(std::shared_ptr<Arena> store, u32 number)
    : arena(std::move(store)),
      index(number),
      generation(arena->table(index).generation.load()),
      header(arena->table(index)),
      name(read_name(header.name)),
      lock(*arena, header.lock, "table '" + name + "'"),
      undo(*arena, header.undo),
      random(header),
      uses(header, undo),
      items(header, name),
      leases(header, items, uses, undo),
      groups(header, items),
      ended(header, undo),
      chunks(*arena, index),
      gone(*arena, index, header),
      writers(*this),
      fork_generation_(arena->fork_generation()) {
  if (groups.size() > kMostAnswers) throw Error(Code::kCorruptData, "the groups of table '" + name + "' are damaged");
}

TableCore::~TableCore() {
  if (!arena->owns(fork_generation_)) forget_parent();
}

TableGuard::TableGuard(TableCore& core, Deadline deadline) : core_(core), exceptions_(std::uncaught_exceptions()) {
  const auto enter = [&core, deadline]() DI_UNCHECKED {
    core.lock.acquire(deadline);
    try {
      if (core.fork_generation_ != core.arena->fork_generation()) core.forget_parent();
      if (core.lock.needs_recovery() || core.undo.pending()) TableRecovery(core).recover(deadline);
      core.require_live();
      core.refresh();
      core.chunks.reserve(core.groups.on() ? kUndoEntries : kMostRemovals);
      core.gone.reserve(kMostRemovals);
    } catch (...) {  // if the recovery failed, the mark is still set, and the next owner tries again
      core.lock.release();
      throw;
    }
  };
  patiently(*core.arena, deadline, enter);  // a recovery takes the heap's lock
}

TableGuard::~TableGuard() {
  const bool clean = std::uncaught_exceptions() == exceptions_;
  if (clean) {
    core_.header.stat_size.store(core_.header.size, std::memory_order_relaxed);
    if (!marked_) core_.lock.end_change();
  } else {
    core_.forget_hold();
  }
  core_.lock.release();
}

// After an exception: rolls the hold's words back at once. So the ledger entries that the caller takes back are free,
// and no use ends for a change that was undone. The `dirty` mark stays: the next owner rebuilds derived parts.
void TableCore::forget_hold() noexcept {
  chunks.forget_ending();
  gone.forget();
  try {
    undo.roll_back();
  } catch (...) {  // the record is damaged: the next owner's recovery reports it
  }
}

// In a forked child: constructs these members again, because another thread of the parent may have been changing them.
void TableCore::forget_parent() {
  fork_generation_ = arena->fork_generation();
  forget_blocks();
  new (&leases) Leases(header, items, uses, undo);
  new (&groups) Groups(header, items);
  new (&ended) EndedGroups(header, undo);
  new (&items) Items(header, name);  // without destroying the old ones: they may be half changed
  new (&selection) Selection{};
  new (&chunks) UsedChunks(*arena, index);
  new (&gone) GoneKeys(*arena, index, header);
  new (&writers) OpenWriters(*this);
  late_.store(false, std::memory_order_relaxed);
}

// Reads the state first: if the generation is still this table's after that, the state was this table's too.
bool TableCore::live() const {
  return header.is(TableState::kLive) && header.generation.load(std::memory_order_acquire) == generation;
}

void TableCore::require_live() const {
  if (!live()) throw Error(Code::kTableNotFound, "the table was dropped; create it again with store.create_table()");
}

void refuse_taken_over(const TableCore& core) {
  throw Error(Code::kTableNotFound, "another node of the cluster has table '" + core.name +
                                        "' now, and the rows in this store are outdated; store.table() opens it there")
      .told();
}

i64 TableCore::newest_version() const {
  return header.weights == 0
             ? 0
             : arena->weights(static_cast<u32>(header.weights - 1)).newest.load(std::memory_order_acquire);
}

bool TableCore::is_stale(const Item& item) const {
  return header.max_staleness >= 0 && newest_version() - item.version > header.max_staleness;
}

// ------------------------------------------------------------------------------------------------------ blocks, items

void TableCore::refresh() {
  if (!leases.is_open()) leases.open(arena->heap(), index);
  if (links_block_ == header.links_block && items.slots() == header.slots) return;
  if (header.slots == 0 || header.slots > kSlotMask) throw Error(Code::kCorruptData, "a table's slots are damaged");
  const Heap& heap = arena->heap();
  const TableBlocks sizes = table_blocks(header.slots, header);
  const std::pair<u32, u64> named[] = {{header.links_block, sizes.links},
                                       {header.dense_block, sizes.dense},
                                       {header.sampler_block, sizes.sampler},
                                       {header.remover_block, sizes.remover},
                                       {header.minimum_block, sizes.minimum},
                                       {header.groups_block, sizes.groups},
                                       {header.ended_block, groups.on() ? EndedGroups::bytes() : 0}};
  for (const auto& [block, bytes] : named) {
    if ((block == 0) != (bytes == 0)) throw Error(Code::kCorruptData, "a part of table '" + name + "' is damaged");
    if (block == 0) continue;
    heap.meta(block - 1, index, bytes);
    require_meta_place(heap.memory, heap.descriptors, block - 1);
  }
  forget_blocks();
  items.open(heap, index);
  if (groups.on()) {
    groups.open(heap.block(header.groups_block - 1));
    ended.open(heap.block(header.ended_block - 1));
  }
  selection.open(heap, header, items, random, uses, undo);
  links_block_ = header.links_block;
}

void TableCore::forget_blocks() { links_block_ = kNone; }

void TableCore::make_live(u32 slot) {
  selection.insert(slot);
  items.joined(slot);
  ++header.size;
}

void TableCore::end_live(u32 slot) {
  selection.erase(slot);
  items.leaving(slot);
  --header.size;
}

void TableCore::enter_order(u32 slot, u64 joined) {
  undo.set(items[slot].number, header.next_number);
  undo.set(header.next_number, header.next_number + 1);
  undo.set(items[slot].state, uses.new_state(items[slot].generation(), joined));
  undo.set(header.total_inserts, header.total_inserts + 1);
  undo.set(header.limiter.inserts, static_cast<u64>(header.limiter.inserts + 1));
  items.order().push_back(slot);
  make_live(slot);
}

void TableCore::end_wait(u32 slot) {
  items.order().end_wait(slot);
  --header.waiting;
  enter_order(slot, header.epoch);
}

// The item's words change through the undo record.
void TableCore::remove(u32 slot, GoneFor why) {
  const Item& item = items[slot];
  const bool was_live = item.is(ItemState::kLive);
  if (item.is(ItemState::kWaiting)) {
    items.order().end_wait(slot);
    items.order().push_back(slot);  // free_slot() takes it out
    --header.waiting;
    if (groups.on()) {
      if (groups.has_all(slot))
        --header.gathered;
      else
        ended.add(groups.value(slot));
      groups.leave(slot);
      ++header.groups_dropped;
    }
    return free_slot(slot, why);
  }
  const bool leased = item.is(ItemState::kLeased);
  require_sound(was_live || leased || item.is(ItemState::kHeld));
  const u32 times = item.uses();
  if (was_live) {
    end_live(slot);
  } else if (leased) {
    Lease* const lease = leases.find(slot);
    require_sound(lease != nullptr);
    leases.end(*lease);
  } else {
    --header.held;
  }
  if (why != GoneFor::kReset && header.limiter.queue != 0 && times == 0)
    undo.set(header.limiter.inserts, static_cast<u64>(header.limiter.inserts - 1));
  free_slot(slot, why);
}

namespace {

// Frees the other answers of a group that is removed; these answers are in no list.
void free_members(TableCore& core, u32 leader) {
  core.groups.each_other(leader, [&core](u32 slot, Item& item) {
    core.undo.set(item.state, Item::free_state(item.generation() + 1));
    core.items.order().free_push(slot);
    ++core.header.free_slots;
    core.chunks.end_later(item.chunk(), core.chunks.covered(item.chunk(), item.row(), 1), kUseOfItem);
  });
}

}  // namespace

void TableCore::free_slot(u32 slot, GoneFor why) {
  if (groups.on()) free_members(*this, slot);
  if (header.given_back != 0) [[unlikely]]
    leases.clear_mark(slot);
  Item& item = items[slot];
  gone.note(item.key(slot), why);
  undo.set(item.state, Item::free_state(item.generation() + 1));
  undo.set(header.total_removed, header.total_removed + 1);
  items.order().erase(slot);
  items.order().free_push(slot);
  ++header.free_slots;
  chunks.end_later(item.chunk(), chunks.covered(item.chunk(), item.row(), item.rows()), kUseOfItem);
}

// -------------------------------------------------------------------------------------------------------- housekeeping

// May exceed the budget, but draw() has charged the bytes before.
void TableCore::charge_held(Deadline deadline) {
  const u64 right = items_outside(header) * header.item_bytes, now = header.held_bytes.load();
  if (right != now) arena->heap().claims.hold(index, static_cast<i64>(right - now), deadline, true);
}

// If the heap's lock is not available, too many bytes stay charged for a while, never too few: draw() charges first.
void TableCore::charge_held_soon() {
  try {
    charge_held(Deadline::brief());
  } catch (...) {
    rethrow_lasting();
    mark_late();
  }
}

void TableCore::do_deferred(Deadline deadline) {
  if (!chunks.has_deferred()) return;
  std::vector<u32> unused;
  try {
    {
      TableGuard guard(*this, deadline);
      chunks.take_unused(&unused);
    }
    arena->heap().chunks.detach(unused, index, deadline);
    do_late(deadline);
  } catch (...) {
    chunks.put_back(unused);
    if (!deadline.tries_only()) throw;
  }
}

// Does the work that earlier calls left because the heap's lock or this table's was not available.
void TableCore::do_late(Deadline deadline) {
  if (!late_.exchange(false, std::memory_order_relaxed)) return;
  try {
    TableGuard guard(*this, deadline);
    change();
    charge_held(deadline);
    writers.end_late();
  } catch (...) {
    late_.store(true, std::memory_order_relaxed);
    throw;
  }
}

}  // namespace di
