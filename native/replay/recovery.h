// Rebuilds the derived parts of a table from its item slots and the ledgers: after a death, after growing, or for a
// check. Every call needs the table's lock. If a call is killed, the lock's `dirty` mark is still set, and the next
// owner starts the recovery again.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "replay/table_core.h"

namespace di {

class TableRecovery {
 public:
  explicit TableRecovery(TableCore& core) : core_(core), header_(core.header) {}

  // For use after an owner of the lock died: rolls back the words that it has not committed, then rebuilds every
  // derived part.
  void recover(Deadline deadline) DI_REQUIRES(core_.lock);
  void fill();  // rebuilds the order, the selectors and the counts of items from the slots
  // Rebuilds the derived parts and lists the errors found in them.
  void check(Deadline deadline, std::vector<std::string>* findings) DI_UNCHECKED;

 private:
  u64 rebuild(Deadline deadline);
  void end_waits();
  void end_group_waits();
  void fill_slot(u32 slot);
  void join_group(u32 slot);
  void free_damaged(u32 slot);
  u64 count_uses(Deadline deadline);
  u64 set_uses(const std::unordered_map<u32, u64>& uses, Deadline deadline);
  std::vector<u32> linked_blocks() const;
  void free_strays(Deadline deadline);

  TableCore& core_;
  TableHeader& header_;
};

}  // namespace di
