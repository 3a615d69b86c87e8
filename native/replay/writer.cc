#include "replay/writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace di {

Writer::Writer(std::shared_ptr<Arena> arena, WriterPlan plan, u64 deadline_ns)
    : arena_(std::move(arena)),
      plan_(std::move(plan)),
      nothing_(plan_.layout.columns.size()),
      versions_(plan_.tables.size(), -1) {
  fork_generation_ = arena_->fork_generation();
  chunk_plan_ = plan_chunk(plan_.layout, plan_.chunk_bytes, plan_.least_rows, plan_.heap_bytes_per_row,
                           static_cast<u32>(plan_.tables.size()));
  planned_block_ = block_ = tables_block();
  std::vector<Windows> windows;
  for (const TableSink& sink : plan_.tables) {
    chunk_plan_.tables.push_back(sink.table->index());
    chunk_plan_.table_generations.push_back(sink.table->generation());
    windows.emplace_back(sink.spec);
    tracks_versions_ = tracks_versions_ || sink.track_version;
  }
  {
    Heap::Guard guard(arena_->heap(), deadline_ns);
    chunk_plan_.stream = static_cast<u32>(arena_->heap_header().next_stream);
    arena_->heap_header().next_stream += plan_.lanes;
  }
  lanes_.resize(plan_.lanes);
  for (u32 i = 0; i < plan_.lanes; ++i) {
    lanes_[i].windows = windows;
    lanes_[i].windows_staged = windows;
    lanes_[i].past.resize(plan_.tables.size());
    if (tracks_versions_) lanes_[i].versions.resize(plan_.tables.size());
    lanes_[i].committed.episode = u64{chunk_plan_.stream + i} << 32;
  }
  pending_.resize(plan_.tables.size());
  inserted_.resize(plan_.tables.size());
  reached_.resize(plan_.tables.size());
  made_.resize(plan_.tables.size());
  if (plan_.counted) be_counted(deadline_ns);  // last: an error leaves no table that counts it
}

void Writer::be_counted(u64 deadline_ns) {
  table_entries_.reserve(plan_.tables.size());
  try {
    for (const TableSink& sink : plan_.tables) table_entries_.push_back(sink.table->open_writer(deadline_ns));
  } catch (...) {
    let_tables_go();
    throw;
  }
}

Writer::~Writer() {
  if (closed_ || !arena_->owns(fork_generation_)) return;
  const os::Quiet quiet;
  try {
    close();
  } catch (...) {
  }
}

// ------------------------------------------------------------------------------------------------------------- cells

Cell Writer::Source::cell(u32 column) const {
  const ColumnInput& from = input[column];
  if (!gives(column)) return kept->cells[column];
  if (from.cells != nullptr) return from.cells[u64{t} * lanes + l];
  return Cell{from.base + t * from.step_stride + l * from.lane_stride, 1};
}

bool Writer::stored_here(u32 column, i64 step) const {
  bool sparse = false;
  for (const TableSink& sink : plan_.tables)
    for (const u32 first : sink.first)
      if (first == column) {
        sparse = true;
        if (step % sink.spec.period == 0) return true;
      }
  return !sparse;
}

// `behind`: of an observation, which is written as it is given; else of a step.
u64 Writer::heap_need(const Source& source, const Lane& lane, bool behind) const {
  if (plan_.heap_bytes_per_row == 0) return 0;
  u64 bytes = 0;
  for (u32 c = 0; c < source.input.size(); ++c) {
    if (lane.ahead[c] || (!behind && !stored_here(c, lane.steps))) continue;
    bytes += heap_bytes(source, c);
  }
  return bytes;
}

u64 Writer::heap_bytes(const Source& source, u32 column) const {
  const ColumnLayout& layout = plan_.layout.columns[column];
  if (layout.place != static_cast<u32>(ColumnPlace::kHeap) || !source.has(column)) return 0;
  return (u64{source.cell(column).count} * layout.row_bytes + 15) / 16 * 16;
}

// What the row takes at most, whatever of it is there already.
u64 Writer::heap_bytes(const Source& source) const {
  u64 bytes = 0;
  for (u32 c = 0; c < source.input.size(); ++c) bytes += heap_bytes(source, c);
  return bytes;
}

// A step gives its flags and its discount itself, also where next= has told of them.
Cell Writer::told(const WriterCall& call, u32 column, u32 t, u32 l) const {
  const Source source{call.columns, t, l, static_cast<u32>(call.lanes.size())};
  if (!source.gives(column)) throw Error(Code::kSchemaMismatch, "#" + std::to_string(column) + "#");
  return source.cell(column);
}

bool Writer::flag(const WriterCall& call, u32 column, u32 t, u32 l) const {
  return column != kNone && *told(call, column, t, l).data != 0;
}

bool Writer::stops(const WriterCall& call, u32 t, u32 l) const {
  if (plan_.discount == kNone) return false;
  const u8* at = told(call, plan_.discount, t, l).data;
  for (u32 i = 0; i < plan_.discount_count; ++i) {
    double value;
    if (plan_.discount_f8 != 0) {
      std::memcpy(&value, at + 8 * i, 8);
    } else {
      float narrow;
      std::memcpy(&narrow, at + 4 * i, 4);
      value = narrow;
    }
    if (value != 0) return false;
  }
  return true;
}

// Whether all that the table takes from the row behind an item is there: given here, or stored ahead.
bool Writer::covers(const std::vector<ColumnInput>& input, const ColumnMask& ahead, u32 table) const {
  const ColumnMask wanted = plan_.tables[table].observed & ~ahead;
  for (u32 c = 0; c < plan_.layout.columns.size(); ++c)
    if (wanted[c] && (input.empty() || (input[c].base == nullptr && input[c].cells == nullptr))) return false;
  return true;
}

bool Writer::covers_all(const std::vector<ColumnInput>& input) const {
  for (u32 table = 0; table < plan_.tables.size(); ++table)
    if (!covers(input, {}, table)) return false;
  return true;
}

// ------------------------------------------------------------------------------------------------------------- chunks

OpenChunk& Writer::chunk_of(LaneState& lane, i64 raw, u32* row) {
  u32 at = static_cast<u32>(std::min<u64>(lane.staged.current + 1, lane.chunks.size()));
  while (at > 1 && lane.chunks[at - 1].first_raw > raw) --at;
  OpenChunk& chunk = lane.chunks[at - 1];
  *row = static_cast<u32>(raw - chunk.first_raw);
  return chunk;
}

// ------------------------------------------------------------------------------------------------------------ staging

void Writer::begin_call(const std::vector<u32>& lanes, bool several) {
  several_ = several;
  call_bytes_ = 0;
  for (const u32 index : lanes) {
    LaneState& lane = lanes_[index];
    lane.staged = lane.committed;
    lane.windows_staged = lane.windows;
    for (VersionRuns& runs : lane.versions) runs.rewind(lane.committed.raw);
    if (!lane.chunks.empty()) lane.chunks[lane.staged.current].rewind_heap(lane.staged.heap_used);
  }
  for (auto& list : pending_) list.clear();
  for (auto& list : made_) list.clear();
  std::fill(inserted_.begin(), inserted_.end(), 0);
}

void Writer::roll_back(const std::vector<u32>& lanes) {
  for (const u32 index : lanes) {
    LaneState& state = lanes_[index];
    const Lane& lane = state.staged = state.committed;
    if (lane.ahead.none() || state.chunks.empty()) continue;
    u32 row = 0;  // the row stored ahead is one without a step again
    OpenChunk& chunk = chunk_of(state, lane.raw, &row);
    chunk.mark(row, false, true, lane.begun_in_chunk, lane.begin_raw - chunk.first_raw);
  }
  for (auto& list : pending_) list.clear();
}

// What can never fit leaves none of the chunks behind that were made for it.
void Writer::give_up(const std::vector<u32>& lanes, const Error& error) {
  roll_back(lanes);
  if (error.code() == Code::kCapacity) close_spare(lanes);
}

void Writer::emit(u32 table, u32 lane, double priority) {
  for (const Window& window : windows_) pending_[table].push_back({lane, window, priority});
  windows_.clear();
}

// Of the row about to be written. What the windows of finished calls need no more is left out.
void Writer::note_versions(LaneState& state) {
  for (u32 table = 0; table < plan_.tables.size(); ++table) {
    if (!plan_.tables[table].track_version || state.versions[table].goes_on(versions_[table])) continue;
    state.versions[table].begin(state.staged.raw, versions_[table], state.windows[table].oldest_needed());
  }
}

bool Writer::write_row(const WriterCall& call, u32 t, u32 l, u64 deadline_ns, Blocked* blocked) {
  const u32 index = call.lanes[l];
  LaneState& state = lanes_[index];
  Lane& lane = state.staged;
  const Source source{call.columns, t, l, static_cast<u32>(call.lanes.size()), kept_of(state)};
  if (!lane.open) {
    lane.open = true;
    lane.steps = 0;
    ++lane.episode;  // columns stored ahead stay: what a restarting environment returned with the last step
    for (Windows& windows : state.windows_staged) windows.begin(lane.raw);
  }
  const u64 need = heap_need(source, lane, false);
  if (!ensure_row(index, need, deadline_ns, blocked)) return false;
  if (rehearsal_)
    rehearsal_->rooms[index].heap_used += need;
  else
    write_cells(index, source);
  if (lane.steps == 0) {
    lane.begin_raw = lane.raw;
    ++lane.begun_in_chunk;
  }
  lane.ahead.reset();
  lane.kept = kNone;
  ++lane.raw;
  ++lane.steps;
  return true;
}

void Writer::write_cells(u32 index, const Source& source) {
  LaneState& state = lanes_[index];
  Lane& lane = state.staged;
  u32 row = 0;
  OpenChunk& chunk = chunk_of(state, lane.raw, &row);
  require_kept(index, source);
  for (u32 c = 0; c < source.input.size(); ++c) {
    if (!source.has(c)) {
      if (lane.ahead[c]) continue;
      if (stored_here(c, lane.steps)) throw Error(Code::kSchemaMismatch, "#" + std::to_string(c) + "#");
      chunk.write(plan_.layout, row, c, Cell{nullptr, 0});
      continue;
    }
    const Cell value = source.cell(c);
    if (lane.ahead[c]) {
      if (!chunk.equals(plan_.layout, row, c, value)) refuse_other(c, index);
    } else if (stored_here(c, lane.steps)) {
      chunk.write(plan_.layout, row, c, value);
    } else {
      chunk.write(plan_.layout, row, c, Cell{nullptr, 0});
    }
  }
  const bool first = lane.steps == 0;
  chunk.mark(row, first, false, lane.begun_in_chunk, lane.begin_raw - chunk.first_raw);
  if (first && row == 0) chunk.set_first_episode(lane.episode);
  if (tracks_versions_) note_versions(state);
  lane.heap_used = chunk.heap_used();
}

bool Writer::step(const WriterCall& call, u32 t, u32 l, u64 deadline_ns, Blocked* blocked) {
  const u32 index = call.lanes[l], count = static_cast<u32>(call.lanes.size());
  LaneState& state = lanes_[index];
  Lane& lane = state.staged;
  const u64 cell = u64{t} * count + l;
  const auto priority = [&](u32 table) {
    return call.priority.empty() || call.priority[table].empty() ? std::nan("") : call.priority[table][cell];
  };
  if (lane.skip) return drop_row(call, t, l, priority, deadline_ns, blocked);
  if (lane.ending && !settle_end(index, priority, deadline_ns, blocked)) return false;
  if (!write_row(call, t, l, deadline_ns, blocked)) return false;
  const bool terminated = flag(call, plan_.terminated, t, l), truncated = flag(call, plan_.truncated, t, l);
  const bool stopped = stops(call, t, l);
  for (u32 table = 0; table < plan_.tables.size(); ++table) {
    // mutant: discounts-cut-other-tables
    state.windows_staged[table].row(windows_, stopped && plan_.tables[table].weighted);
    emit(table, index, priority(table));
  }
  if (!terminated && !truncated) {
    if (call.next.empty()) return true;
    if (!store_ahead(index, {call.next, t, l, count}, deadline_ns, blocked)) return false;
    if (lane.kept != kNone) return true;  // no row yet that items could end with
    for (u32 table = 0; table < plan_.tables.size(); ++table) {
      if (!covers(call.next, {}, table)) continue;
      state.windows_staged[table].observed(windows_);
      emit(table, index, priority(table));
    }
    return true;
  }
  // mutant: truncation-taken-for-termination
  lane.terminated = terminated;
  // mutant: reset-row-taken-for-a-step
  lane.skip = plan_.autoreset == Autoreset::kNextStep;
  return end_step(call, t, l, priority, deadline_ns, blocked);
}

// ------------------------------------------------------------------------------------------------------------- calls

Blocked Writer::append(const WriterCall& call, u64 deadline_ns) {
  Blocked blocked = before_call();
  if (blocked.why != Blocked::Why::kNothing) return blocked;
  begin_call(call.lanes, call.steps > 1);
  alpha_ = call.alpha;
  const auto write = [&] {
    if (!write_steps(call, deadline_ns, &blocked)) return false;
    if (call.limited) refuse_more_than_fit(call);
    return true;
  };
  // mutant: judged-after-staging
  if (several_ || !few_items(call)) refuse_what_never_fits(call, write, deadline_ns);
  return stage(call.lanes, write, deadline_ns, &blocked);
}

bool Writer::write_steps(const WriterCall& call, u64 deadline_ns, Blocked* blocked) {
  for (u32 t = 0; t < call.steps; ++t)
    for (u32 l = 0; l < call.lanes.size(); ++l)
      if (!step(call, t, l, deadline_ns, blocked)) return false;
  return true;
}

// Writes what nobody sees yet, then commits it; where that cannot be, nothing has happened.
template <class Write>
Blocked Writer::stage(const std::vector<u32>& lanes, const Write& write, u64 deadline_ns, Blocked* blocked) {
  try {
    if (!write()) {
      roll_back(lanes);
      return *blocked;
    }
  } catch (const Error& error) {
    give_up(lanes, error);
    throw;
  } catch (...) {
    roll_back(lanes);
    throw;
  }
  return commit(lanes, deadline_ns);
}

Blocked Writer::end_episode(const WriterCall& call, bool discard, u64 deadline_ns) {
  Blocked blocked = before_call();
  if (blocked.why != Blocked::Why::kNothing) return blocked;
  begin_call(call.lanes, false);
  alpha_.clear();
  try {
    for (u32 l = 0; l < call.lanes.size(); ++l)
      if (!end_lane(call, l, discard, deadline_ns, &blocked)) {
        roll_back(call.lanes);
        return blocked;
      }
  } catch (...) {
    roll_back(call.lanes);
    throw;
  }
  return commit(call.lanes, deadline_ns);
}

Blocked Writer::insert_whole(const WriterCall& call, const std::vector<WholeItem>& items, u64 deadline_ns) {
  Blocked blocked = before_call();
  if (blocked.why != Blocked::Why::kNothing) return blocked;
  begin_call(call.lanes, true);
  alpha_ = call.alpha;
  const auto write = [&] { return write_items(call, items, deadline_ns, &blocked); };
  refuse_what_never_fits(call, write, deadline_ns);
  return stage(call.lanes, write, deadline_ns, &blocked);
}

bool Writer::write_items(const WriterCall& call, const std::vector<WholeItem>& items, u64 deadline_ns,
                         Blocked* blocked) {
  LaneState& state = lanes_[0];
  const std::vector<double> none, &priority = call.priority.empty() ? none : call.priority[0];
  u32 t = 0;
  for (std::size_t number = 0; t < call.steps; ++number) {
    const WholeItem& item = items.size() == 1 ? items[0] : items.at(number);
    const i64 first = state.staged.raw;
    for (u32 row = 0; row < item.rows; ++row, ++t)
      if (!(row < item.steps ? write_row(call, t, 0, deadline_ns, blocked)
                             : write_behind(0, {call.columns, t, 0, 1}, true, deadline_ns, blocked)))
        return false;
    end_inserted(state);
    pending_[0].push_back(
        {0, Window{first, item.rows, 0, item.flags, 0}, priority.empty() ? std::nan("") : priority.at(number)});
  }
  return true;
}

void Writer::end_inserted(LaneState& state) {
  state.staged.open = false;
  for (Windows& windows : state.windows_staged) windows.discard(windows_);  // no steps, so no windows either
}

Blocked Writer::finish(u64 deadline_ns) {
  WriterCall call;
  for (u32 i = 0; i < plan_.lanes; ++i) call.lanes.push_back(i);
  Blocked blocked = end_episode(call, false, deadline_ns);
  if (blocked.why != Blocked::Why::kNothing) return blocked;
  begin_call(call.lanes, false);
  for (u32 i = 0; i < plan_.lanes; ++i)
    for (u32 table = 0; table < plan_.tables.size(); ++table) {
      lanes_[i].windows_staged[table].close(windows_);
      emit(table, i, std::nan(""));
    }
  return commit(call.lanes, deadline_ns);
}

// What has had its effect must neither fail nor wait: where a lock is held up, the process's next call ends the rest.
void Writer::close() {
  if (closed_) return;
  closed_ = true;
  for (LaneState& lane : lanes_) {
    for (const OpenChunk& chunk : lane.chunks) {
      try {
        arena_->heap().close_chunk(chunk.descriptor(), kNone, chunk.entry(), Deadline::brief());
      } catch (...) {
        rethrow_lasting();
        arena_->ledger().drop(chunk.entry());
      }
    }
    lane.chunks.clear();
  }
  let_tables_go();
}

void Writer::let_tables_go() {
  for (u32 i = 0; i < table_entries_.size(); ++i) {
    Table& table = *plan_.tables[i].table;
    table.close_writer(table_entries_[i]);
    table.settle(0);
  }
  table_entries_.clear();
}

}  // namespace di
