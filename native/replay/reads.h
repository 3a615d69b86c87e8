// Reading keys and rows of items without drawing them. A read is an entry of this process's ledger that holds the
// item's chunks until Draws::deliver().
#pragma once

#include <span>
#include <vector>

#include "replay/draws.h"

namespace di {

class Reads {
 public:
  Reads(TableCore& core, Draws& draws) : core_(core), draws_(draws) {}

  void peek(std::span<const u64> keys, DrawSet* set, Deadline deadline);
  // Up to `count` live items behind the `start` oldest, each read in the hold that found it.
  void peek_oldest(u64 start, u64 count, DrawSet* set, Deadline deadline);

  // Keys of up to `count` live items behind the `start` oldest.
  std::vector<u64> keys(u64 start, u64 count, Deadline deadline) { return walk(start, count, nullptr, deadline); }
  // Keys of the live items in `count` slots: from number `start` on of a fixed sequence of all slots, any part of which
  // is spread evenly over the table.
  std::vector<u64> keys_spread(u64 start, u64 count, Deadline deadline);

 private:
  std::vector<u64> walk(u64 start, u64 count, DrawSet* set, Deadline deadline);
  u32 after_last(const std::vector<u64>& seen, u64 last);
  void read(u32 slot, DrawSet* set);

  TableCore& core_;
  Draws& draws_;
};

}  // namespace di
