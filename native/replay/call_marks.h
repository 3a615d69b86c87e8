// The marks of one Writer that writes for a session: it has claimed those of all its tables (session_marks.h), and sets
// them call by call. In this process's memory; only the marks are shared.
//
// The writer's user numbers each call before it: begin(). The number is used up when the call passes, and the next one
// must be higher. A call that is blocked, or refused, has used none. A call that makes no item in a table leaves the
// table's mark as it is.
#pragma once

#include <vector>

#include "replay/mark_update.h"
#include "replay/session_marks.h"
#include "replay/writer_call.h"

namespace di {

class CallMarks {
 public:
  CallMarks(std::shared_ptr<Arena> arena, const SessionId& session, const std::vector<TableSink>& tables,
            Deadline deadline);

  void begin(u64 seq);         // throws kInvalid: not above those that were used
  void require_begun() const;  // throws kInvalid: the number of this call was used, or none was given
  // Under the table's lock, before anything changes. Throws kWriterClosed: another writer of the session has claimed the
  // mark; kInvalid: so many items can't be counted.
  void require_mine(u32 table, u64 items) const;
  void pass() { passed_ = next_; }  // the call has passed: its number is used
  // Of the call that has passed, for a hold that inserts more items after `before` of `total`. Under the table's lock.
  MarkUpdate update(u32 table, u64 before, u64 total) const;
  void let_go() noexcept;  // the writer closes; without a lock

 private:
  SessionMark& mark(u32 table) const { return arena_->mark(claimed_[table].mark); }

  const std::shared_ptr<Arena> arena_;
  std::vector<ClaimedMark> claimed_;  // by table
  u64 next_ = 0;                      // the number of the next call
  u64 passed_ = 0;                    // the last one that was used
};

}  // namespace di
