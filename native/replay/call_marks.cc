#include "replay/call_marks.h"

#include <algorithm>

namespace di {

CallMarks::CallMarks(std::shared_ptr<Arena> arena, const SessionId& session, const std::vector<TableSink>& tables,
                     Deadline deadline)
    : arena_(std::move(arena)) {
  SessionMarks marks(arena_);
  claimed_.reserve(tables.size());
  try {
    for (const TableSink& sink : tables) claimed_.push_back(marks.claim(session, *sink.table, deadline));
  } catch (...) {
    let_go();
    throw;
  }
  for (const ClaimedMark& each : claimed_) passed_ = std::max(passed_, mark_seq(each.before));
  next_ = passed_;
}

void CallMarks::begin(u64 seq) {
  if (seq <= passed_ || seq > kMostMarkSeq)
    throw Error(Code::kInvalid, "seq=" + std::to_string(seq) +
                                    ": calls of a session have numbers that rise; the last was " +
                                    std::to_string(passed_))
        .told();
  next_ = seq;
}

void CallMarks::require_begun() const {
  if (next_ == passed_)
    throw Error(Code::kInvalid, "a writer of a session needs begin_call(seq) before each call: nothing was written")
        .told();
}

void CallMarks::require_mine(u32 table, u64 items) const {
  if (mark(table).owner.load(std::memory_order_acquire) != claimed_[table].owner)
    throw Error(Code::kWriterClosed, "another writer has taken over this writer's session, or the session has ended")
        .told();
  if (items > kMostMarkItems)
    throw Error(Code::kInvalid, "a call of a session makes at most " + std::to_string(kMostMarkItems) +
                                    " items in one table, and this one makes " + std::to_string(items) +
                                    ": nothing was written; write fewer steps at once")
        .told();
}

MarkUpdate CallMarks::update(u32 table, u64 before, u64 total) const {
  SessionMark& at = mark(table);
  at.used_ns.store(os::boot_ns(), std::memory_order_relaxed);
  return {at, passed_, before, total};
}

// If another writer has claimed a mark since, the mark's word differs and stays.
void CallMarks::let_go() noexcept {
  for (u32 table = 0; table < claimed_.size(); ++table) {
    u64 seen = claimed_[table].owner;
    mark(table).owner.compare_exchange_strong(seen, mark_owner(mark_claim(seen), 0), std::memory_order_acq_rel);
  }
}

}  // namespace di
