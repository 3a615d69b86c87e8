// The second half of a writer's call: limiters asked, rows published, items inserted, chunks let go.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "replay/priorities.h"
#include "replay/writer.h"

namespace di {
namespace {

constexpr const char* kNoMemory = "this process is out of memory";  // after the call has passed: it waits for some

// That inserting so many takes: past the capacity each evicts before it comes.
u64 slots_for(const TableHeader& table, u64 items) {
  const u64 room = table.capacity > table.size ? table.capacity - table.size : 0;
  if (table.limiter.queue != 0 || room >= items) return items;
  return std::min(items, room + kBatchStep);
}

// By lane; those of one lane keep the order in which they were made, which is that of time: starts begin anew with each
// episode, and rows that are inserted whole all have start 0. Needs no memory: the call has had its effect.
void list_by_lane(std::vector<MadeItem>* made) {
  const auto earlier = [](const MadeItem& a, const MadeItem& b) {
    // mutant: items-of-a-call-by-start
    return a.lane != b.lane ? a.lane < b.lane : a.order < b.order;
  };
  if (!std::is_sorted(made->begin(), made->end(), earlier)) std::sort(made->begin(), made->end(), earlier);
}

}  // namespace

i64 Writer::version_of(u32 table, LaneState& lane, const Window& window) {
  const TableSink& sink = plan_.tables[table];
  if (plan_.version == kNone && !sink.track_version) return -1;
  const bool behind = sink.spec.has_next() && (window.flags & (kItemNoNext | kItemFinished)) == 0;
  const i64 first = window.first + window.back, end = window.first + window.rows - (behind ? 1 : 0);
  if (plan_.version == kNone) return lane.versions[table].least(first, end);
  i64 least = INT64_MAX;
  for (i64 raw = first; raw < end; ++raw) {
    u32 row = 0;
    OpenChunk& chunk = chunk_of(lane, raw, &row);
    if (chunk.is_final(row)) continue;  // between two episodes of a window that runs across
    const u8* at = chunk.cell(plan_.layout, row, plan_.version);
    i64 value = 0;
    if (plan_.version_bytes == 4) {
      i32 narrow;
      std::memcpy(&narrow, at, 4);
      value = narrow;
    } else {
      std::memcpy(&value, at, 8);
    }
    least = std::min(least, value);
  }
  return least == INT64_MAX ? -1 : least;
}

NewItem Writer::locate(u32 table, const Pending& pending) {
  LaneState& lane = lanes_[pending.lane];
  u32 row = 0;
  const OpenChunk& chunk = chunk_of(lane, pending.window.first, &row);
  return NewItem{chunk.descriptor(),   row,
                 pending.window.rows,  pending.window.back,
                 pending.window.flags, version_of(table, lane, pending.window),
                 pending.priority};
}

// Publishes the staged rows of each lane: chunk by chunk, links before the rows that need them.
void Writer::publish(const std::vector<u32>& lanes) {
  for (const u32 index : lanes) {
    LaneState& state = lanes_[index];
    const Lane& lane = state.staged;
    const i64 end = lane.raw + (lane.ahead.any() ? 1 : 0);
    for (u32 at = state.committed.current; at <= lane.current && at < state.chunks.size(); ++at) {
      OpenChunk& chunk = state.chunks[at];
      const i64 stop = at < lane.current ? state.chunks[at + 1].first_raw : end;
      chunk.publish(static_cast<u32>(stop - chunk.first_raw));
      DI_FAULT("writer.published");
      if (at < lane.current) chunk.link(state.chunks[at + 1].descriptor());
    }
    state.committed = lane;
    state.windows.swap(state.windows_staged);
  }
}

// They were checked without the lock. If configure() has changed alpha since, those not inserted yet are checked again;
// from here to the insertion it cannot change.
void Writer::recheck_priorities(u32 table) {
  if (alpha_.empty()) return;
  const PriorityRange range = priority_range(plan_.tables[table].table->header());
  if (range.alpha == alpha_[table]) return;
  const std::size_t first = inserted_[table];
  const std::string effect =
      first == 0 ? "nothing was written"
                 : "alpha was changed in the middle of the call: its rows and " + std::to_string(first) + " of its " +
                       std::to_string(pending_[table].size()) + " items were written, the others are left out";
  for (std::size_t i = first; i < pending_[table].size(); ++i)
    if (const double given = pending_[table][i].priority; !std::isnan(given))
      require_priorities(range, {&given, 1}, effect.c_str());
  alpha_[table] = range.alpha;
}

void Writer::insert_some(u32 table) {
  Table& sink = *plan_.tables[table].table;
  const std::vector<Pending>& list = pending_[table];
  const std::size_t first = inserted_[table], end = std::min<std::size_t>(list.size(), first + kBatchStep);
  items_.clear();
  keys_.clear();
  for (std::size_t i = first; i < end; ++i) items_.push_back(locate(table, list[i]));
  sink.insert(items_, &keys_);
  inserted_[table] = end;
  for (std::size_t i = first; i < end; ++i)
    made_[table].push_back({keys_[i - first], list[i].window.start, list[i].lane, static_cast<u32>(i)});
}

// Whether the table has slots for these items, or may evict others for them where no memory is left for more slots.
bool Writer::has_slots(Table& table, u64 items, bool no_more) {
  const TableHeader& header = table.header();
  const u64 some = std::min<u64>(items, kBatchStep);
  return header.free_slots >= items ||
         (no_more && header.limiter.queue == 0 && header.free_slots + header.size >= some);
}

// Grows the table; false: there is no memory for that, and it goes on with the slots that it has, if it can.
bool Writer::add_slots(Table& table, u64 items, u64 deadline_ns) {
  try {
    table.ensure_slots(items, deadline_ns);
  } catch (const Error& error) {
    if (error.code() != Code::kCapacity && error.code() != Code::kStoreFull) throw;
    Table::Guard guard(table, deadline_ns);
    if (!has_slots(table, items, true)) throw;
    return false;
  }
  return true;
}

bool Writer::try_commit(const std::vector<u32>& lanes, u64 deadline_ns, Blocked* blocked, bool no_more) {
  std::vector<std::unique_ptr<Table::Guard>> guards;
  for (u32 i = 0; i < plan_.tables.size(); ++i) {
    if (pending_[i].empty()) continue;
    Table& table = *plan_.tables[i].table;
    blocked->seq = table.header().room_seq.load(std::memory_order_seq_cst);
    guards.push_back(std::make_unique<Table::Guard>(table, deadline_ns));
    recheck_priorities(i);
    blocked->text = table.why_no_insert();
    if (!blocked->text.empty()) {
      blocked->why = Blocked::Why::kLimiter;
      blocked->table = i;
      return false;
    }
    const u64 wanted = slots_for(table.header(), pending_[i].size());
    if (!has_slots(table, wanted, no_more)) {
      guards.clear();
      return try_commit(lanes, deadline_ns, blocked, !add_slots(table, wanted, deadline_ns) || no_more);
    }
  }
  // Room for all that follows: once rows are published the call has its effect, and may not fail for want of memory.
  items_.reserve(kBatchStep);
  keys_.reserve(kBatchStep);
  // mutant: published-before-there-is-room
  for (u32 i = 0; i < plan_.tables.size(); ++i) made_[i].reserve(pending_[i].size());
  unfinished_.reserve(lanes.size());
  publish(lanes);
  for (u32 i = 0; i < plan_.tables.size(); ++i)
    if (!pending_[i].empty()) insert_some(i);
  unfinished_ = lanes;
  return true;
}

Blocked Writer::commit(const std::vector<u32>& lanes, u64 deadline_ns) {
  Blocked blocked;
  for (const TableSink& sink : plan_.tables)
    if (!sink.table->live()) sink.table->require_live();
  try {
    if (!try_commit(lanes, deadline_ns, &blocked)) {
      roll_back(lanes);
      return blocked;
    }
  } catch (...) {
    roll_back(lanes);
    throw;
  }
  return resume();
}

// The other items of a call that has passed, for as long as locks and slots can be had.
Blocked Writer::insert_rest(u32 number) {
  Table& table = *plan_.tables[number].table;
  Blocked blocked;
  bool no_more = false;  // memory for slots
  while (inserted_[number] < pending_[number].size()) {
    DI_FAULT("writer.between_slices");
    const std::size_t some = std::min<std::size_t>(kBatchStep, pending_[number].size() - inserted_[number]);
    const Deadline deadline_ns = Deadline::slice();
    try {
      blocked.seq = table.header().room_seq.load(std::memory_order_seq_cst);
      Table::Guard guard(table, deadline_ns);
      recheck_priorities(number);
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
      if (blocked.text.empty()) no_more = !add_slots(table, some, deadline_ns);
    } catch (const Error& error) {  // others took the slots that were there, and no memory is left for more
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

Blocked Writer::resume() {
  if (unfinished_.empty()) return Blocked{};
  std::optional<Error> refused;
  for (u32 i = 0; i < plan_.tables.size(); ++i) {
    try {
      if (const Blocked blocked = insert_rest(i); blocked.why != Blocked::Why::kNothing) return blocked;
    } catch (const Error& error) {
      // Dropped meanwhile, or alpha is another: the other tables get theirs.
      if (error.code() != Code::kTableNotFound && error.code() != Code::kInvalid) throw;
      inserted_[i] = pending_[i].size();
      refused = error;
    }
  }
  for (u32 i = 0; i < plan_.tables.size(); ++i) {
    plan_.tables[i].table->settle(0);
    pending_[i].clear();
    list_by_lane(&made_[i]);
  }
  const std::vector<u32> lanes = std::move(unfinished_);
  unfinished_.clear();
  let_go(lanes);
  if (refused) throw *refused;
  return Blocked{};
}

Blocked Writer::before_call() {
  Blocked blocked = resume();
  blocked.passed = false;  // of this call nothing has been written
  return blocked;
}

// Chunks no window of the lane can reach any more; those that only some tables' windows reach are charged to these from
// now on. The call has had its effect: this must neither fail nor wait, and what is left comes with the next call.
void Writer::let_go(const std::vector<u32>& lanes) {
  Heap& heap = arena_->heap();
  for (const u32 index : lanes) {
    LaneState& state = lanes_[index];
    if (state.committed.current == 0) continue;
    std::vector<u32>& past = state.past;
    u32 all = state.committed.current;
    for (u32 i = 0; i < past.size(); ++i) {
      const i64 oldest = std::min(state.committed.raw, state.windows[i].oldest_needed());
      u32 reached = past[i];
      while (reached < state.committed.current && state.chunks[reached + 1].first_raw <= oldest) ++reached;
      reached_[i] = reached;
      all = std::min(all, reached);
    }
    for (u32 i = 0; i < past.size(); ++i) {
      // mutant: a-short-view-pays-for-a-long-one
      past[i] = std::max(past[i], all);
      while (past[i] < reached_[i] && heap.close_chunk(state.chunks[past[i]].descriptor(), i, kNone, 0)) ++past[i];
    }
    for (; all > 0; --all) {
      const OpenChunk front = state.chunks.front();
      if (!heap.close_chunk(front.descriptor(), kNone, front.entry(), 0)) break;
      state.chunks.pop_front();
      --state.committed.current;
      for (u32& each : past) --each;
    }
  }
}

}  // namespace di
