#include "heap/recovery.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <unordered_set>

namespace di {

void HeapRecovery::rebuild() {
  heap_.lock.begin_change();
  HeapHeader& heap = heap_.memory.heap_header();
  relist_descriptors();
  refill_index();
  DI_FAULT("heap.rebuild_middle");
  clear_unmade();
  relink_bodies();
  heap.fixed_bytes.store(heap_.memory.places().tables + u64{heap_.memory.table_count()} * kTableHeaderBytes +
                         u64{heap_.memory.mark_count()} * sizeof(SessionMark) +
                         PageCharges::table_bytes(heap.slice_high, heap_.memory.places().slice_count));
  free_strays();
  recount_pins();
  recount_charges();
  heap.rebuilds.fetch_add(1);
  heap_.lock.end_change();
}

// Segments, free descriptors, blocks, and the counts of objects.
void HeapRecovery::relist_descriptors() {
  HeapHeader& heap = heap_.memory.heap_header();
  u32 segments = 0;
  while (segments < kDescriptorSegments && heap.segments[segments]) ++segments;
  heap.segment_count.store(segments, std::memory_order_release);  // never less than before: see Descriptors::count()
  heap_.blocks.reset();
  heap.free_head = heap.free_count = 0;
  heap.expiring = heap.live_objects = 0;
  u64 live = 0;
  u32 index_block = 0;
  for (u32 i = 0; i < segments; ++i)
    heap_.blocks.mark(heap.segments[i].value, (u64{kFirstDescriptorSegment} << i) * sizeof(Descriptor),
                      BlockUse::kMeta);
  for (u32 index = heap_.descriptor_count(); index-- > 0;) {
    Descriptor& entry = heap_.descriptor(index);
    const u64 word = entry.word.load();
    if (word_state(word) == ObjectState::kFree) {
      entry.flags = 0;
      heap_.descriptors.push_free(index);
      continue;
    }
    if (!is_away(entry)) heap_.blocks.mark(entry.offset, entry.bytes, use_of(word_kind(word)));
    // The writer fills the block where it was made. If the descriptor leads elsewhere, that block would be taken for
    // free.
    if (word_kind(word) == ObjectKind::kChunk && word_state(word) == ObjectState::kCreating)
      static_cast<void>(heap_.chunk_memory.head(index));  // throws kCorruptData
    if (entry.expires_ns != 0) ++heap.expiring;
    if (word_kind(word) == ObjectKind::kData) {
      ++heap.live_objects;
      if (!is_away(entry)) live += Blocks::block_bytes(entry.bytes);
    }
    if (index + 1 == heap.index_block && word_kind(word) == ObjectKind::kMeta && entry.owner == kOwnerIndex &&
        entry.bytes >= sizeof(u32) && std::has_single_bit(entry.bytes))
      index_block = index + 1;
  }
  heap.live_bytes.store(live);
  heap_.blocks.relist();
  heap.index_block = index_block;
  if (index_block == 0) heap.index_buckets = 0;
}

void HeapRecovery::refill_index() {
  if (heap_.ids.exists()) {
    heap_.ids.clear();
  } else if (heap_.memory.heap_header().live_objects != 0) {
    heap_.grow_index();
  }
  for (u32 index = 0; index < heap_.descriptor_count(); ++index) {
    const u64 word = heap_.descriptor(index).word.load();
    if (word_kind(word) == ObjectKind::kData && (heap_.descriptor(index).flags & kFlagHasId) &&
        (word_state(word) == ObjectState::kSealed || word_state(word) == ObjectState::kCreating))
      heap_.index_object(index);
  }
}

// Own entries of makers that died before their descriptor left state free. These entries are cleared, because the next
// maker gets the same descriptor with the same generation.
void HeapRecovery::clear_unmade() {
  for_ledgers(heap_, [&](u32, LedgerEntry& entry) {
    const u64 what = entry.what.load();
    if (ledger_kind(what) != LedgerKind::kOwn) return;
    const u64 word = heap_.descriptor(ledger_descriptor(what)).word.load();
    if (word_state(word) == ObjectState::kFree || word_generation(word) != static_cast<u32>(entry.ref.load()))
      entry.what.store(0, std::memory_order_release);
  });
}

// The chunks' links to their bodies are the truth. A body that no chunk names belongs to a dead process, which was
// about to link it or to free it.
void HeapRecovery::relink_bodies() {
  if (!heap_.memory.tiered()) return;
  std::unordered_set<u32> linked;
  heap_.disk.begin_recount();
  TierHeader& counts = heap_.memory.tier_header();
  counts.away_objects.store(0);
  counts.away_bytes.store(0);
  const auto in_state = [&](u32 index, ObjectKind kind, ObjectState state) {
    const u64 word = heap_.descriptor(index).word.load();
    return word_kind(word) == kind && word_state(word) == state;
  };
  for (u32 index = 0; index < heap_.descriptor_count(); ++index) {
    Descriptor& entry = heap_.descriptor(index);
    const u64 word = entry.word.load();
    if (word_kind(word) == ObjectKind::kData && word_state(word) != ObjectState::kFree && is_logged(entry)) {
      if (entry.flags >> kLogShift < kMaxSegments)
        heap_.disk.add(entry.flags >> kLogShift, logged_bytes(entry), logged_bytes(entry));
      else
        entry.flags &= kFlagHasId | kFlagWeights;  // damaged
      if (is_away(entry) && is_logged(entry)) {
        counts.away_objects.store(counts.away_objects.load() + 1);
        counts.away_bytes.store(counts.away_bytes.load() + entry.bytes);
      }
    }
    if (word_kind(word) != ObjectKind::kChunk || word_state(word) == ObjectState::kFree) continue;
    if (!heap_.chunk_memory.has_attachments(index)) continue;  // damaged: it counts as without a body
    ChunkTier& tier = *heap_.chunk_memory.tier(index);
    const u32 body = tier.body.load();
    const bool sound =
        body <= heap_.descriptor_count() && body != 0 && in_state(body - 1, ObjectKind::kBody, ObjectState::kSealed);
    if (!sound || !linked.insert(body - 1).second) tier.body.store(0);  // damaged, if it is not 0 already
    const u32 segment = place_segment(tier.place.load());
    if (segment >= kMaxSegments) tier.stored_pages.store(0);  // likewise
    heap_.note_body(index);
    if (tier.stored_pages.load() != 0 && tier.body.load() != 0)
      add_bytes(heap_.memory.tier_header().clean_bytes, tier.body_bytes);
    if (tier.stored_pages.load() != 0)
      heap_.disk.add(segment, u64{tier.stored_pages.load()} * kPageBytes, tier.body_bytes);
  }
  heap_.disk.end_recount();
  for (u32 index = 0; index < heap_.descriptor_count(); ++index)
    if (in_state(index, ObjectKind::kBody, ObjectState::kSealed) && !linked.contains(index))
      heap_.free_descriptor(index, false);
}

// Meta blocks of the heap's own that a kill left unlinked.
void HeapRecovery::free_strays() {
  const Memory& memory = heap_.memory;
  std::unordered_set<u32> linked;
  for (u32 slot = 0; slot < kMaxClients; ++slot)
    for_ledger_blocks(heap_, slot, [&](LedgerBlock&, u32 index) { linked.insert(index + 1); });
  for (u32 i = 0; i < memory.header().layout_count.load(); ++i) linked.insert(memory.layout_block(i).load());
  linked.insert(memory.heap_header().index_block);
  for (u32 index = 0; index < heap_.descriptor_count(); ++index) {
    const u64 word = heap_.descriptor(index).word.load();
    if (word_kind(word) != ObjectKind::kMeta || word_state(word) != ObjectState::kSealed) continue;
    const u32 owner = heap_.descriptor(index).owner;
    if ((owner == kOwnerLedger || owner == kOwnerIndex || owner == kOwnerLayout) && !linked.contains(index + 1))
      heap_.free_descriptor(index, false);
  }
}

void HeapRecovery::recount_pins() {
  HeapHeader& heap = heap_.memory.heap_header();
  std::unordered_map<u32, u32> pins;
  for_ledgers(heap_, [&](u32, LedgerEntry& entry) {
    const u64 what = entry.what.load();
    if (ledger_kind(what) == LedgerKind::kPin) ++pins[ledger_descriptor(what)];
  });
  u64 pinned = 0, pending = 0;
  for (u32 index = 0; index < heap_.descriptor_count(); ++index) {
    Descriptor& entry = heap_.descriptor(index);
    const u64 word = entry.word.load();
    if (word_state(word) == ObjectState::kFree || word_kind(word) != ObjectKind::kData) continue;
    const auto found = pins.find(index);
    const u32 right = found == pins.end() ? 0 : found->second;
    entry.word.fetch_add(u64{right} - word_pins(word));  // an add: a seal by its maker may happen at the same time
    if (word_state(word) == ObjectState::kDoomed) {
      if (right == 0)
        heap_.free_descriptor(index, false);
      else if (!is_away(entry))
        pending += Blocks::block_bytes(entry.bytes);
    }
    if (right != 0 && !is_away(entry)) pinned += Blocks::block_bytes(entry.bytes);
  }
  heap.pinned_bytes.store(pinned);
  heap.pending_bytes.store(pending);
}

void HeapRecovery::recount_charges() {
  Memory& memory = heap_.memory;
  for (u32 i = 0; i < memory.table_count(); ++i) {
    memory.table(i).used_bytes.store(0);
    memory.table(i).dropped_bytes.store(0);
    memory.table(i).open_bytes.store(0);
    memory.table(i).used_chunks.store(0);
  }
  for (u32 index = 0; index < heap_.descriptor_count(); ++index) {
    const u64 word = heap_.descriptor(index).word.load();
    if (word_kind(word) != ObjectKind::kChunk || word_state(word) == ObjectState::kFree) continue;
    if (!heap_.chunk_memory.has_attachments(index)) continue;  // damaged: the call that frees it says so
    const u64 bytes = heap_.chunk_memory.block_bytes(index), dropped = heap_.chunk_memory.dropped_bytes(index);
    const std::span<Attachment> all = heap_.chunk_memory.attachments(index);
    for (u32 k = 0; k < all.size(); ++k) {
      const Attachment& at = all[k];
      if (at.attached.load() == 0 || at.table >= memory.table_count()) continue;
      TableHeader& table = memory.table(at.table);
      if (table.generation.load() != at.table_generation) continue;
      table.used_bytes.store(table.used_bytes + bytes);
      table.dropped_bytes.store(table.dropped_bytes + dropped);
      const bool open = (heap_.chunk_memory.uses_at(index, k).load(std::memory_order_relaxed) & kUsesClosed) == 0;
      if (open) table.open_bytes.store(table.open_bytes + bytes);
      table.used_chunks.store(table.used_chunks + 1);
    }
  }
  heap_.budget.recount_claims();
}

// --------------------------------------------------------------------------------------------------------------- check

HeapRecovery::Figures HeapRecovery::figures() const {
  const HeapHeader& heap = heap_.memory.heap_header();
  u64 used = 0, open = 0;
  for (u32 i = 0; i < heap_.memory.table_count(); ++i) {
    used += heap_.memory.table(i).used_bytes.load();
    open += heap_.memory.table(i).open_bytes.load();
  }
  return {{"bytes of tables' chunks", used},     {"bytes of tables' open chunks", open},
          {"live bytes", heap.live_bytes},       {"pinned bytes", heap.pinned_bytes},
          {"pending bytes", heap.pending_bytes}, {"object pages", heap.object_bytes},
          {"chunk pages", heap.chunk_bytes},     {"meta pages", heap.meta_bytes},
          {"free pages", heap.free_bytes},       {"table charge", heap.table_charge},
          {"live objects", heap.live_objects},   {"free descriptors", heap.free_count}};
}

void HeapRecovery::check_descriptors(std::vector<std::string>* findings) const {
  const u64 data = heap_.memory.places().data;
  for (u32 index = 0; index < heap_.descriptor_count(); ++index) {
    const Descriptor& entry = heap_.descriptor(index);
    const u64 word = entry.word.load();
    if (word_state(word) == ObjectState::kFree) continue;
    // An object that is not in memory has a record, or its maker died while it released the block.
    const bool away = word_kind(word) == ObjectKind::kData && is_away(entry) &&
                      (is_logged(entry) || word_state(word) == ObjectState::kCreating);
    if (!away && (entry.offset < data || entry.offset + entry.bytes > heap_.memory.file_bytes()))
      findings->push_back("descriptor " + std::to_string(index) + " points outside the store");
    if ((entry.flags & kFlagHasId) && word_state(word) != ObjectState::kDoomed &&
        heap_.ids.find(entry.name.id) != index)
      findings->push_back("descriptor " + std::to_string(index) + " is missing in the index");
  }
}

// Recomputes every derived figure; each difference is a finding.
void HeapRecovery::check(std::vector<std::string>* findings) {
  check_descriptors(findings);
  const Figures before = figures();
  rebuild();
  heap_.lock.begin_change();
  const Figures after = figures();
  for (std::size_t i = 0; i < before.size(); ++i)
    if (before[i].second != after[i].second)
      findings->push_back(before[i].first + ": " + std::to_string(before[i].second) + ", recounted " +
                          std::to_string(after[i].second));
}

}  // namespace di
