// The observation behind a lane's last step, while the rest of its row is not known: in its chunk, or kept with the writer.
#include <cstring>

#include "replay/writer.h"

namespace di {

const Writer::KeptRow* Writer::kept_of(const LaneState& state) const {
  return state.staged.kept == kNone ? nullptr : &state.kept[state.staged.kept];
}

// What is known of the row behind the last step, wherever it is.
ColumnMask Writer::known_behind(const LaneState& state) const {
  const KeptRow* kept = kept_of(state);
  return kept == nullptr ? state.staged.ahead : state.staged.ahead | kept->columns;
}

void Writer::keep(const WriterPlan& plan, const Source& source, KeptRow* kept) {
  const auto bytes_of = [&](u32 column) {
    return u64{source.cell(column).count} * plan.layout.columns[column].row_bytes;
  };
  const u32 columns = static_cast<u32>(source.input.size());
  u64 bytes = 0;
  kept->columns.reset();
  for (u32 c = 0; c < columns; ++c)
    if (source.has(c)) bytes += bytes_of(c);
  kept->bytes.resize(bytes);
  kept->cells.resize(columns);
  bytes = 0;
  for (u32 c = 0; c < columns; ++c) {
    if (!source.has(c)) continue;
    const Cell value = source.cell(c);
    kept->columns[c] = true;
    kept->cells[c] = Cell{kept->bytes.data() + bytes, value.count};
    if (const u64 size = bytes_of(c); size != 0) std::memcpy(kept->bytes.data() + bytes, value.data, size);
    bytes += bytes_of(c);
  }
}

// Another value than the one that is known already; explain() in Python's binding puts the column's name in.
void Writer::refuse_other(u32 column, u32 lane) {
  throw Error(Code::kInvalid, "#" + std::to_string(column) + "#lane " + std::to_string(lane));
}

// What is given again must be what was kept.
void Writer::require_kept(u32 index, const Source& source) const {
  if (source.kept == nullptr) return;
  for (u32 c = 0; c < source.input.size(); ++c) {
    if (!source.kept->columns[c] || !source.gives(c)) continue;
    const Cell before = source.kept->cells[c], now = source.cell(c);
    if (before.count != now.count ||
        !same_values(plan_.layout, c, before.data, now.data, u64{now.count} * plan_.layout.columns[c].row_bytes))
      refuse_other(c, index);
  }
}

// The observation behind the last step: the row at `raw`, to be completed by the next step or left as the final one.
bool Writer::write_behind(u32 index, const Source& given, bool final, u64 deadline_ns, Blocked* blocked) {
  LaneState& state = lanes_[index];
  Lane& lane = state.staged;
  Source source = given;
  if (const KeptRow* kept = kept_of(state)) source.kept = kept;
  // A row stored ahead stays in its chunk: there must be room for the rest of it too.
  const u64 need = heap_need(source, lane, true);
  if (!ensure_row(index, need + (final ? 0 : plan_.heap_row_max), deadline_ns, blocked)) return false;
  if (rehearsal_)
    rehearsal_->rooms[index].heap_used += need;
  else
    write_cells_behind(index, source);
  lane.kept = kNone;
  if (final) {
    lane.ahead.reset();
    ++lane.raw;
    return true;
  }
  for (u32 c = 0; c < source.input.size(); ++c)
    if (source.has(c)) lane.ahead[c] = true;
  return true;
}

// The same while the rest of the row may still follow. Where that may have any size, no chunk is sure to hold it: the
// observation waits in this process's memory for the step, or for the end of the episode.
bool Writer::store_ahead(u32 index, const Source& source, u64 deadline_ns, Blocked* blocked) {
  LaneState& state = lanes_[index];
  Lane& lane = state.staged;
  bool sized = true;
  for (u32 c = 0; plan_.unbounded.any() && c < source.input.size(); ++c)
    sized = sized && (!plan_.unbounded[c] || source.has(c) || lane.ahead[c]);
  if (sized) return write_behind(index, source, false, deadline_ns, blocked);
  const u32 free = state.committed.kept == 0 ? 1 : 0;
  keep(plan_, source, &state.kept[free]);
  // mutant: kept-observations-are-forgotten
  lane.kept = state.kept[free].columns.any() ? free : kNone;
  return true;
}

void Writer::write_cells_behind(u32 index, const Source& source) {
  LaneState& state = lanes_[index];
  Lane& lane = state.staged;
  u32 row = 0;
  OpenChunk& chunk = chunk_of(state, lane.raw, &row);
  require_kept(index, source);
  for (u32 c = 0; c < source.input.size(); ++c) {
    if (!source.has(c)) continue;
    const Cell value = source.cell(c);
    if (!lane.ahead[c])
      chunk.write(plan_.layout, row, c, value);
    else if (!chunk.equals(plan_.layout, row, c, value))
      refuse_other(c, index);
  }
  chunk.mark(row, false, true, lane.begun_in_chunk, lane.begin_raw - chunk.first_raw);
  lane.heap_used = chunk.heap_used();
}

}  // namespace di
