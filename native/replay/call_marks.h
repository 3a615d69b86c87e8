// The session marks of one Writer. The Writer has claimed the marks of all its tables (session_marks.h), and sets them
// call by call. This object lies in this process's memory; only the marks are shared.
//
// The writer's user numbers each call in advance: begin(). A number is used up when its call passes, and the next
// number must be higher. A call that is blocked or refused uses up no number. A call that makes no item in a table
// leaves the table's mark as it is.
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

  void begin(u64 seq);         // throws kInvalid: not above the numbers used before
  void require_begun() const;  // throws kInvalid: the call's number was used before, or none was given
  // Call under the table's lock, before anything changes. Throws kWriterClosed: another writer of the session has
  // claimed the mark; kInvalid: so many items can't be counted.
  void require_mine(u32 table, u64 items) const;
  void pass() { passed_ = next_; }  // the call has passed: its number is used up
  // The update for the call that has passed, in a hold that inserts more items after `before` of `total`. Under the
  // table's lock.
  MarkUpdate update(u32 table, u64 before, u64 total) const;
  void let_go() noexcept;  // the writer closes; without a lock

 private:
  SessionMark& mark(u32 table) const { return arena_->mark(claimed_[table].mark); }

  const std::shared_ptr<Arena> arena_;
  std::vector<ClaimedMark> claimed_;  // by table
  u64 next_ = 0;                      // the number of the next call
  u64 passed_ = 0;                    // the last number that was used up
};

}  // namespace di
