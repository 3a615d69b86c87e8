// Reads keys and rows of items without drawing them. A read is a ledger entry of this process that holds the item's
// chunks until Draws::deliver(). If the process dies, the reaper ends it.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "replay/draws.h"

namespace di {

struct ItemPlace {  // where an item begins
  u64 episode;
  i64 start;  // number in the episode of its first own step
  u32 rows;   // 0: the item is gone
  u32 flags;
};

// Lists by group, in the order in which the groups began. `keys` has the keys of all answers, one group after the
// other.
struct IncompleteGroups {
  std::vector<u64> values;
  std::vector<u32> answers;
  std::vector<u8> late;      // 1: it began after a group of this value had ended
  std::vector<double> ages;  // seconds since the first answer, or since the restore
  std::vector<u64> keys;
};

class Reads {
 public:
  Reads(TableCore& core, Draws& draws) : core_(core), draws_(draws) {}

  void peek(std::span<const u64> keys, DrawSet* set, Deadline deadline);
  // Describes at most kAtOnceItems items and calls `copy` in one hold of the lock, without ledger entries. Do not
  // deliver the set: it holds nothing once this returns. False: `copy` returned false.
  bool look(std::span<const u64> keys, DrawSet* set, const std::function<bool()>& copy, Deadline deadline);
  // Reads up to `count` live items after the `start` oldest, each in the hold that found it.
  void peek_oldest(u64 start, u64 count, DrawSet* set, Deadline deadline);

  // Keys of up to `count` live items after the `start` oldest; `leased`: and of leased ones.
  std::vector<u64> keys(u64 start, u64 count, Deadline deadline, bool leased = false) {
    return walk(start, count, nullptr, deadline, leased);
  }
  // Keys of the live items at these positions, oldest first, in one hold. False: finding them takes a walk, because
  // items have left out of order or the table was resized. Throws kInvalid for a position without an item.
  bool at(std::span<const i64> positions, std::vector<u64>* keys, Deadline deadline);
  // The reverse: the positions of these items; -1: the item is gone. False: as for at().
  bool positions(std::span<const u64> keys, std::vector<i64>* positions, Deadline deadline);

  // Keys of the items that wait for late columns, in order of insertion.
  std::vector<u64> waiting(Deadline deadline);
  // Groups that can't be drawn yet, kBatchStep in each hold of the lock. Empty in a table without groups.
  IncompleteGroups incomplete(Deadline deadline);
  std::vector<ItemPlace> places(std::span<const u64> keys, Deadline deadline);
  // By key: with Once, the epochs that are over for the item (UseCounts::drawn_epochs); 0: it is gone. And its draws that
  // may still be given back by the end of its lease: 0 or 1. The epochs are without that draw.
  struct DrawnItems {
    std::vector<u64> epochs;
    std::vector<u32> leased;
  };
  DrawnItems drawn(std::span<const u64> keys, Deadline deadline);

  // With Prioritized: the sums of p^alpha that the next draw uses.
  MassSums masses(Deadline deadline);

  // Keys of the live items in `count` slots, for samples of the table. It takes entries `start` to `start + count` of a
  // fixed sequence of slots; every part of that sequence is spread evenly over the table.
  std::vector<u64> keys_spread(u64 start, u64 count, Deadline deadline);

 private:
  std::vector<u64> walk(u64 start, u64 count, DrawSet* set, Deadline deadline, bool leased = false);
  u32 after_last(const std::vector<u64>& seen, u64 last);
  void read(u32 slot, DrawSet* set);
  u32 shown(u64 key) const;
  void list_group(u32 leader, IncompleteGroups* to) const;
  void hold(const Drawn& row, DrawSet* set);
  void found(u32 slot, Drawn* to) const;

  TableCore& core_;
  Draws& draws_;
};

}  // namespace di
