#include "heap/chunk_ends.h"

#include <algorithm>

namespace di {
namespace {

constexpr u64 kSweepNs = 100'000'000;  // a full store looks for unused chunks at most this often,
constexpr u64 kSweepRest = 100;        // and pauses for this many times the duration of the last look
constexpr u32 kSweptAtOnce = 256;      // descriptors in one hold

}  // namespace

bool is_claimed(const Client& client, const ChunkTier& tier) {
  const u32 claim = tier.claim.load();
  return claim != 0 && !owner_gone(client, claim);
}

void ChunkEnds::release_if_unused(u32 chunk) {
  const u64 word = heap_.descriptor(chunk).word.load();
  if (word_kind(word) != ObjectKind::kChunk || word_state(word) != ObjectState::kSealed) return;
  for (const Attachment& at : heap_.chunk_memory.attachments(chunk))
    if (at.attached.load() != 0) return;
  if (const ChunkTier* const tier = heap_.chunk_memory.tier(chunk); tier != nullptr && is_claimed(heap_.client, *tier))
    return;
  heap_.free_descriptor(chunk, false);
}

// Detaches open chunks too, because one of their tables may no longer need them.
void ChunkEnds::detach_held(u32 chunk, u32 table) {
  const u64 word = heap_.descriptor(chunk).word.load();
  if (word_kind(word) != ObjectKind::kChunk || word_state(word) == ObjectState::kFree) return;
  const std::span<Attachment> all = heap_.chunk_memory.attachments(chunk);
  for (u32 i = 0; i < all.size(); ++i) {
    Attachment& at = all[i];
    if (at.table != table || at.attached.load() == 0) continue;
    const bool gone = heap_.memory.table(table).generation.load() != at.table_generation;  // uses then mean nothing
    if (!gone && heap_.chunk_memory.uses_at(chunk, i).load(std::memory_order_acquire) != kUsesClosed) continue;
    at.attached.store(0);
    DI_FAULT("heap.detached");
    if (gone) continue;
    heap_.budget.charge_dropped(table, -static_cast<i64>(heap_.chunk_memory.dropped_bytes(chunk)));
    heap_.budget.charge(table, -static_cast<i64>(heap_.chunk_memory.block_bytes(chunk)), 0, -1);
  }
  release_if_unused(chunk);
}

void ChunkEnds::detach(std::span<const u32> chunks, u32 table, Deadline deadline) {
  if (chunks.empty()) return;
  HeapGuard guard(heap_, deadline);
  for (const u32 chunk : chunks) detach_held(chunk, table);
  heap_.budget.announce_room();
}

// No future item of this table will need the chunk: from now on only existing items are charged for it.
void ChunkEnds::end_need(u32 chunk, u32 position, const Attachment& at) {
  if ((heap_.chunk_memory.uses_at(chunk, position).fetch_or(kUsesClosed, std::memory_order_acq_rel) & kUsesClosed) != 0)
    return;
  DI_FAULT("heap.need_ended");
  if (at.attached.load() != 0 && heap_.memory.table(at.table).generation.load() == at.table_generation)
    heap_.budget.charge(at.table, 0, -static_cast<i64>(heap_.chunk_memory.block_bytes(chunk)), 0);
}

void ChunkEnds::close_held(u32 chunk) {
  ChunkHeader& header = heap_.chunk_memory.head(chunk);
  Descriptor& entry = heap_.descriptor(chunk);
  header.full.store(1, std::memory_order_release);
  entry.summary.rows.store(header.published.load(), std::memory_order_relaxed);
  const std::span<Attachment> all = heap_.chunk_memory.attachments(chunk);
  for (u32 i = 0; i < all.size(); ++i) end_need(chunk, i, all[i]);
  DI_FAULT("heap.chunk_closed");
  if (word_state(entry.word.load()) == ObjectState::kCreating) entry.word.fetch_add(kSealStep);
  for (const Attachment& at : all) {
    if (word_state(entry.word.load()) != ObjectState::kSealed) break;  // freed by the last detach
    detach_held(chunk, at.table);
  }
  heap_.budget.announce_room();
}

bool ChunkEnds::close(u32 chunk, u32 position, u32 entry, Deadline deadline) {
  Ledger& ledger = heap_.ledger;
  try {
    HeapGuard guard(heap_, deadline);
    if (position != kNone) {
      const Attachment& at = heap_.chunk_memory.head(chunk).attachment[position];
      end_need(chunk, position, at);
      detach_held(chunk, at.table);
      heap_.budget.announce_room();
      return true;
    }
    close_held(chunk);
    ledger.entry(entry).what.store(0, std::memory_order_release);
  } catch (...) {
    if (!deadline.tries_only()) throw;
    rethrow_lasting();
    return false;
  }
  ledger.give(entry);
  return true;
}

void ChunkEnds::sweep(Deadline deadline) {
  for (u32 index = 0; index < heap_.descriptor_count();) {
    HeapGuard guard(heap_, deadline);
    for (const u32 end = std::min(heap_.descriptor_count(), index + kSweptAtOnce); index < end; ++index) {
      const u64 word = heap_.descriptor(index).word.load();
      if (word_kind(word) != ObjectKind::kChunk || word_state(word) == ObjectState::kFree) continue;
      for (const Attachment& at : heap_.chunk_memory.attachments(index)) {
        if (word_state(heap_.descriptor(index).word.load()) == ObjectState::kFree) break;
        detach_held(index, at.table);
      }
    }
  }
  end_dead_fills(deadline);
}

// Finds chunks whose last use ended in a process that was killed before it detached them.
void ChunkEnds::sweep_now_and_then(Deadline deadline) {
  const u64 now = os::now_ns();
  u64 next = next_sweep_ns_.load(std::memory_order_relaxed);
  if (now < next || !next_sweep_ns_.compare_exchange_strong(next, now + kSweepNs, std::memory_order_relaxed)) return;
  sweep(deadline);
  const u64 end = os::now_ns();
  next_sweep_ns_.store(end + std::max(kSweepNs, kSweepRest * (end - now)), std::memory_order_relaxed);
}

void ChunkEnds::end_dead_fills(Deadline deadline) {
  constexpr u64 kSlicesPerHold = 1024;
  for (u64 at = 0, high = 1; at < high;) {
    HeapGuard guard(heap_, deadline);  // guards slice_high too: it grows while blocks are made
    high = heap_.memory.heap_header().slice_high;
    for (const u64 end = std::min(high, at + kSlicesPerHold); at < end; ++at) {
      const u32 filler = heap_.memory.slice(at).filler.load(std::memory_order_acquire);
      if (filler != 0 && owner_gone(heap_.client, filler)) heap_.reclaim.charge_filled(at, true);
    }
  }
}

}  // namespace di
