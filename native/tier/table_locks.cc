#include "tier/table_locks.h"

#include <algorithm>

namespace di {

std::vector<u32> tables_of(const Heap& heap, u32 chunk) {
  std::vector<u32> tables;
  for (const Attachment& at : heap.chunk_memory.attachments(chunk))
    if (at.attached.load() != 0 && at.table < heap.memory.table_count() &&
        heap.memory.table(at.table).generation.load() == at.table_generation)
      tables.push_back(at.table);
  std::sort(tables.begin(), tables.end());
  return tables;
}

bool is_read(const Heap& heap, u32 chunk) {
  const std::span<Attachment> all = heap.chunk_memory.attachments(chunk);
  for (u32 i = 0; i < all.size(); ++i)
    if (all[i].attached.load() != 0 &&
        readers_of(heap.chunk_memory.uses_at(chunk, i).load(std::memory_order_acquire)) != 0)
      return true;
  return false;
}

TableLocks::TableLocks(Heap& heap, const std::vector<u32>& tables, Deadline deadline) {
  try {
    for (const u32 table : tables) {
      locks_.push_back(std::make_unique<SharedLock>(heap.client, heap.memory.table(table).lock,
                                                    "table '" + std::string(heap.memory.table(table).name) + "'"));
      locks_.back()->acquire(deadline);
      ++held_;
    }
  } catch (...) {
    release();
    throw;
  }
}

void TableLocks::release() {  // a list of locks: the analysis follows only single ones
  while (held_ > 0) locks_[--held_]->release();
}

}  // namespace di
