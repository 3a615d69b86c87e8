// Counts the open writers of a table, so that learners know whether items may still come. Each writer is an entry of
// its process's ledger, so the reaper closes the writers of a dead process. Count and entry change under the table's
// lock; if a kill makes them differ, the next owner of the lock counts the entries again.
#pragma once

#include <vector>

#include "os/deadline.h"

namespace di {

class TableCore;

class OpenWriters {
 public:
  explicit OpenWriters(TableCore& core) : core_(core) {}

  u32 open(Deadline deadline);  // returns the writer's ledger entry
  void close(u32 entry);        // if the table's lock is not available, the next TableCore::do_deferred() closes it
  void end_late();              // closes the writers that close() left; under the table's lock

 private:
  void reserve_late(u64 writers);
  void close_later(u32 entry);
  void end(u32 entry);

  TableCore& core_;
  std::vector<u32> late_;  // entries of writers still to close; guarded by the process's lock Arena::local()
};

}  // namespace di
