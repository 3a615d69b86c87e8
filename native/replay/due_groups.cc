#include "replay/due_groups.h"

#include <algorithm>

#include "replay/answers.h"

namespace di {
namespace {

bool can_be_drawn(const TableCore& core, const Item& item) {
  try {
    return is_complete_answer(core, item);
  } catch (const Error& error) {
    if (error.code() != Code::kCorruptData) throw;
    return false;
  }
}

// Marks the answers that lack late columns, and damaged ones. False: that would be all of them, and nothing was marked.
bool leave_out_incomplete(TableCore& core, u32 leader) {
  u32 there = 0;
  core.groups.each(leader, [&](u32, const Item& item) { there += can_be_drawn(core, item) ? 1 : 0; });
  if (there == 0) return false;
  if (there == core.groups.count(leader)) return true;
  core.groups.each(leader, [&](u32, Item& item) {
    if (!can_be_drawn(core, item)) core.undo.set(item.span, item.span_left_out());
  });
  return true;
}

void end_at_deadline(TableCore& core, u32 leader) {
  commit_if_short(core, words_to_remove(core));
  if (core.header.short_groups != 0 && leave_out_incomplete(core, leader))
    end_wait_of_short_group(core, leader);
  else
    core.remove(leader, GoneFor::kOverdue);
  DI_FAULT("groups.ended");
}

}  // namespace

u64 group_due_ns(const TableHeader& table, const Item& item, u64 now_ns) {
  return item.group_began_ns(now_ns) + table.group_deadline_ns;
}

void note_deadline(TableHeader& table, const Item& item, u64 now_ns) {
  if (table.group_deadline_ns == 0) return;
  const u64 due = group_due_ns(table, item, now_ns);
  if (due < table.group_due_ns.load(std::memory_order_relaxed))
    table.group_due_ns.store(due, std::memory_order_relaxed);
}

void end_wait_of_short_group(TableCore& core, u32 leader) {
  if (core.groups.has_all(leader)) {
    --core.header.gathered;
  } else {
    core.ended.add(core.groups.value(leader));
    core.groups.leave(leader);
  }
  ++core.header.groups_short;
  core.end_wait(leader);
}

// After finish() no answer can come. So groups that only lack answers need not wait for their deadline.
u64 end_due_groups(TableCore& core) {
  TableHeader& header = core.header;
  if (!is_group_due(header) || header.finished == kTakenOver) return 0;
  if (!core.groups.on() || header.group_deadline_ns == 0) {  // the header is damaged
    header.group_due_ns.store(kNoGroupDue, std::memory_order_relaxed);
    return 0;
  }
  const u64 now = os::boot_ns();
  const bool no_more = header.finished != 0 && header.short_groups != 0;
  core.change();
  OrderList& order = core.items.order();
  Steps steps(core.items.slots(), "a table's waiting items");
  u64 ended = 0;
  for (u32 slot = order.first_waiting(), next = kNone; slot != kNone && ended < kBatchStep; slot = next) {
    steps.count_one();
    next = order.next(slot);
    const bool over = group_due_ns(header, core.items[slot], now) <= now;
    if (over)
      end_at_deadline(core, slot);
    else if (!no_more)
      break;
    else
      commit_if_short(core, words_to_remove(core));
    if (over || end_wait_of_group(core, slot)) ++ended;
  }
  core.commit();
  const u32 first = order.first_waiting();
  const u64 due = first == kNone ? kNoGroupDue : group_due_ns(header, core.items[first], now);
  header.group_due_ns.store(ended == kBatchStep ? 0 : due, std::memory_order_relaxed);
  if (ended == 0) return 0;
  core.items_came().signal(kMaxClients);
  core.room_came().signal(kMaxClients);
  return ended;
}

void end_due_groups(TableCore& core, Deadline deadline) {
  for (bool more = is_group_due(core.header); more;) {
    {
      TableGuard guard(core, deadline);
      more = end_due_groups(core) == kBatchStep;
    }
    core.do_deferred(Deadline::only_try());
  }
}

}  // namespace di
