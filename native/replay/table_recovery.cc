// Derived parts of a table, made anew from item slots and ledgers; and growing, which is a rebuild into larger blocks.
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "replay/table.h"
#include "rows/chunk_uses.h"

namespace di {

namespace {
bool uses_dense(u64 kind) {
  return kind == static_cast<u64>(SamplerKind::kUniform) || kind == static_cast<u64>(SamplerKind::kOnce);
}
bool uses_best(u64 kind) {
  return kind == static_cast<u64>(SamplerKind::kMinHeap) || kind == static_cast<u64>(SamplerKind::kMaxHeap);
}
}  // namespace

// Block sizes for `slots`, by role; 0: the table has no such part.
TableBlocks table_blocks(u64 slots, SamplerKind sampler, SamplerKind remover, bool normalize_table, bool shuffle) {
  TableBlocks blocks;
  blocks.links = OrderList::bytes(slots);
  const bool once = sampler == SamplerKind::kOnce;
  if (uses_dense(static_cast<u64>(sampler))) blocks.dense = DenseSet::bytes(slots);
  if (uses_best(static_cast<u64>(sampler)) || (once && !shuffle)) blocks.sampler = BestTree::bytes(slots);
  if (sampler == SamplerKind::kPrioritized) blocks.sampler = SumTree::bytes(slots);
  if (remover == SamplerKind::kUniform && blocks.dense == 0) blocks.remover = DenseSet::bytes(slots);
  if (uses_best(static_cast<u64>(remover)) && remover != sampler) blocks.remover = BestTree::bytes(slots);
  if (sampler == SamplerKind::kPrioritized && normalize_table) blocks.minimum = BestTree::bytes(slots);
  return blocks;
}

void Table::refresh() {
  if (parts_.links_block == header_.links_block && parts_.slots == header_.slots) return;
  Heap& heap = arena_->heap();
  Parts fresh;
  fresh.slots = header_.slots;
  fresh.links_block = header_.links_block;
  u64 first = 0;
  if (fresh.slots > kSlotMask) throw Error(Code::kCorruptData, "a table's slots are damaged");
  for (u32 i = 0; i < kTableSegments && header_.segment_block[i] != 0; ++i) {
    if (header_.segment_slots[i] > kSlotMask) throw Error(Code::kCorruptData, "a table's slots are damaged");
    const u32 block = header_.segment_block[i] - 1;
    if (heap.descriptor(block).bytes < header_.segment_slots[i] * sizeof(Item))
      throw Error(Code::kCorruptData, "an item segment is too short; run `di-store check`");
    fresh.segments.emplace_back(first, reinterpret_cast<Item*>(heap.block(block)));
    first += header_.segment_slots[i];
  }
  if (first < fresh.slots || fresh.segments.empty()) throw Error(Code::kCorruptData, "item segments are missing");
  const u64 slots = fresh.slots;
  const TableBlocks sizes =
      table_blocks(slots, static_cast<SamplerKind>(header_.sampler), static_cast<SamplerKind>(header_.remover),
                   header_.normalize_table != 0, header_.shuffle != 0);
  const auto at = [&heap](u32 block) { return heap.block(block - 1); };
  const std::pair<u32, u64> named[] = {{header_.links_block, sizes.links},
                                       {header_.dense_block, sizes.dense},
                                       {header_.sampler_block, sizes.sampler},
                                       {header_.remover_block, sizes.remover},
                                       {header_.minimum_block, sizes.minimum}};
  for (const auto& [block, bytes] : named)
    if ((block == 0) != (bytes == 0) || (block != 0 && heap.descriptor(block - 1).bytes < bytes))
      throw Error(Code::kCorruptData, "a part of table '" + name_ + "' is damaged");
  fresh.order.emplace(at(header_.links_block), slots, &header_);
  if (header_.dense_block != 0)
    fresh.dense.emplace(at(header_.dense_block), slots, &header_.dense_count, &header_.dense_left);
  if (header_.sampler_block != 0) {
    if (header_.sampler == static_cast<u64>(SamplerKind::kPrioritized))
      fresh.sums.emplace(at(header_.sampler_block), slots);
    else
      fresh.best.emplace(at(header_.sampler_block), slots, header_.sampler == static_cast<u64>(SamplerKind::kMaxHeap));
  }
  if (header_.remover_block != 0) {
    if (header_.remover == static_cast<u64>(SamplerKind::kUniform))
      fresh.remover_dense.emplace(at(header_.remover_block), slots, &header_.remover_count, &header_.remover_left);
    else
      fresh.remover_best.emplace(at(header_.remover_block), slots,
                                 header_.remover == static_cast<u64>(SamplerKind::kMaxHeap));
  }
  if (header_.minimum_block != 0) fresh.minimum.emplace(at(header_.minimum_block), slots, false);
  parts_ = std::move(fresh);
}

// A dead owner left the lock: its words are rolled back, then all that is derived is made anew.
void Table::recover(u64 deadline_ns) {
  lock_.begin_recovery();
  // mutant: undo-not-rolled-back
  undo_.roll_back();
  DI_FAULT("table.rolled_back");
  lower_.clear();
  if (!live()) {
    lock_.end_change();
    return;
  }
  free_strays(deadline_ns);
  parts_ = Parts{};
  refresh();
  rebuild(deadline_ns);
  settle_held(deadline_ns);
  lock_.end_change();
}

void Table::await_recovery(u64 deadline_ns) {
  constexpr u64 kPatienceNs = 100'000'000;  // far more than a live owner needs from the take-over to its first mark
  try {
    Guard guard(*this, std::min(deadline_ns, os::now_ns() + kPatienceNs));
  } catch (const Error& error) {
    if (error.code() == Code::kTableNotFound) return;
    if (error.code() != Code::kTimeout || lock_.in_recovery())
      throw;  // else a slow or stopped owner that changes its own
  }
}

std::vector<u32> Table::linked_blocks() const {
  std::vector<u32> linked(header_.segment_block, header_.segment_block + kTableSegments);
  for (const u32 block : {header_.config_block.load(), header_.schema_block.load(), header_.links_block,
                          header_.dense_block, header_.sampler_block, header_.remover_block, header_.minimum_block})
    linked.push_back(block);
  return linked;
}

// What grow() left when it was killed: a segment beyond the slots, new blocks that nothing names, old ones likewise.
void Table::free_strays(u64 deadline_ns) {
  u64 slots = 0;
  for (u32 i = 0; i < kTableSegments && header_.segment_block[i] != 0; ++i) {
    if (slots >= header_.slots) header_.segment_block[i] = 0;
    slots += header_.segment_slots[i];
  }
  arena_->heap().free_meta_of(index_, linked_blocks(), deadline_ns);
}

NewBlocks::~NewBlocks() {
  const os::Quiet quiet;
  for (const Made& made : made_) {
    try {
      arena_.heap().abandon(made.descriptor, made.entry);
    } catch (...) {  // the reaper frees it when this process ends
    }
  }
}

u32 NewBlocks::add(u64 bytes, u64 deadline_ns) {
  if (bytes == 0) return 0;
  made_.reserve(made_.size() + 1);  // first: a block that was made is in the list
  const u32 entry = arena_.ledger().take_one(deadline_ns);
  try {
    made_.push_back({arena_.heap().begin_meta(bytes, table_, entry, deadline_ns), entry});
  } catch (...) {
    arena_.ledger().give_unused(entry);
    throw;
  }
  return made_.back().descriptor + 1;
}

void NewBlocks::seal() {
  for (const Made& made : made_) arena_.heap().seal(made.descriptor, made.entry);
  made_.clear();
}

u64 Table::rebuild(u64 deadline_ns) {
  fill();
  return rebuild_references(deadline_ns);
}

// Every derived structure of items, refilled in order of insertion.
void Table::fill() {
  parts_.order->clear();
  if (parts_.dense) parts_.dense->clear();
  if (parts_.remover_dense) parts_.remover_dense->clear();
  if (parts_.sums) parts_.sums->clear();
  if (parts_.best) parts_.best->clear();
  if (parts_.remover_best) parts_.remover_best->clear();
  if (parts_.minimum) parts_.minimum->clear();
  header_.size = header_.held = header_.free_slots = 0;
  header_.first_live = header_.last_live = 0;
  std::vector<std::pair<u64, u32>> order;
  order.reserve(std::min<u64>(parts_.slots, header_.next_number));
  for (u32 slot = 0; slot < parts_.slots; ++slot) {
    Item& entry = item(slot);
    if ((entry.state & 15) > static_cast<u64>(ItemState::kHeld)) entry.state &= kGenerationMask << 4;  // damaged: gone
    if ((entry.state & 15) == static_cast<u64>(ItemState::kFree)) {
      parts_.order->free_push(slot);
      ++header_.free_slots;
    } else {
      order.emplace_back(entry.number, slot);
    }
  }
  std::sort(order.begin(), order.end());
  const bool once = header_.sampler == static_cast<u64>(SamplerKind::kOnce);
  for (const auto& [number, slot] : order) {
    const Item& entry = item(slot);
    parts_.order->push_back(slot);
    if ((entry.state & 15) == static_cast<u64>(ItemState::kHeld)) {
      ++header_.held;
      continue;
    }
    const u64 epochs = once ? drawn_epochs(entry) : 0;
    if (parts_.dense) parts_.dense->insert(slot, epochs <= header_.epoch);
    if (parts_.remover_dense) parts_.remover_dense->insert(slot, true);
    if (parts_.sums || parts_.minimum) {
      const double weight = mass(entry.priority);
      if (parts_.sums) parts_.sums->put(slot, weight);
      if (parts_.minimum && weight > 0) parts_.minimum->put(slot, weight, entry.number);
    }
    if (parts_.best) parts_.best->put(slot, once ? static_cast<double>(epochs) : entry.priority, entry.number);
    if (parts_.remover_best) parts_.remover_best->put(slot, entry.priority, entry.number);
    if (header_.first_live == 0) header_.first_live = slot + 1;
    header_.last_live = slot + 1;
    ++header_.size;
  }
  if (parts_.sums) parts_.sums->sum_up();
  if (parts_.best) parts_.best->play();
  if (parts_.remover_best) parts_.remover_best->play();
  if (parts_.minimum) parts_.minimum->play();
}

namespace {
// What the descriptor tells of a chunk besides its uses, from the chunk's header; caller holds the heap's lock.
u64 right_summary(const Heap& heap, u32 chunk) {
  const ChunkHeader& header = chunk_header(heap, chunk);
  ChunkSummary& summary = heap.descriptor(chunk).summary;
  const bool closed = word_state(heap.descriptor(chunk).word.load()) == ObjectState::kSealed;
  const u32 published = header.published.load(), rows = summary.rows.load(std::memory_order_relaxed);
  u64 wrong = 0;
  if (summary.first_table != header.attachment[0].table) {  // else it is read meanwhile
    summary.first_table = header.attachment[0].table;
    ++wrong;
  }
  if (rows != published && (closed || rows != 0)) {  // who was killed closing the chunk has set them already
    summary.rows.store(closed ? published : 0, std::memory_order_relaxed);
    ++wrong;
  }
  return wrong;
}
}  // namespace

// Uses of chunks by this table: items, and draws and reads in all ledgers. Counted first, stored once: a count that is
// too low for a moment would let a sweeper detach. The heap's lock keeps chunks from being freed meanwhile.
u64 Table::rebuild_references(u64 deadline_ns) {
  Heap& heap = arena_->heap();
  std::unordered_map<u32, u32> uses;
  const auto walk = [&](u32 chunk, u32 count) {
    for (u32 i = 0; i < count && chunk != kNone; ++i) {
      ++uses[chunk];
      chunk = chunk_header(heap, chunk).next.load() - 1;
    }
  };
  for (u32 slot = 0; slot < parts_.slots; ++slot) {
    const Item& entry = item(slot);
    if ((entry.state & 15) == 0) continue;
    const u32 chunk = static_cast<u32>(entry.place >> 32);
    walk(chunk, chunks_covered(heap, chunk, static_cast<u32>(entry.place), span_rows(entry.span)));
  }
  header_.writers = 0;
  for (u32 client = 0; client < kMaxClients; ++client)
    for_ledger_blocks(*arena_, client, [&](const LedgerBlock& block, u32) {
      for (const LedgerEntry& entry : block.entries) {
        const u64 what = entry.what.load(std::memory_order_acquire);
        const LedgerKind kind = ledger_kind(what);
        if (what == 0 || ledger_table(what) != index_) continue;
        if (kind == LedgerKind::kWriter) ++header_.writers;
        if ((kind == LedgerKind::kDraw || kind == LedgerKind::kRead) && ledger_descriptor(what) != kNone)
          walk(ledger_descriptor(what), ledger_chunks(what));
      }
    });
  DI_FAULT("table.rebuild_middle");
  detach_.clear();
  u64 wrong = 0;
  Heap::Guard guard(heap, deadline_ns);
  for (u32 index = 0; index < heap.descriptor_count(); ++index) {
    const u64 word = heap.descriptor(index).word.load();
    if (word_kind(word) != ObjectKind::kChunk || word_state(word) == ObjectState::kFree) continue;
    if (!has_attachments(heap, index)) continue;  // damaged: whoever lets it go says so
    const std::span<Attachment> all = attachments(heap, index);
    for (u32 k = 0; k < all.size(); ++k) {
      const Attachment& at = all[k];
      if (at.table != index_ || at.table_generation != generation_ || at.attached.load() == 0) continue;
      const auto found = uses.find(index);
      const u32 right = found == uses.end() ? 0 : found->second;
      wrong += right_summary(heap, index);
      // mutant: uses-of-a-second-table-in-the-first-ones
      Uses& now = uses_at(heap, index, k);
      const u32 closed = now.load(std::memory_order_relaxed) & kUsesClosed;  // set under the heap's lock only
      if (now.exchange(right | closed, std::memory_order_acq_rel) != (right | closed)) ++wrong;
      if ((right | closed) == kUsesClosed) detach_.push_back(index);
    }
  }
  if (!detach_.empty()) detach_pending_.store(true, std::memory_order_relaxed);
  return wrong;
}

// ------------------------------------------------------------------------------------------------------------ growing

// Growing by as much again, up to 2^22, keeps the rebuilds few; where there is no memory for that, by what is wanted.
void Table::ensure_slots(u64 wanted, u64 deadline_ns) {
  for (;;) {
    u64 slots = 0;
    {
      Guard guard(*this, deadline_ns);
      if (header_.free_slots >= wanted) return;
      slots = header_.slots;
    }
    const u64 more = std::min<u64>(slots, u64{1} << 22);
    try {
      grow(slots + std::max(wanted, more), deadline_ns);
    } catch (const Error& error) {
      if (error.code() != Code::kCapacity || wanted >= more) throw;
      grow(slots + wanted, deadline_ns);
    }
  }
}

// How many segments stay when `more` slots come: small ones behind them are copied into one with these. Each segment then
// has at least twice as many slots as the next, and none fewer than kLeastGrowth: there are never more than 19.
u32 Table::segments_kept(u64 more) const {
  u32 kept = 0;
  while (kept < kTableSegments && header_.segment_block[kept] != 0) ++kept;
  while (kept > 0 && header_.segment_slots[kept - 1] < 2 * more) more += header_.segment_slots[--kept];
  return kept;
}

// New blocks for `slots` slots in all; those that they replace go. Items move under the lock only, copied before the
// header names the copies; the words that name them change as one, so that a kill leaves the old or the new ones.
// `also` comes in the same hold, before anything has changed: if it throws, nothing has.
void Table::grow(u64 slots, u64 deadline_ns, const std::function<bool()>& also) {
  while (!try_grow(slots, deadline_ns, also)) {
  }
}

// False: another process grew it meanwhile.
bool Table::try_grow(u64 slots, u64 deadline_ns, const std::function<bool()>& also) {
  u64 before = 0, moved = 0;
  u32 kept = 0;
  TableBlocks sizes;
  {
    Guard guard(*this, deadline_ns);
    before = header_.slots;
    if (before >= slots) {
      also();
      return true;
    }
    if (slots > kMostSlots) throw Error(Code::kCapacity, "a table holds at most 2^28 items").told();
    slots = std::min(std::max(slots, before + kLeastGrowth), kMostSlots);
    kept = segments_kept(slots - before);
    for (u32 i = kept; i < kTableSegments && header_.segment_block[i] != 0; ++i) moved += header_.segment_slots[i];
    sizes = table_blocks(slots, static_cast<SamplerKind>(header_.sampler), static_cast<SamplerKind>(header_.remover),
                         header_.normalize_table != 0, header_.shuffle != 0);
  }
  NewBlocks made(*arena_, index_);
  const u32 items = made.add((slots - before + moved) * sizeof(Item), deadline_ns);
  const u32 links = made.add(sizes.links, deadline_ns), dense = made.add(sizes.dense, deadline_ns);
  const u32 sampler = made.add(sizes.sampler, deadline_ns), remover = made.add(sizes.remover, deadline_ns);
  const u32 minimum = made.add(sizes.minimum, deadline_ns);
  DI_FAULT("table.grow_made");
  Guard guard(*this, deadline_ns);
  if (header_.slots != before) return false;
  std::vector<u32> gone;
  for (const u32 old :
       {header_.links_block, header_.dense_block, header_.sampler_block, header_.remover_block, header_.minimum_block})
    if (old != 0) gone.push_back(old - 1);
  u8* to = arena_->heap().block(items - 1);
  for (u32 i = kept; i < kTableSegments && header_.segment_block[i] != 0; ++i) {
    const u64 bytes = header_.segment_slots[i] * sizeof(Item);
    std::memcpy(to, arena_->heap().block(header_.segment_block[i] - 1), bytes);
    to += bytes;
    gone.push_back(header_.segment_block[i] - 1);
  }
  if (!also()) return true;
  change();
  made.seal();
  DI_FAULT("table.grow_copied");
  link_segment(kept, items, slots - before + moved);
  undo_.set(header_.slots, slots);
  DI_FAULT("table.grow_linked");
  header_.links_block = links;
  header_.dense_block = dense;
  header_.sampler_block = sampler;
  header_.remover_block = remover;
  header_.minimum_block = minimum;
  DI_FAULT("table.grow_before_fill");
  undo_.commit();
  refresh();
  fill();
  try {
    arena_->heap().free_meta(gone, deadline_ns);
  } catch (...) {
    rethrow_lasting();
    guard.stay_marked();  // who comes next frees them as strays
  }
  return true;
}

// The last segment from now on, by the undo record: blocks lie two in a word of it.
void Table::link_segment(u32 number, u32 block, u64 slots) {
  for (u32 i = number & ~1u; i < kTableSegments; i += 2) {
    const u32 low = i < number ? header_.segment_block[i] : i == number ? block : 0;
    const u32 high = i + 1 == number ? block : 0;
    undo_.set_at(&header_.segment_block[i], u64{high} << 32 | low);
  }
  undo_.set(header_.segment_slots[number], slots);
  for (u32 i = number + 1; i < kTableSegments; ++i) undo_.set(header_.segment_slots[i], 0);
}

}  // namespace di
