// The second half of a writer's call. It takes the tables' locks in order of index, asks the limiters, publishes the
// rows, inserts the items, and closes chunks that no future item needs. Publishing is one release store for each lane
// (rows/chunk_view.h) and needs no lock; the locks are for the items.
//
// A call passes as a whole as soon as its first item may pass. It then holds a lock for kBatchStep items at a time. If
// a lock can't be taken again because its owner is stopped, resume() inserts the rest; every later call begins with
// resume(). A writer that is killed in between leaves its rows published and the rest of its items not inserted.
#pragma once

#include <algorithm>
#include <vector>

#include "replay/writer_state.h"

namespace di {

class ItemCommit {
 public:
  explicit ItemCommit(WriterState& state);

  void begin_call() { std::fill(inserted_.begin(), inserted_.end(), 0); }
  // kNothing: the call has passed, and all its items are inserted. Any other result names what the call waits for. If
  // `passed` is false, nothing has changed; if it is true, only resume() may follow.
  Blocked commit(const std::vector<u32>& lanes, Deadline deadline);
  Blocked resume();  // inserts the rest of a call that has passed; kNothing: done

 private:
  // DI_UNCHECKED: clang's analysis can't follow guards whose number is known only at run time.
  bool try_commit(const std::vector<u32>& lanes, Deadline deadline, Blocked* blocked,
                  bool no_more = false) DI_UNCHECKED;
  void recheck_priorities(u32 table) DI_UNCHECKED;
  void count_left_out(const Lane& lane);
  void insert_some(u32 table) DI_UNCHECKED;  // up to kBatchStep items, under the table's guard
  Blocked insert_rest(u32 table) DI_UNCHECKED;
  NewItem locate(u32 table, const PendingItem& pending);
  Shared<u32>* waits_at(u32 table, Lane& lane, const Window& window) const;
  i64 version_of(u32 table, Lane& lane, const Window& window) const;
  i64 stored_version(OpenChunk& chunk, u32 row) const;
  void let_go(const std::vector<u32>& lanes);

  WriterState& state_;
  std::vector<std::size_t> inserted_;  // by table: number of pending items inserted so far
  std::vector<u32> unfinished_;        // lanes of a call that has passed but has items not inserted yet
  std::vector<NewItem> items_;         // items of one hold; a member, so that nothing is allocated after publishing
  std::vector<u64> keys_;              // of these items; a member for the same reason
  std::vector<u32> reached_;           // scratch of let_go(), by table
};

}  // namespace di
