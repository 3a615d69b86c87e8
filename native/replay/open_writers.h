// Counts the open writers of a table, so that learners know whether items may still come. Each is an entry of its
// process's ledger: the reaper closes the writers of a dead process.
#pragma once

#include <vector>

#include "os/deadline.h"

namespace di {

class TableCore;

class OpenWriters {
 public:
  explicit OpenWriters(TableCore& core) : core_(core) {}

  u32 open(Deadline deadline);  // ledger entry
  void close(u32 entry);        // where the table's lock is held up: with the next TableCore::settle()
  void end_late();              // closes those; under the table's lock

 private:
  void reserve_late(u64 writers);
  void close_later(u32 entry);
  void end(u32 entry);

  TableCore& core_;
  std::vector<u32> late_;  // [local] entries of writers that are still to be closed
};

}  // namespace di
