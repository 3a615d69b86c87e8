#include "replay/row_evictions.h"

#include <algorithm>

#include "maintenance/reaper.h"

namespace di {
namespace {

constexpr u64 kOthersNs = 50'000'000;  // wait for the lock of a table that this writer does not write
constexpr u64 kMomentNs = 500'000;     // between two checks for readers that have ended

}  // namespace

// Memory and disk are full, and another table takes more than was set aside for it: evicts that table's oldest items
// until it releases a chunk.
Table::Evicted RowEvictions::evict_of_others(u32 own, Deadline deadline) {
  const u32 index = state_.arena->heap().room_maker->most_over(own, deadline);
  if (index == kNone) return Table::Evicted::kNothing;
  try {
    if (other_ == nullptr || other_->index() != index || !other_->live())
      other_ = std::make_shared<Table>(state_.arena, index);
    const TableHeader& table = other_->header();
    const u64 before = table.used_bytes.load();
    const u64 item_bytes = std::max<u64>(1, __atomic_load_n(&table.item_bytes, __ATOMIC_RELAXED));
    const u64 calls = 1 + 2 * table.chunk_block.load() / (item_bytes * kBatchStep);
    for (u64 i = 0; i < calls && table.used_bytes.load() >= before; ++i) {
      const Table::Evicted gone = other_->evict_for_room(deadline.at_most(kOthersNs));
      if (gone == Table::Evicted::kItemsBeingRead) return await_readers(table, before, deadline);
      if (gone == Table::Evicted::kNothing) break;
    }
    return table.used_bytes.load() < before ? Table::Evicted::kItems : Table::Evicted::kNothing;
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout && error.code() != Code::kTableNotFound) throw;
    return Table::Evicted::kNothing;
  }
}

// A chunk of the table has lost its last item and is still being read: its room becomes free with its last reader. This
// waits for that, so that readers do not drain their table. kItems: the room became free.
Table::Evicted RowEvictions::await_readers(const TableHeader& table, u64 used_bytes, Deadline deadline) {
  const os::Blocking scope;
  const auto fewer = [&] { return table.used_bytes.load() < used_bytes; };
  while (!fewer() && !deadline.over()) {
    reap_when_due(*state_.arena);  // a reader may have died
    os::sleep_ns(kMomentNs);
  }
  return fewer() ? Table::Evicted::kItems : Table::Evicted::kItemsBeingRead;
}

bool RowEvictions::make_room(const ShortOf& short_of, u64 bytes, Deadline deadline, Blocked* blocked) {
  blocked->why = Blocked::Why::kStoreRoom;
  const std::vector<TableSink>& tables = state_.plan.tables;
  const auto own = std::find_if(tables.begin(), tables.end(),
                                [&](const TableSink& sink) { return sink.table->index() == short_of.table; });
  if (RoomMaker* const bodies = state_.arena->heap().room_maker; bodies != nullptr) {
    const RoomMaker::Kept kept = bodies->take_kept();
    if (kept == RoomMaker::Kept::kByReaders)
      blocked->text += "; batches are being copied from all rows that are in memory";
    if (kept != RoomMaker::Kept::kNot) return false;
  }
  if (own != tables.end() && own->grows() && state_.arena->heap().claims.raise_reserve(short_of.table, bytes, deadline))
    return true;
  if (short_of.tiers) {
    const RoomMaker::Emptied files = state_.arena->heap().room_maker->empty_more(deadline);
    if (files != RoomMaker::Emptied::kNothing) return files == RoomMaker::Emptied::kDone;
    const Table::Evicted gone = evict_of_others(short_of.table, deadline);
    if (gone == Table::Evicted::kItems) return true;
    if (gone == Table::Evicted::kItemsBeingRead) return false;  // the table evicts none of its own items for that
  }
  if (own == tables.end()) return false;
  const TableHeader& table = own->table->header();
  blocked->table = static_cast<u32>(own - tables.begin());
  blocked->seq = table.room_seq.load(std::memory_order_seq_cst);
  const u64 before = table.used_bytes.load();
  Table::Evicted gone = own->table->evict_for_room(deadline);
  blocked->why = Blocked::Why::kTableRoom;
  if (gone == Table::Evicted::kItemsBeingRead) gone = await_readers(table, before, deadline);
  return gone == Table::Evicted::kItems;
}

}  // namespace di
