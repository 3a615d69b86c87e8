// What tables and writers need of the heap.
#include <algorithm>
#include <cstring>

#include "heap/heap.h"

namespace di {
namespace {

constexpr u64 kSpareDescriptors = 32;  // for blocks of the heap's own: ledgers, layouts, the index

}  // namespace

// ------------------------------------------------------------------------------------------------------------ chunks

void Heap::release_if_unused(u32 chunk) {
  const u64 word = descriptor(chunk).word.load();
  if (word_kind(word) != ObjectKind::kChunk || word_state(word) != ObjectState::kSealed) return;
  for (const Attachment& at : attachments(*this, chunk))
    if (at.attached.load() != 0) return;
  free_descriptor(chunk, false);
}

// An open chunk too: one of its tables may be done with it.
void Heap::detach_locked(u32 chunk, u32 table) {
  const u64 word = descriptor(chunk).word.load();
  if (word_kind(word) != ObjectKind::kChunk || word_state(word) == ObjectState::kFree) return;
  const std::span<Attachment> all = attachments(*this, chunk);
  for (u32 i = 0; i < all.size(); ++i) {
    Attachment& at = all[i];
    if (at.table != table || at.attached.load() == 0) continue;
    const bool gone = arena_.table(table).generation.load() != at.table_generation;  // then its uses mean nothing
    if (!gone && uses_at(*this, chunk, i).load(std::memory_order_acquire) != kUsesClosed) continue;
    at.attached.store(0);
    DI_FAULT("heap.detached");
    if (!gone) charge(table, -static_cast<i64>(Blocks::block_bytes(descriptor(chunk).bytes)), 0);
  }
  release_if_unused(chunk);
}

void Heap::detach(std::span<const u32> chunks, u32 table, u64 deadline_ns) {
  if (chunks.empty()) return;
  Guard guard(*this, deadline_ns);
  for (const u32 chunk : chunks) detach_locked(chunk, table);
  wake_room();
}

// No item to come of this table will need the chunk: from here on only those that are there pay for it.
void Heap::end_need(u32 chunk, u32 position) {
  if ((uses_at(*this, chunk, position).fetch_or(kUsesClosed, std::memory_order_acq_rel) & kUsesClosed) != 0) return;
  DI_FAULT("heap.need_ended");
  const Attachment& at = chunk_header(*this, chunk).attachment[position];
  if (at.attached.load() != 0 && arena_.table(at.table).generation.load() == at.table_generation)
    charge(at.table, 0, -static_cast<i64>(Blocks::block_bytes(descriptor(chunk).bytes)));
}

void Heap::close_locked(u32 chunk) {
  ChunkHeader& header = chunk_header(*this, chunk);
  header.full.store(1, std::memory_order_release);
  descriptor(chunk).summary.rows.store(header.published.load(), std::memory_order_relaxed);
  const std::span<Attachment> all = attachments(*this, chunk);
  for (u32 i = 0; i < all.size(); ++i) end_need(chunk, i);
  DI_FAULT("heap.chunk_closed");
  if (word_state(descriptor(chunk).word.load()) == ObjectState::kCreating) descriptor(chunk).word.fetch_add(kSealStep);
  for (const Attachment& at : all) {
    if (word_state(descriptor(chunk).word.load()) != ObjectState::kSealed) break;  // freed by the last detach
    detach_locked(chunk, at.table);
  }
  wake_room();
}

bool Heap::close_chunk(u32 chunk, u32 position, u32 entry, u64 deadline_ns) {
  try {
    Guard guard(*this, deadline_ns);
    if (position != kNone) {
      end_need(chunk, position);
      detach_locked(chunk, chunk_header(*this, chunk).attachment[position].table);
      wake_room();
      return true;
    }
    close_locked(chunk);
    arena_.ledger().entry(entry).what.store(0, std::memory_order_release);
  } catch (...) {
    if (deadline_ns != 0) throw;
    rethrow_lasting();
    return false;
  }
  arena_.ledger().give(entry);
  return true;
}

void Heap::sweep_chunks(u64 deadline_ns) {
  for (u32 index = 0; index < descriptor_count(); ++index) {
    const u64 word = descriptor(index).word.load(std::memory_order_acquire);
    if (word_kind(word) != ObjectKind::kChunk || word_state(word) == ObjectState::kFree) continue;
    Guard guard(*this, deadline_ns);  // re-read under the lock: it may have been freed meanwhile
    const u64 again = descriptor(index).word.load();
    if (word_kind(again) != ObjectKind::kChunk || word_state(again) == ObjectState::kFree) continue;
    for (const Attachment& at : attachments(*this, index)) {
      if (word_state(descriptor(index).word.load()) == ObjectState::kFree) break;
      detach_locked(index, at.table);
    }
  }
  settle_collapses(deadline_ns);
}

// ------------------------------------------------------------------------------------------------------ tables' bytes

// What is short for a table to claim so much, and for so many bytes beside that; 0: there is room.
u64 Heap::missing_for(u32 index, u64 claims, u64 beside) const {
  const TableHeader& table = arena_.table(index);
  const u64 used = table.used_bytes, before = std::max(table.reserve_bytes + table.held_bytes, used),
            after = std::max(claims, used);
  const u64 claim = claimed() - before + after + beside, budget = spendable(arena_.heap_header().budget.load());
  return after + beside > before && claim > budget ? claim - budget : 0;
}

void Heap::set_claims(u32 index, u64 reserve_bytes, u64 held_bytes) {
  HeapHeader& heap = arena_.heap_header();
  TableHeader& table = arena_.table(index);
  const u64 used = table.used_bytes;
  const u64 before = std::max(table.reserve_bytes + table.held_bytes, used),
            after = std::max(reserve_bytes + held_bytes, used);
  table.reserve_bytes.store(reserve_bytes);
  table.held_bytes.store(held_bytes);
  heap.table_charge.store(heap.table_charge - before + after);
  if (after < before) wake_room();
}

// Chunks that a table's reserve holds, and so descriptors.
u64 Heap::promised_by(const TableHeader& table) {
  const u64 block = table.chunk_block.load(std::memory_order_relaxed);
  return block == 0 ? 0 : table.reserve_wanted.load(std::memory_order_relaxed) / block;
}

void Heap::recount_promised() {
  u64 total = 0;
  for (u32 i = 0; i < arena_.table_count(); ++i) total += promised_by(arena_.table(i));
  arena_.heap_header().promised = total;
}

// Of these, the ones that no chunk has taken yet, if a table promised so many.
u64 Heap::unkept(u32 index, u64 promised) const {
  u64 total = 0;
  for (u32 i = 0; i < arena_.table_count(); ++i) {
    const u64 of_it = i == index ? promised : promised_by(arena_.table(i)), used = arena_.table(i).used_chunks.load();
    total += of_it > used ? of_it - used : 0;
  }
  return total == 0 ? 0 : total + kSpareDescriptors;
}

// Of the segments that are still to come for so many free descriptors.
u64 Heap::segments_bytes(u64 descriptors) const {
  const HeapHeader& heap = arena_.heap_header();
  u64 more = 0;
  for (u32 i = heap.segment_count.load(); i < kDescriptorSegments && heap.free_count + more < descriptors; ++i)
    more += u64{kFirstDescriptorSegment} << i;
  return more * sizeof(Descriptor);
}

// A segment of descriptors per hold: they are memory too, and stay. So none is made before all of them and the reserve
// fit, and the reserve is set when they are there, in one hold. A kill inside leaves a part of it: rebuild() puts the
// three numbers in order, and the caller had not come so far as to change the capacity.
bool Heap::reserve(u32 index, const Reserve& reserve, u64 deadline_ns, std::string* why) {
  TableHeader& table = arena_.table(index);
  for (;;) {
    u64 missing = 0;
    {
      Guard guard(*this, deadline_ns);
      const u64 block = reserve.chunk_block != 0 ? reserve.chunk_block : table.chunk_block.load();
      const u64 wanted = unkept(index, block == 0 ? 0 : reserve.bytes / block);
      const bool more = reserve.bytes > table.reserve_bytes;
      const u64 bytes = std::max<u64>(reserve.bytes, table.reserve_bytes);
      missing = missing_for(index, bytes + table.held_bytes, segments_bytes(wanted));
      const bool ready = arena_.heap_header().free_count >= wanted;
      const bool grown = missing == 0 && !ready && add_segment();
      if ((missing == 0 && ready) || (!more && !grown)) {  // to no more: without descriptors where there is no memory
        if (more) set_claims(index, reserve.bytes, table.held_bytes);
        table.reserve_wanted.store(reserve.bytes);
        table.reserve_open.store(reserve.open_bytes);
        table.chunk_block.store(block);
        recount_promised();
        return true;
      }
      if (missing == 0 && !grown) missing = kSliceBytes;
      if (missing != 0 && why != nullptr) *why = room_text();
    }
    if (missing != 0 && !free_holes(missing, deadline_ns)) return false;
  }
}

void Heap::settle_reserve(u32 index, u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  const TableHeader& table = arena_.table(index);
  if (table.reserve_wanted < table.reserve_bytes) set_claims(index, table.reserve_wanted, table.held_bytes);
}

bool Heap::raise_reserve(u32 index, u64 bytes, u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  TableHeader& table = arena_.table(index);
  const u64 least = table.used_bytes + bytes;
  if (least <= table.reserve_bytes) return false;
  for (const u64 wanted : {least + least / 4, least}) {
    if (missing_for(index, wanted + table.held_bytes, 0) != 0) continue;
    set_claims(index, wanted, table.held_bytes);
    table.reserve_wanted.store(wanted);
    recount_promised();
    return true;
  }
  return false;
}

bool Heap::may_fit(std::span<const u32> tables, u64 bytes, u64 deadline_ns, std::string* why) {
  Guard guard(*this, deadline_ns);
  const u64 budget = arena_.heap_header().budget.load(), least = least_claim(tables, bytes);
  if (least <= spendable(budget)) return true;
  if (why != nullptr)
    *why = "with the rows of this call, open episodes and what is set aside for tables need " + std::to_string(least) +
           " bytes of memory=" + std::to_string(budget) +
           "; nothing was written: give fewer rows at once, or raise memory= (store.resize)";
  return false;
}

void Heap::forget_table(u32 index, u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  TableHeader& table = arena_.table(index);
  Shared<u64>& charge = arena_.heap_header().table_charge;
  charge.store(charge - std::max(table.reserve_bytes + table.held_bytes, table.used_bytes.load()));
  table.generation.fetch_add(1);
  for (Shared<u64>* bytes : {&table.reserve_bytes, &table.reserve_wanted, &table.reserve_open, &table.held_bytes,
                             &table.used_bytes, &table.open_bytes, &table.chunk_block, &table.used_chunks})
    bytes->store(0);
  recount_promised();
  wake_room();
}

bool Heap::hold(u32 index, i64 delta_bytes, u64 deadline_ns, bool force) {
  for (;;) {
    u64 missing = 0;
    {
      Guard guard(*this, deadline_ns);
      const TableHeader& table = arena_.table(index);
      const u64 held = table.held_bytes + static_cast<u64>(delta_bytes);
      if (!force) missing = missing_for(index, table.reserve_bytes + held, 0);
      if (missing == 0) set_claims(index, table.reserve_bytes, held);
    }
    if (missing == 0) return true;
    if (!free_holes(missing, deadline_ns)) return false;
  }
}

void Heap::settle(u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  settle_dropped();
}

u64 Heap::available(u64 deadline_ns) {
  settle(deadline_ns);
  if (free_holes(kSliceBytes, deadline_ns)) move_pages(~u64{0}, true, deadline_ns);  // asked for seldom: exact
  Guard guard(*this, deadline_ns);
  const u64 budget = spendable(arena_.heap_header().budget.load());
  return budget > claimed() ? budget - claimed() : 0;
}

void Heap::free_meta(std::span<const u32> descriptors, u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  for (const u32 index : descriptors) free_descriptor(index, false);
  wake_room();
}

void Heap::free_meta_of(u32 table, std::span<const u32> linked, u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  for (u32 index = 0; index < descriptor_count(); ++index) {
    const u64 word = descriptor(index).word.load();
    if (word_kind(word) != ObjectKind::kMeta || word_state(word) != ObjectState::kSealed) continue;
    if (descriptor(index).owner != table) continue;
    if (std::find(linked.begin(), linked.end(), index + 1) == linked.end()) free_descriptor(index, false);
  }
  wake_room();
}

}  // namespace di
