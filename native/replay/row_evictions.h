// Evicts items so that a chunk for a lane's rows finds room. Of which table: Budget::evictable() or TableShares::most_over();
// which items: Table::evict_for_room().
#pragma once

#include <memory>

#include "replay/writer_state.h"

namespace di {

class RowEvictions {
 public:
  explicit RowEvictions(WriterState& state) : state_(state) {}

  // Called when a new chunk found no room. True: try again. False: only others can make room; *blocked says where.
  bool make_room(const ShortOf& short_of, u64 bytes, Deadline deadline, Blocked* blocked);

 private:
  Table::Evicted evict_of_others(u32 own, Deadline deadline);
  Table::Evicted await_readers(const TableHeader& table, u64 used_bytes, Deadline deadline);

  WriterState& state_;
  std::shared_ptr<Table> other_;  // whose items went last, to make room for rows of these
};

}  // namespace di
