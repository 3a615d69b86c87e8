#include "replay/writer.h"

namespace di {

Writer::Writer(std::shared_ptr<Arena> arena, WriterPlan plan, Deadline deadline)
    : state_(std::move(arena), std::move(plan)),
      room_(state_),
      rows_(state_, room_),
      episodes_(state_, rows_),
      limits_(state_, room_),
      commit_(state_),
      fork_generation_(state_.arena->fork_generation()) {
  HeapHeader& heap = state_.arena->heap_header();
  {
    HeapGuard guard(state_.arena->heap(), deadline);
    state_.chunk_plan.stream = static_cast<u32>(heap.next_stream);
    heap.next_stream += state_.plan.lanes;
  }
  for (u32 i = 0; i < state_.plan.lanes; ++i)
    state_.lanes[i].committed.episode = u64{state_.chunk_plan.stream + i} << 32;
  if (state_.plan.session)
    state_.marks = std::make_unique<CallMarks>(state_.arena, *state_.plan.session, state_.plan.tables, deadline);
  if (state_.plan.counted) be_counted(deadline);  // last, so that no table counts a writer whose constructor failed
}

void Writer::be_counted(Deadline deadline) {
  table_entries_.reserve(state_.plan.tables.size());
  try {
    for (const TableSink& sink : state_.plan.tables) table_entries_.push_back(sink.table->core.writers.open(deadline));
  } catch (...) {
    let_tables_go();
    if (state_.marks) state_.marks->let_go();
    throw;
  }
}

Writer::~Writer() {
  if (closed_ || !state_.arena->owns(fork_generation_)) return;
  const os::Quiet quiet;
  try {
    close();
  } catch (...) {
  }
}

// ------------------------------------------------------------------------------------------------------------- calls

void Writer::restart_call(const std::vector<u32>& lanes, bool several) {
  state_.begin_call(lanes, several);
  room_.begin_call();
  commit_.begin_call();
}

// First finishes the work that an earlier call has left. False: that is not possible yet, and nothing of this call was
// written.
bool Writer::begin_call(const WriterCall& call, bool several, Blocked* blocked) {
  *blocked = resume();
  blocked->passed = false;
  if (blocked->why != Blocked::Why::kNothing) return false;
  if (state_.marks) state_.marks->require_begun();
  restart_call(call.lanes, several);
  state_.alpha = call.alpha;
  for (u32 table = 0; table < state_.plan.tables.size(); ++table)
    state_.next_covers[table] = !call.next.empty() && state_.cells.covers(call.next, {}, table);
  return true;
}

// Writes rows that readers don't see yet, then commits them. If that fails, nothing has changed for readers; if the
// call can never fit, the chunks opened for it are closed.
template <class Write>
Blocked Writer::stage(const std::vector<u32>& lanes, const Write& write, Deadline deadline, Blocked* blocked) {
  try {
    if (!write()) {
      state_.roll_back(lanes);
      return *blocked;
    }
  } catch (const Error& error) {
    state_.roll_back(lanes);
    if (error.code() == Code::kCapacity) room_.close_spare(lanes);
    throw;
  } catch (...) {
    state_.roll_back(lanes);
    throw;
  }
  return commit_.commit(lanes, deadline);
}

bool Writer::write_steps(const WriterCall& call, Deadline deadline, Blocked* blocked) {
  for (u32 t = 0; t < call.steps; ++t)
    for (u32 l = 0; l < call.lanes.size(); ++l)
      if (!episodes_.step(call, t, l, deadline, blocked)) return false;
  return true;
}

Blocked Writer::append(const WriterCall& call, Deadline deadline) {
  Blocked blocked;
  if (!begin_call(call, call.steps > 1, &blocked)) return blocked;
  const auto write = [&] {
    if (!write_steps(call, deadline, &blocked)) return false;
    if (call.limited) limits_.refuse_more_than_fit(call);
    return true;
  };
  if (state_.several || !limits_.few_items(call)) limits_.refuse_what_never_fits(call, write, deadline);
  return stage(call.lanes, write, deadline, &blocked);
}

Blocked Writer::end_episode(const WriterCall& call, bool discard, Deadline deadline) {
  Blocked blocked;
  if (!begin_call(call, false, &blocked)) return blocked;
  const auto write = [&] {
    for (u32 l = 0; l < call.lanes.size(); ++l)
      if (!episodes_.end_lane(call, l, discard, deadline, &blocked)) return false;
    return true;
  };
  return stage(call.lanes, write, deadline, &blocked);
}

Blocked Writer::insert_whole(const WriterCall& call, const std::vector<WholeItem>& items, Deadline deadline) {
  Blocked blocked;
  if (!begin_call(call, true, &blocked)) return blocked;
  const auto write = [&] { return episodes_.insert_whole(call, items, deadline, &blocked); };
  limits_.refuse_what_never_fits(call, write, deadline);
  return stage(call.lanes, write, deadline, &blocked);
}

Blocked Writer::restore_rows(const WriterCall& call, const std::vector<GivenRow>& rows, Deadline deadline) {
  Blocked blocked;
  if (!begin_call(call, false, &blocked)) return blocked;
  state_.restored.clear();
  const auto write = [&] { return episodes_.restore_rows(call, rows, deadline, &blocked); };
  return stage(call.lanes, write, deadline, &blocked);
}

Blocked Writer::restore_items(std::vector<GivenItem> items, i64 next, Deadline deadline) {
  WriterCall call;
  call.lanes.push_back(0);
  Blocked blocked;
  if (!begin_call(call, false, &blocked)) return blocked;
  state_.given = std::move(items);
  state_.next_given = next;
  for (u32 i = 0; i < state_.given.size(); ++i) {
    const GivenItem& item = state_.given[i];
    if (item.first < 0 || item.rows == 0 || item.rows > kMaxWindowRows || item.back >= item.rows ||
        item.first > state_.lanes[0].committed.raw - i64{item.rows}) {
      state_.roll_back(call.lanes);
      throw Error(Code::kInvalid, "an item covers rows that were not restored");
    }
    state_.pending[0].push_back({0, Window{item.rows, item.first, item.back, 0, item.flags}, item.priority, i + 1});
  }
  return commit_.commit(call.lanes, deadline);
}

void Writer::number_call(u64 seq) {
  if (!state_.marks) throw Error(Code::kInvalid, "this writer writes for no session, so its calls have no numbers");
  state_.marks->begin(seq);
}

Blocked Writer::end_open_episodes(Deadline deadline) {
  WriterCall call;
  call.closes = true;
  for (u32 i = 0; i < state_.plan.lanes; ++i) call.lanes.push_back(i);
  if (state_.marks) return finish_at_once(call, deadline);
  Blocked blocked = end_episode(call, false, deadline);
  if (blocked.why != Blocked::Why::kNothing) return blocked;
  restart_call(call.lanes, false);
  for (const u32 lane : call.lanes) episodes_.close_lane(lane);
  return commit_.commit(call.lanes, deadline);
}

// Ends the episodes in one call, so that the session's marks show when all items are inserted.
Blocked Writer::finish_at_once(const WriterCall& call, Deadline deadline) {
  Blocked blocked;
  if (!begin_call(call, false, &blocked)) return blocked;
  const auto write = [&] {
    for (u32 l = 0; l < call.lanes.size(); ++l)
      if (!episodes_.end_lane(call, l, false, deadline, &blocked)) return false;
    for (const u32 lane : call.lanes) episodes_.close_lane(lane);
    return true;
  };
  return stage(call.lanes, write, deadline, &blocked);
}

// ------------------------------------------------------------------------------------------------------------- closing

// Must neither fail nor wait long: if a lock is not available, later calls of this process close the rest.
void Writer::close() {
  if (closed_) return;
  closed_ = true;
  for (Lane& lane : state_.lanes) let_chunks_go(lane);
  let_tables_go();
  if (state_.marks) state_.marks->let_go();
}

void Writer::let_chunks_go(Lane& lane) {
  for (const OpenChunk& chunk : lane.chunks) {
    try {
      state_.arena->heap().chunks.close(chunk.descriptor(), kNone, chunk.entry(), Deadline::brief());
    } catch (...) {
      rethrow_lasting();
      state_.arena->ledger().drop(chunk.entry());
    }
  }
  lane.chunks.clear();
}

void Writer::let_tables_go() {
  for (u32 i = 0; i < table_entries_.size(); ++i) {
    TableCore& table = state_.plan.tables[i].table->core;
    table.writers.close(table_entries_[i]);
    table.do_deferred(Deadline::only_try());
  }
  table_entries_.clear();
}

}  // namespace di
