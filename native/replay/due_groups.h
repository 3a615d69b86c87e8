// Groups that are not complete at their deadline: delivered short, or dropped.
//
// The deadline counts from a group's first answer, whose slot keeps the time (base/item.h). Waiting groups lie in the
// order in which they began, so the first is the first that is due. No thread watches the clock: each draw, insert and
// update first ends what is due, in its own hold of the table's lock, and a draw that waits wakes at the next deadline.
// Chores and the reaper do the same for tables that nobody uses.
//
// A short group is live like any other, with fewer answers. Answers that lack late columns by then stay in it, marked
// kItemLeftOut, until it leaves. A group without any answer to deliver is dropped. A group ends in one commit.
#pragma once

#include "replay/table_core.h"

namespace di {

constexpr u64 kNoGroupDue = ~u64{0};  // TableHeader::group_due_ns

inline bool is_group_due(const TableHeader& table) {
  const u64 due = table.group_due_ns.load(std::memory_order_relaxed);
  return due != kNoGroupDue && due <= os::boot_ns();
}
// When the waiting group of this item is due. The table has deadlines.
u64 group_due_ns(const TableHeader& table, const Item& item, u64 now_ns);
// A group has begun.
void note_deadline(TableHeader& table, const Item& item, u64 now_ns);
// Under the table's lock, with nothing to commit: ends groups that are due, at most kBatchStep. Returns how many.
u64 end_due_groups(TableCore& core);
void end_due_groups(TableCore& core, Deadline deadline);  // all of them
// Under the table's lock: makes a waiting group live, though it lacks answers.
void end_wait_of_short_group(TableCore& core, u32 leader);

}  // namespace di
