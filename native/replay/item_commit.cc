#include "replay/item_commit.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "replay/due_groups.h"
#include "replay/priorities.h"

namespace di {
namespace {

constexpr const char* kNoMemory = "this process is out of memory";  // then a call that has passed waits and tries again

// Free slots needed to insert so many items. A table at its capacity evicts before each insert, so it needs fewer.
u64 slots_for(const TableHeader& table, u64 items) {
  if (table.group_size != 0) return items;
  const u64 here = table.size + table.waiting, room = table.capacity > here ? table.capacity - here : 0;
  if (table.limiter.queue != 0 || room >= items) return items;
  return std::min(items, room + kBatchStep);
}

// Sorts by lane; items of one lane keep the order in which they were made. Sorting by `start` would not give that
// order: `start` begins again with each episode, and is 0 for all rows inserted whole. Allocates nothing, because the
// call has passed already.
void list_by_lane(std::vector<MadeItem>* made) {
  const auto earlier = [](const MadeItem& a, const MadeItem& b) {
    return a.lane != b.lane ? a.lane < b.lane : a.order < b.order;
  };
  if (!std::is_sorted(made->begin(), made->end(), earlier)) std::sort(made->begin(), made->end(), earlier);
}

// Whether the table has free slots for these items. no_more: there is no memory for more slots, so slots that eviction
// can free count too; an import evicts nothing.
bool has_slots(const Table& table, u64 items, bool no_more) {
  const TableHeader& header = table.header();
  const u64 some = std::min<u64>(items, kBatchStep);
  return header.free_slots >= items || (no_more && header.limiter.queue == 0 && !is_being_imported(header.limiter) &&
                                        header.free_slots + header.size + header.waiting >= some);
}

// Grows the table. False: there is no memory for that, but eviction makes enough room. Throws if it doesn't.
bool add_slots(Table& table, u64 items, Deadline deadline) {
  try {
    table.growth.ensure_slots(items, deadline);
  } catch (const Error& error) {
    if (error.code() != Code::kCapacity && error.code() != Code::kStoreFull) throw;
    TableGuard guard(table.core, deadline);
    if (!has_slots(table, items, true)) throw;
    return false;
  }
  return true;
}

}  // namespace

ItemCommit::ItemCommit(WriterState& state)
    : state_(state), inserted_(state.plan.tables.size()), reached_(state.plan.tables.size()) {}

// --------------------------------------------------------------------------------------------------------------- items

i64 ItemCommit::stored_version(OpenChunk& chunk, u32 row) const {
  const u8* at = chunk.cell(state_.plan.layout, row, state_.plan.version);
  if (state_.plan.version_bytes == 4) {
    i32 narrow;
    std::memcpy(&narrow, at, 4);
    return narrow;
  }
  i64 value = 0;
  std::memcpy(&value, at, 8);
  return value;
}

i64 ItemCommit::version_of(u32 table, Lane& lane, const Window& window) const {
  const TableSink& sink = state_.plan.tables[table];
  const bool column = state_.plan.version != kNone;
  if (!column && !sink.track_version) return -1;
  const bool behind = sink.spec.has_next() && (window.flags & (kItemNoNext | kItemFinished)) == 0;
  const i64 first = window.first + window.back;
  i64 end = window.first + window.rows - (behind ? 1 : 0);
  if (sink.spec.horizon != 0) end = std::min<i64>(end, first + sink.spec.n_step);  // later rows may be newer
  if (!column) return lane.versions[table].least(first, end);
  i64 least = INT64_MAX;
  for (i64 raw = first; raw < end; ++raw) {
    u32 row = 0;
    OpenChunk& chunk = lane.chunk_of(raw, &row);
    if (chunk.is_final(row)) continue;  // a final observation inside a window over several episodes
    least = std::min(least, stored_version(chunk, row));
  }
  return least == INT64_MAX ? -1 : least;
}

// The word where an item that begins with this window's first step waits, if a late column is missing there. The caller
// holds the table's lock, so no update comes in between.
Shared<u32>* ItemCommit::waits_at(u32 table, Lane& lane, const Window& window) const {
  const u32 needs = state_.plan.tables[table].needs;
  if (needs == 0) return nullptr;
  u32 row = 0;
  OpenChunk& chunk = lane.chunk_of(window.first + window.back, &row);
  return chunk.has_late(row, needs) ? nullptr : chunk.waits(table, row);
}

NewItem ItemCommit::locate(u32 table, const PendingItem& pending) {
  Lane& lane = state_.lanes[pending.lane];
  u32 row = 0;
  const OpenChunk& chunk = lane.chunk_of(pending.window.first, &row);
  if (pending.given != 0) {
    const GivenItem& given = state_.given[pending.given - 1];
    return NewItem{chunk.descriptor(), row,
                   given.rows,         given.back,
                   given.flags,        given.version,
                   given.priority,     waits_at(table, lane, pending.window),
                   given.uses,         static_cast<i64>(given.epochs)};
  }
  NewItem fresh{chunk.descriptor(),   row,
                pending.window.rows,  pending.window.back,
                pending.window.flags, version_of(table, lane, pending.window),
                pending.priority,     waits_at(table, lane, pending.window)};
  if (const u32 column = state_.plan.tables[table].group; column != kNone)
    std::memcpy(&fresh.group, chunk.cell(state_.plan.layout, row, column),
                state_.plan.layout.columns[column].row_bytes);
  return fresh;
}

// The call's priorities were checked before, without the lock. If configure() has changed alpha since then, this checks
// the priorities of the remaining items again. The caller holds the table's lock, so alpha can't change before they are
// inserted.
void ItemCommit::recheck_priorities(u32 table) {
  if (state_.alpha.empty()) return;
  const PriorityRange range = priority_range(state_.plan.tables[table].table->header());
  if (range.alpha == state_.alpha[table]) return;
  const std::size_t first = inserted_[table];
  const std::string effect =
      first == 0 ? "nothing was written"
                 : "alpha was changed in the middle of the call: its rows and " + std::to_string(first) + " of its " +
                       std::to_string(state_.pending[table].size()) + " items were written, the others are left out";
  for (std::size_t i = first; i < state_.pending[table].size(); ++i)
    if (const double given = state_.pending[table][i].priority; !std::isnan(given))
      require_priorities(range, {&given, 1}, effect.c_str());
  state_.alpha[table] = range.alpha;
}

void ItemCommit::insert_some(u32 table) {
  Table& sink = *state_.plan.tables[table].table;
  const std::vector<PendingItem>& list = state_.pending[table];
  const std::size_t first = inserted_[table], end = std::min<std::size_t>(list.size(), first + kBatchStep);
  items_.clear();
  keys_.clear();
  for (std::size_t i = first; i < end; ++i) items_.push_back(locate(table, list[i]));
  if (state_.marks) {
    const MarkUpdate mark = state_.marks->update(table, first, list.size());
    sink.insert(items_, &keys_, &mark);
  } else {
    sink.insert(items_, &keys_);
  }
  inserted_[table] = end;
  for (std::size_t i = first; i < end; ++i)
    if (const u64 key = keys_[i - first]; key != kNoItem)
      state_.made[table].push_back({key, list[i].window.start, list[i].lane, static_cast<u32>(i)});
}

// ---------------------------------------------------------------------------------------------------------- the commit

// A statistic. It changes without the table's lock, because a call that makes no item does not take that lock.
void ItemCommit::count_left_out(const Lane& lane) {
  for (u32 i = 0; i < state_.plan.tables.size(); ++i)
    if (const u64 more = lane.windows_staged[i].left_out() - lane.windows[i].left_out(); more != 0)
      state_.plan.tables[i].table->header().steps_left_out.fetch_add(more, std::memory_order_relaxed);
}

bool ItemCommit::try_commit(const std::vector<u32>& lanes, Deadline deadline, Blocked* blocked, bool no_more) {
  std::vector<std::unique_ptr<TableGuard>> guards;
  for (u32 i = 0; i < state_.plan.tables.size(); ++i) {
    if (state_.pending[i].empty()) continue;
    Table& table = *state_.plan.tables[i].table;
    blocked->seq = table.header().room_seq.load(std::memory_order_seq_cst);
    guards.push_back(std::make_unique<TableGuard>(table.core, deadline));
    end_due_groups(table.core);
    recheck_priorities(i);
    if (state_.marks) state_.marks->require_mine(i, state_.pending[i].size());
    blocked->text = state_.plan.restores ? "" : table.why_no_insert();
    if (!blocked->text.empty()) {
      blocked->why = Blocked::Why::kLimiter;
      blocked->table = i;
      return false;
    }
    const u64 wanted = slots_for(table.header(), state_.pending[i].size());
    if (!has_slots(table, wanted, no_more)) {
      guards.clear();
      return try_commit(lanes, deadline, blocked, !add_slots(table, wanted, deadline) || no_more);
    }
  }
  // Allocates for the steps below: once rows are published, the call must not fail for lack of memory.
  items_.reserve(kBatchStep);
  keys_.reserve(kBatchStep);
  for (u32 i = 0; i < state_.plan.tables.size(); ++i) state_.made[i].reserve(state_.pending[i].size());
  unfinished_.reserve(lanes.size());
  if (state_.marks) state_.marks->pass();
  for (const u32 index : lanes) {
    count_left_out(state_.lanes[index]);
    state_.lanes[index].publish();
  }
  for (u32 i = 0; i < state_.plan.tables.size(); ++i)
    if (!state_.pending[i].empty()) insert_some(i);
  unfinished_ = lanes;
  return true;
}

Blocked ItemCommit::commit(const std::vector<u32>& lanes, Deadline deadline) {
  Blocked blocked;
  for (const TableSink& sink : state_.plan.tables)
    if (!sink.table->live()) sink.table->require_live();
  try {
    if (!try_commit(lanes, deadline, &blocked)) {
      state_.roll_back(lanes);
      return blocked;
    }
  } catch (...) {
    state_.roll_back(lanes);
    throw;
  }
  return resume();
}

// Inserts the remaining items of a call that has passed, until the table's lock, slots or memory are missing.
Blocked ItemCommit::insert_rest(u32 number) {
  Table& table = *state_.plan.tables[number].table;
  Blocked blocked;
  bool no_more = false;  // there is no memory for more slots
  while (inserted_[number] < state_.pending[number].size()) {
    DI_FAULT("writer.between_slices");
    const std::size_t some = std::min<std::size_t>(kBatchStep, state_.pending[number].size() - inserted_[number]);
    const Deadline deadline = Deadline::slice();
    try {
      blocked.seq = table.header().room_seq.load(std::memory_order_seq_cst);
      TableGuard guard(table.core, deadline);
      end_due_groups(table.core);
      recheck_priorities(number);
      if (state_.marks) state_.marks->require_mine(number, state_.pending[number].size());
      if (has_slots(table, some, no_more)) {
        insert_some(number);
        continue;
      }
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout) throw;
      blocked.text = error.what();
      blocked.holder = error.holder();
    } catch (const std::bad_alloc&) {
      blocked.text = kNoMemory;
    }
    try {
      if (blocked.text.empty()) no_more = !add_slots(table, some, deadline);
    } catch (const Error& error) {  // others have taken the free slots, and there is no memory for more
      if (error.code() != Code::kTimeout && error.code() != Code::kCapacity && error.code() != Code::kStoreFull) throw;
      blocked.text = error.what();
      blocked.holder = error.holder();
    } catch (const std::bad_alloc&) {
      blocked.text = kNoMemory;
    }
    if (blocked.text.empty()) continue;
    blocked.why = Blocked::Why::kLock;
    blocked.table = number;
    blocked.passed = true;
    return blocked;
  }
  return blocked;
}

Blocked ItemCommit::resume() {
  if (unfinished_.empty()) return Blocked{};
  std::optional<Error> refused;
  for (u32 i = 0; i < state_.plan.tables.size(); ++i) {
    try {
      if (const Blocked blocked = insert_rest(i); blocked.why != Blocked::Why::kNothing) return blocked;
    } catch (const Error& error) {
      // The table was dropped meanwhile, or its alpha changed: the other tables still get their items.
      if (error.code() != Code::kTableNotFound && error.code() != Code::kInvalid) throw;
      inserted_[i] = state_.pending[i].size();
      refused = error;
    }
  }
  for (u32 i = 0; i < state_.plan.tables.size(); ++i) {
    state_.plan.tables[i].table->core.do_deferred(Deadline::only_try());
    state_.pending[i].clear();
    list_by_lane(&state_.made[i]);
  }
  const std::vector<u32> lanes = std::move(unfinished_);
  unfinished_.clear();
  let_go(lanes);
  if (refused) throw *refused;
  return Blocked{};
}

// Closes the lanes' chunks that no future window needs. A chunk that only some tables' windows still need is closed for
// the other tables, which no longer pay for it. The call has passed, so this must neither fail nor wait; the next call
// does the rest. Takes the heap's lock for each chunk, if it is free.
void ItemCommit::let_go(const std::vector<u32>& lanes) {
  Heap& heap = state_.arena->heap();
  for (const u32 index : lanes) {
    Lane& lane = state_.lanes[index];
    if (lane.committed.current == 0) continue;
    std::vector<u32>& past = lane.past;
    u32 all = lane.committed.current;
    for (u32 i = 0; i < past.size(); ++i) {
      const i64 needed = state_.plan.restores ? state_.next_given : lane.windows[i].oldest_needed();
      const i64 oldest = std::min(lane.committed.raw, needed);
      u32 reached = past[i];
      while (reached < lane.committed.current && lane.chunks[reached + 1].first_raw <= oldest) ++reached;
      reached_[i] = reached;
      all = std::min(all, reached);
    }
    for (u32 i = 0; i < past.size(); ++i) {
      past[i] = std::max(past[i], all);
      while (past[i] < reached_[i] &&
             heap.chunks.close(lane.chunks[past[i]].descriptor(), i, kNone, Deadline::only_try()))
        ++past[i];
    }
    for (; all > 0; --all) {
      const OpenChunk front = lane.chunks.front();
      if (!heap.chunks.close(front.descriptor(), kNone, front.entry(), Deadline::only_try())) break;
      lane.chunks.pop_front();
      --lane.committed.current;
      for (u32& each : past) --each;
    }
  }
}

}  // namespace di
