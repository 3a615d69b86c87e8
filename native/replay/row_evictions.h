// Evicts items so that a new chunk for a lane's rows fits. Budget::evictable() or TableShares::most_over() chooses the
// table, and Table::evict_for_room() chooses the items.
#pragma once

#include <memory>

#include "replay/writer_state.h"

namespace di {

class RowEvictions {
 public:
  explicit RowEvictions(WriterState& state) : state_(state) {}

  // Call when there was no room for a new chunk. True: try again. False: only others can make room; *blocked says
  // where.
  bool make_room(const ShortOf& short_of, u64 bytes, Deadline deadline, Blocked* blocked);

 private:
  Table::Evicted evict_of_others(u32 own, Deadline deadline);
  Table::Evicted await_readers(const TableHeader& table, u64 used_bytes, Deadline deadline);

  WriterState& state_;
  std::shared_ptr<Table> other_;  // the table that last lost items to make room for these rows
};

}  // namespace di
