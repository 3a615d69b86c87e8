// The second half of a writer's call: takes the tables' locks in order of index, asks the limiters, publishes the rows,
// inserts the items and closes chunks that nothing to come needs.
//
// A call passes as a whole as soon as its first item may pass. The locks are then held for kBatchStep items at a time.
// If one can't be had again (its owner is stopped), resume() inserts the rest; every later call begins with resume().
#pragma once

#include <algorithm>
#include <vector>

#include "replay/writer_state.h"

namespace di {

class ItemCommit {
 public:
  explicit ItemCommit(WriterState& state);

  void begin_call() { std::fill(inserted_.begin(), inserted_.end(), 0); }
  // kNothing: the call has passed, and all its items are inserted. Else what blocks, and nothing has changed.
  Blocked commit(const std::vector<u32>& lanes, Deadline deadline);
  Blocked resume();  // inserts the rest of a call that has passed; kNothing: done

 private:
  // DI_UNCHECKED: clang's analysis can't follow a number of guards known at run time only.
  bool try_commit(const std::vector<u32>& lanes, Deadline deadline, Blocked* blocked,
                  bool no_more = false) DI_UNCHECKED;
  void recheck_priorities(u32 table) DI_UNCHECKED;
  void insert_some(u32 table) DI_UNCHECKED;  // up to kBatchStep items, under the table's guard
  Blocked insert_rest(u32 table) DI_UNCHECKED;
  NewItem locate(u32 table, const Pending& pending);
  i64 version_of(u32 table, Lane& lane, const Window& window) const;
  i64 stored_version(OpenChunk& chunk, u32 row) const;
  void let_go(const std::vector<u32>& lanes);

  WriterState& state_;
  std::vector<std::size_t> inserted_;  // of the pending items, by table
  std::vector<u32> unfinished_;        // lanes of a call that has passed and whose items are not all inserted yet
  std::vector<NewItem> items_;         // of one hold; a member, so that nothing is allocated after publishing
  std::vector<u64> keys_;              // the same
  std::vector<u32> reached_;           // of let_go(): by table
};

}  // namespace di
