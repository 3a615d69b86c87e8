#include "replay/row_writer.h"

namespace di {

bool RowWriter::write_row(const WriterCall& call, u32 t, u32 l, Deadline deadline, Blocked* blocked) {
  const u32 index = call.lanes[l];
  Lane& lane = state_.lanes[index];
  LanePosition& at = lane.staged;
  const RowSource source{call.columns, t, l, static_cast<u32>(call.lanes.size()), lane.kept_row()};
  if (!at.open) {
    at.open = true;
    at.steps = 0;
    ++at.episode;  // columns stored ahead stay: they are the first observation, given with the last step
    for (Windows& windows : lane.windows_staged) windows.begin(at.raw);
  }
  const u64 need = state_.cells.heap_need(source, at.ahead, at.steps, false);
  if (!room_.ensure(index, need, deadline, blocked)) return false;
  if (room_.rehearses())
    room_.count_heap(index, need);
  else
    write_cells(index, source);
  if (at.steps == 0) {
    at.begin_raw = at.raw;
    ++at.begun_in_chunk;
  }
  at.ahead.reset();
  at.kept = kNone;
  ++at.raw;
  ++at.steps;
  return true;
}

void RowWriter::write_cells(u32 index, const RowSource& source) {
  Lane& lane = state_.lanes[index];
  LanePosition& at = lane.staged;
  const LayoutInfo& layout = state_.plan.layout;
  u32 row = 0;
  OpenChunk& chunk = lane.chunk_of(at.raw, &row);
  require_kept(index, source);
  if (layout.late_bytes != 0) chunk.begin_late(row);
  for (u32 c = 0; c < source.input.size(); ++c) {
    if (!source.has(c)) {
      if (at.ahead[c] || state_.plan.late[c]) continue;
      if (state_.cells.stored_here(c, at.steps)) throw Error::column_missing(c);
      chunk.write(layout, row, c, Cell{nullptr, 0});
      continue;
    }
    const Cell value = source.cell(c);
    if (at.ahead[c]) {
      if (!chunk.equals(layout, row, c, value)) throw Error::column_differs(c, index);
    } else if (state_.cells.stored_here(c, at.steps)) {
      chunk.write(layout, row, c, value);
    } else {
      chunk.write(layout, row, c, Cell{nullptr, 0});
    }
  }
  const bool first = at.steps == 0;
  chunk.mark(row, first, false, at.begun_in_chunk, at.begin_raw - chunk.first_raw);
  if (first && row == 0) chunk.set_first_episode(at.episode);
  if (state_.tracks_versions) note_versions(lane);
  at.heap_used = chunk.heap_used();
}

// Notes the version of the next row. Drops runs that no window needs, even if this call is rolled back.
void RowWriter::note_versions(Lane& lane) {
  for (u32 table = 0; table < state_.plan.tables.size(); ++table) {
    const i64 version = state_.versions[table];
    if (!state_.plan.tables[table].track_version || lane.versions[table].goes_on(version)) continue;
    lane.versions[table].begin(lane.staged.raw, version, lane.windows[table].oldest_needed());
  }
}

// Throws kColumnDiffers if a kept value is given again with another value.
void RowWriter::require_kept(u32 index, const RowSource& source) const {
  if (source.kept == nullptr) return;
  const LayoutInfo& layout = state_.plan.layout;
  for (u32 c = 0; c < source.input.size(); ++c) {
    if (!source.kept->columns[c] || !source.gives(c)) continue;
    const Cell before = source.kept->cells[c], now = source.cell(c);
    if (before.count != now.count ||
        !same_values(layout, c, before.data, now.data, u64{now.count} * layout.columns[c].row_bytes))
      throw Error::column_differs(c, index);
  }
}

bool RowWriter::write_behind(u32 index, const RowSource& given, bool final, Deadline deadline, Blocked* blocked) {
  Lane& lane = state_.lanes[index];
  LanePosition& at = lane.staged;
  RowSource source = given;
  if (const KeptRow* kept = lane.kept_row()) source.kept = kept;
  // A row that is stored ahead stays in its chunk, so the chunk must have room for the rest of the row too.
  const u64 need = state_.cells.heap_need(source, at.ahead, at.steps, true);
  if (!room_.ensure(index, need + (final ? 0 : state_.plan.heap_row_max), deadline, blocked)) return false;
  if (room_.rehearses())
    room_.count_heap(index, need);
  else
    write_cells_behind(index, source);
  at.kept = kNone;
  if (final) {
    at.ahead.reset();
    ++at.raw;
    return true;
  }
  for (u32 c = 0; c < source.input.size(); ++c)
    if (source.has(c) && !state_.plan.late[c]) at.ahead[c] = true;
  return true;
}

// If the rest of the row may have any size, no chunk is certain to hold it. Then the observation is kept in this
// process's memory until the step comes or the episode ends.
bool RowWriter::store_ahead(u32 index, const RowSource& source, Deadline deadline, Blocked* blocked) {
  Lane& lane = state_.lanes[index];
  const ColumnMask& unbounded = state_.plan.unbounded;
  bool sized = true;
  for (u32 c = 0; unbounded.any() && c < source.input.size(); ++c)
    sized = sized && (!unbounded[c] || source.has(c) || lane.staged.ahead[c]);
  if (sized) return write_behind(index, source, false, deadline, blocked);
  const u32 free = lane.committed.kept == 0 ? 1 : 0;
  state_.cells.keep(source, &lane.kept[free]);
  lane.staged.kept = lane.kept[free].columns.any() ? free : kNone;
  return true;
}

void RowWriter::write_cells_behind(u32 index, const RowSource& source) {
  Lane& lane = state_.lanes[index];
  LanePosition& at = lane.staged;
  u32 row = 0;
  OpenChunk& chunk = lane.chunk_of(at.raw, &row);
  require_kept(index, source);
  for (u32 c = 0; c < source.input.size(); ++c) {
    if (!source.has(c) || state_.plan.late[c]) continue;  // an observation after a step has no late columns
    const Cell value = source.cell(c);
    if (!at.ahead[c])
      chunk.write(state_.plan.layout, row, c, value);
    else if (!chunk.equals(state_.plan.layout, row, c, value))
      throw Error::column_differs(c, index);
  }
  chunk.mark(row, false, true, at.begun_in_chunk, at.begin_raw - chunk.first_raw);
  at.heap_used = chunk.heap_used();
}

// Missing steps take rows without values, if the chunk has room for them: a row is numbered from its episode's begin
// only if that begin lies in the row's chunk. Otherwise a new chunk begins, whose header says which episode its first
// row continues.
bool RowWriter::begin_given(const GivenRow& given, const RowSource& source, Deadline deadline, Blocked* blocked) {
  Lane& lane = state_.lanes[0];
  LanePosition& at = lane.staged;
  const bool same = at.open && given.episode == at.given_episode;
  const bool again = same && given.step <= at.given_step;  // the export has listed these steps twice
  const u64 missing = again ? ~u64{0} : static_cast<u64>(same ? given.step - at.given_step - 1 : given.step);
  if (!same) {
    at.open = true;
    ++at.episode;
  }
  if (missing == 0) return true;
  u64 row = 0, room = 0;
  if (!lane.chunks.empty()) {
    row = static_cast<u64>(at.raw - lane.chunks[at.current].first_raw);
    room = lane.chunks[at.current].capacity() - row;
  }
  if (row == 0 || missing >= room) {
    const u64 need = state_.cells.heap_need(source, {}, given.step, given.final);
    if ((row != 0 || room == 0) && !room_.begin_chunk(0, need, deadline, blocked)) return false;
    lane.chunks[at.current].set_first_episode(at.episode);
    at.begun_in_chunk = 0;
    at.begin_raw = at.raw - given.step;
    return true;
  }
  OpenChunk& chunk = lane.chunks[at.current];
  for (u64 i = 0; i < missing; ++i, ++at.raw) {
    const bool first = !same && i == 0;
    chunk.mark(static_cast<u32>(row + i), first, true, at.begun_in_chunk, at.begin_raw - chunk.first_raw);
    if (!first) continue;
    at.begin_raw = at.raw;
    ++at.begun_in_chunk;
  }
  return true;
}

void RowWriter::show_late(u32 there) {
  if (state_.plan.layout.late_bytes == 0) return;
  Lane& lane = state_.lanes[0];
  u32 row = 0;
  OpenChunk& chunk = lane.chunk_of(lane.staged.raw - 1, &row);
  chunk.show_late(row, there);
}

}  // namespace di
