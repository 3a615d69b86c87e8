#include "tier/table_shares.h"

#include <algorithm>

#include "heap/tiers.h"
#include "tier/closed_chunks.h"
#include "tier/table_locks.h"

namespace di {
namespace {

constexpr u32 kLookedAt = 256, kLookedAtFirst = 8192;  // descriptors looked at in one hold
constexpr double kTieFactor = 1.05;                    // factors that differ by less count as equal

}  // namespace

void TableShares::look(u32 chunk) {
  const ChunkTier* const tier = closed_chunk(heap_, chunk);
  if (tier == nullptr) return;
  const double bytes = static_cast<double>(heap_.chunk_memory.block_bytes(chunk));
  const u32 pages = tier->stored_pages.load();
  for (const u32 table : tables_of(heap_, chunk)) {
    ChunkTotals& seen = seen_[table];
    const u32 generation = heap_.memory.table(table).generation.load();
    if (seen.generation != generation) seen = {.generation = generation};
    seen.bytes += bytes;
    seen.taken += pages == 0 ? bytes : static_cast<double>(u64{pages} * kPageBytes);
  }
}

// Looks at the next descriptors of the round. Bytes seen in earlier rounds count half as much.
void TableShares::look_at_some() {
  const u32 count = heap_.descriptor_count();
  for (u32 left = std::min(count, all_seen_ ? kLookedAt : kLookedAtFirst); left != 0; --left) {
    if (++hand_ >= count) {
      hand_ = 0;
      all_seen_ = true;
      for (ChunkTotals& seen : seen_) {
        seen.bytes /= 2;
        seen.taken /= 2;
      }
    }
    look(hand_);
  }
}

// The room that the table's items take in memory and on disk together, divided by what was set aside there; 0: they may
// not go. It counts items, not chunks: a chunk stays while it is read, and items that have left already must not be
// asked for again. It skips tables whose items leave in any order, because their chunks go only when nearly all items
// have.
double TableShares::factor(u32 index) const {
  const TableHeader& table = heap_.memory.table(index);
  const ChunkTotals& seen = seen_[index];
  const u64 item_bytes = __atomic_load_n(&table.item_bytes, __ATOMIC_RELAXED);
  const u64 used = std::min(table.used_bytes.load(), table.stat_size.load() * item_bytes);
  if (!table.is(TableState::kLive) || used == 0 || table.used_bytes.load() == table.open_bytes.load()) return 0;
  const SamplerKind remover = static_cast<SamplerKind>(table.remover);
  if (remover != SamplerKind::kFifo && remover != SamplerKind::kLifo) return 0;
  // Guarded by the table's lock, but never changed once the table is live.
  if (__atomic_load_n(&table.limiter.queue, __ATOMIC_RELAXED) != 0) return 0;
  const double part = seen.generation == table.generation.load() && seen.bytes > 0 ? seen.taken / seen.bytes : 1;
  return static_cast<double>(used) * part / static_cast<double>(std::max<u64>(1, share_of(table)));
}

u32 TableShares::most_over(u32 own, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  os::LocalGuard<std::mutex> local(mutex_);  // after the heap's lock: the mutex's holder waits for no other process
  look_at_some();
  u32 found = kNone;
  double most = std::max(1.0, own == kNone ? 0 : factor(own) * kTieFactor);
  for (u32 i = 0; i < heap_.memory.table_count(); ++i) {
    const double at = i == own ? 0 : factor(i);
    if (at <= most) continue;
    most = at;
    found = i;
  }
  return found;
}

}  // namespace di
