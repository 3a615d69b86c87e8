#include "replay/recovery.h"

#include <algorithm>
#include <cmath>

#include "replay/answers.h"
#include "replay/due_groups.h"
#include "replay/item_rows.h"
#include "rows/chunks_covered.h"

namespace di {

void TableRecovery::recover(Deadline deadline) {
  core_.lock.begin_recovery();
  core_.undo.roll_back();
  DI_FAULT("table.rolled_back");
  core_.chunks.forget_ending();
  core_.gone.forget();
  core_.gone.skip();
  if (!core_.live()) {
    core_.lock.end_change();
    return;
  }
  free_strays(deadline);
  core_.forget_blocks();
  core_.refresh();
  rebuild(deadline);
  end_waits();
  core_.charge_held(deadline);
  core_.lock.end_change();
}

std::vector<u32> TableRecovery::linked_blocks() const {
  std::vector<u32> linked(header_.segment_block, header_.segment_block + kTableSegments);
  linked.push_back(core_.leases.block());
  for (const u32 block : {header_.config_block.load(), header_.schema_block.load(), header_.links_block,
                          header_.dense_block, header_.sampler_block, header_.remover_block, header_.minimum_block,
                          header_.groups_block, header_.gone_block, header_.ended_block})
    linked.push_back(block);
  return linked;
}

// Frees the blocks, new or old, that a killed Growth left without a link in the header, and segments beyond the slots.
void TableRecovery::free_strays(Deadline deadline) {
  u64 slots = 0;
  for (u32 i = 0; i < kTableSegments && header_.segment_block[i] != 0; ++i) {
    if (slots >= header_.slots) header_.segment_block[i] = 0;
    slots += header_.segment_slots[i];
  }
  core_.arena->heap().free_meta_of(core_.index, linked_blocks(), deadline);
}

// Returns how many counts of chunk uses were wrong.
u64 TableRecovery::rebuild(Deadline deadline) {
  fill();
  return count_uses(deadline);
}

void TableRecovery::fill() {
  Items& items = core_.items;
  core_.leases.fill();
  items.order().clear();
  core_.selection.clear();
  if (core_.groups.on()) {
    core_.groups.clear();
    core_.ended.fill_index();
  }
  header_.size = header_.held = header_.waiting = header_.gathered = header_.free_slots = 0;
  header_.first_live = header_.last_live = 0;
  std::vector<std::pair<u64, u32>> by_age, members;
  by_age.reserve(std::min<u64>(items.slots(), header_.next_number));
  for (u32 slot = 0; slot < items.slots(); ++slot) {
    Item& item = items[slot];
    if (!item.is_sound()) item.state = Item::free_state(item.generation());  // damaged: free its slot
    if (item.is(ItemState::kFree)) {
      items.order().free_push(slot);
      ++header_.free_slots;
    } else {
      (item.is(ItemState::kMember) ? members : by_age).emplace_back(item.number, slot);
    }
  }
  std::sort(by_age.begin(), by_age.end());
  for (const auto& [number, slot] : by_age) fill_slot(slot);
  std::sort(members.begin(), members.end());
  for (const auto& [number, slot] : members) join_group(slot);
  const bool due = header_.group_deadline_ns != 0 && header_.waiting != 0;
  header_.group_due_ns.store(due ? 0 : kNoGroupDue, std::memory_order_relaxed);
  core_.selection.ready();
}

// Adds an item that is not free to the lists and counts of its state. Items come in order of their numbers.
void TableRecovery::fill_slot(u32 slot) {
  Items& items = core_.items;
  if (core_.groups.on()) {
    const Item& item = items[slot];
    if (item.is(ItemState::kWaiting))
      core_.groups.begin(slot, group_value(*core_.arena, item.chunk(), item.row(), core_.index));
    else
      core_.groups.begin_complete(slot);
  }
  if (items[slot].is(ItemState::kWaiting)) {
    items.order().wait(slot);
    ++header_.waiting;
    if (core_.groups.on() && core_.groups.has_all(slot)) ++header_.gathered;
    return;
  }
  items.order().push_back(slot);
  if (items[slot].is(ItemState::kHeld)) {
    ++header_.held;
    return;
  }
  if (items[slot].is(ItemState::kLeased)) {
    if (core_.leases.find(slot) != nullptr) return;
    items[slot].state = items[slot].state_as(ItemState::kLive);  // damaged: no lease would ever end
  }
  core_.selection.put(slot);
  if (header_.first_live == 0) header_.first_live = slot + 1;
  header_.last_live = slot + 1;
  ++header_.size;
}

void TableRecovery::join_group(u32 slot) {
  const u32 leader = core_.items[slot].leader();
  const bool sound = core_.groups.on() && leader < core_.items.slots() && !core_.items[leader].is(ItemState::kFree) &&
                     !core_.items[leader].is(ItemState::kMember) && !core_.groups.has_all(leader);
  if (!sound) return free_damaged(slot);
  core_.groups.join(leader, slot);
  if (core_.items[leader].is(ItemState::kWaiting) && core_.groups.has_all(leader)) ++header_.gathered;
}

void TableRecovery::free_damaged(u32 slot) {
  core_.items[slot].state = Item::free_state(core_.items[slot].generation() + 1);
  core_.items.order().free_push(slot);
  ++header_.free_slots;
}

namespace {
// False: the data that `look` reads is damaged. The item then waits until it is evicted.
template <class Look>
bool is_sound(Look look) {
  try {
    return look();
  } catch (const Error& error) {
    if (error.code() != Code::kCorruptData) throw;
    return false;
  }
}

// Notes the wait, so that an update of the row finds the item. False: the item never waited there.
bool note_wait(const Heap& heap, u32 table, RowAt at, u32 slot) {
  const u32 position = at.chunk == kNone ? kNone : attachment_of(heap, at.chunk, table);
  const LateRows late = position == kNone ? LateRows{} : head_at(heap, at).late;
  if (position >= late.tables) return false;
  late.waits(position, at.row).store(slot + 1, std::memory_order_relaxed);
  return true;
}
}  // namespace

// An update may have been killed after it showed the values that an item waits for, and before it ended the item's
// wait.
void TableRecovery::end_waits() {
  if (core_.groups.on()) return end_group_waits();
  const Heap& heap = core_.arena->heap();
  for (u32 slot = core_.items.order().first_waiting(), next = kNone; slot != kNone; slot = next) {
    next = core_.items.order().next(slot);
    const bool complete = is_sound([&] {
      const RowAt at = first_step(heap, core_.items[slot]);
      return note_wait(heap, core_.index, at, slot) &&
             is_complete(heap, at, attachment_of(heap, at.chunk, core_.index));
    });
    if (!complete) continue;
    core_.end_wait(slot);
    core_.commit();
  }
}

// The same for groups, where any answer may have waited for the values.
void TableRecovery::end_group_waits() {
  const Heap& heap = core_.arena->heap();
  for (u32 leader = core_.items.order().first_waiting(), after = kNone; leader != kNone; leader = after) {
    after = core_.items.order().next(leader);
    const bool complete = is_sound([&] {
      core_.groups.each(
          leader, [&](u32 slot, const Item& item) { note_wait(heap, core_.index, {item.chunk(), item.row()}, slot); });
      return is_complete_group(core_, leader);
    });
    if (complete && end_wait_of_group(core_, leader)) core_.commit();
  }
}

namespace {
// Corrects the descriptor's copy of the chunk's header; returns how many words were wrong. Under the heap's lock.
u64 right_summary(const Heap& heap, u32 chunk) {
  const ChunkHeader& header = heap.chunk_memory.head(chunk);
  ChunkSummary& summary = heap.descriptor(chunk).summary;
  const bool closed = word_state(heap.descriptor(chunk).word.load()) == ObjectState::kSealed;
  const u32 published = header.published.load(), rows = summary.rows.load(std::memory_order_relaxed);
  u64 wrong = 0;
  const u16 first_table = static_cast<u16>(header.attachment[0].table);
  if (summary.first_table != first_table) {  // written only if wrong: others read it without a lock
    summary.first_table = first_table;
    ++wrong;
  }
  if (rows != published && (closed || rows != 0)) {  // open and not 0: a process was killed while it closed the chunk
    summary.rows.store(closed ? published : 0, std::memory_order_relaxed);
    ++wrong;
  }
  return wrong;
}
}  // namespace

// Counts this table's uses of chunks by items, and by the draws and reads in all ledgers. Each count is stored once,
// when it is complete. If a count were too low for a moment, a sweep of another process could detach the chunk.
u64 TableRecovery::count_uses(Deadline deadline) {
  const Heap& heap = core_.arena->heap();
  std::unordered_map<u32, u64> uses;
  const auto walk = [&](u32 chunk, u32 count, u64 unit) {
    for (u32 i = 0; i < count && chunk != kNone; ++i) {
      uses[chunk] += unit;
      chunk = heap.chunk_memory.head(chunk).next.load() - 1;
    }
  };
  for (u32 slot = 0; slot < core_.items.slots(); ++slot) {
    const Item& item = core_.items[slot];
    if (item.is(ItemState::kFree)) continue;
    walk(item.chunk(), chunks_covered(heap, item.chunk(), item.row(), item.rows()), kUseOfItem);
  }
  header_.writers = 0;
  for (u32 client = 0; client < kMaxClients; ++client)
    for_ledger_blocks(core_.arena->heap(), client, [&](const LedgerBlock& block, u32) {
      for (const LedgerEntry& entry : block.entries) {
        const u64 what = entry.what.load(std::memory_order_acquire);
        const LedgerKind kind = ledger_kind(what);
        if (what == 0 || ledger_table(what) != core_.index) continue;
        if (kind == LedgerKind::kWriter) ++header_.writers;
        if (holds_chunks(kind) && ledger_descriptor(what) != kNone)
          walk(ledger_descriptor(what), ledger_chunks(what), kUseOfReader);
      }
    });
  DI_FAULT("table.rebuild_middle");
  return set_uses(uses, deadline);
}

// Stores the counts and returns how many were wrong. Takes the heap's lock, so that no chunk is freed meanwhile.
u64 TableRecovery::set_uses(const std::unordered_map<u32, u64>& uses, Deadline deadline) {
  Heap& heap = core_.arena->heap();
  core_.chunks.forget_unused();
  u64 wrong = 0;
  HeapGuard guard(heap, deadline);
  for (u32 chunk = 0; chunk < heap.descriptor_count(); ++chunk) {
    const u64 word = heap.descriptor(chunk).word.load();
    if (word_kind(word) != ObjectKind::kChunk || word_state(word) == ObjectState::kFree) continue;
    if (!heap.chunk_memory.has_attachments(chunk)) continue;  // damaged: the call that releases the chunk reports it
    const std::span<Attachment> all = heap.chunk_memory.attachments(chunk);
    for (u32 k = 0; k < all.size(); ++k) {
      const Attachment& at = all[k];
      if (at.table != core_.index || at.table_generation != core_.generation || at.attached.load() == 0) continue;
      const auto found = uses.find(chunk);
      const u64 right = found == uses.end() ? 0 : found->second;
      wrong += right_summary(heap, chunk);
      Uses& now = heap.chunk_memory.uses_at(chunk, k);
      const u64 closed = now.load(std::memory_order_relaxed) & kUsesClosed;  // it is set under the heap's lock only
      if (now.exchange(right | closed, std::memory_order_acq_rel) != (right | closed)) ++wrong;
      if ((right | closed) == kUsesClosed) core_.chunks.note_unused(chunk);
    }
  }
  return wrong;
}

void TableRecovery::check(Deadline deadline, std::vector<std::string>* findings) {
  core_.change();
  const Selection& selection = core_.selection;
  const u64 size = header_.size, held = header_.held, free_slots = header_.free_slots;
  const u64 waiting = header_.waiting, gathered = header_.gathered;
  const u64 leased = header_.leased, used_up = header_.leased_used_up, given_back = header_.given_back;
  const u64 writers = header_.writers, dense = header_.dense_count, left = header_.dense_left;
  const u32 first = header_.first_live, last = header_.last_live;
  const u32 drawn_next = selection.sampler().next(), removed_next = selection.remover().next();
  const double total = selection.sampler().sums().total;
  const u64 wrong = rebuild(deadline);
  const std::string name = "table '" + core_.name + "': ";
  const auto compare = [&](const char* what, u64 before, u64 after) {
    if (before != after)
      findings->push_back(name + what + " " + std::to_string(before) + ", recounted " + std::to_string(after));
  };
  compare("items", size, header_.size);
  compare("held items", held, header_.held);
  compare("waiting items", waiting, header_.waiting);
  compare("leased items", leased, header_.leased);
  compare("leased items at their use limit", used_up, header_.leased_used_up);
  compare("items given back", given_back, header_.given_back);
  compare("groups with all answers that wait", gathered, header_.gathered);
  compare("free slots", free_slots, header_.free_slots);
  compare("open writers", writers, header_.writers);
  compare("slots to draw from", dense, header_.dense_count);
  compare("slots left in this epoch", left, header_.dense_left);
  compare("oldest item", first, header_.first_live);
  compare("newest item", last, header_.last_live);
  compare("next to be drawn", drawn_next, selection.sampler().next());
  compare("next to be removed", removed_next, selection.remover().next());
  compare("miscounted chunks", wrong, 0);
  const u64 held_bytes =
      items_outside(core_.header) * header_.item_bytes;  // more may be charged for a while, but never less
  compare("bytes of held items", std::min<u64>(header_.held_bytes, held_bytes), held_bytes);
  core_.charge_held(deadline);
  const double right = selection.sampler().sums().total;
  if (std::abs(total - right) > 1e-9 * std::abs(total) + 1e-300) findings->push_back(name + "sum of priorities is off");
}

}  // namespace di
