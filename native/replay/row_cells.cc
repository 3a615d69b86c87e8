#include "replay/row_cells.h"

#include <cstring>

namespace di {

u64 RowCells::column_bytes(const RowSource& source, u32 column) const {
  const ColumnLayout& layout = plan_.layout.columns[column];
  if (layout.place != static_cast<u32>(ColumnPlace::kHeap) || !source.has(column)) return 0;
  return (u64{source.cell(column).count} * layout.row_bytes + 15) / 16 * 16;
}

u64 RowCells::heap_need_of_ragged(const RowSource& source, const ColumnMask& ahead, i64 step, bool behind) const {
  u64 bytes = 0;
  for (u32 c = 0; c < source.input.size(); ++c) {
    if (ahead[c] || (!behind && !stored_here(c, step))) continue;
    bytes += column_bytes(source, c);
  }
  return bytes;
}

u64 RowCells::heap_bytes(const RowSource& source) const {
  u64 bytes = 0;
  for (u32 c = 0; c < source.input.size(); ++c) bytes += column_bytes(source, c);
  return bytes;
}

Cell RowCells::told(const WriterCall& call, u32 column, u32 t, u32 l) const {
  const RowSource source{call.columns, t, l, static_cast<u32>(call.lanes.size())};
  if (!source.gives(column)) throw Error::column_missing(column);
  return source.cell(column);
}

bool RowCells::flag(const WriterCall& call, u32 column, u32 t, u32 l) const {
  return column != kNone && *told(call, column, t, l).data != 0;
}

bool RowCells::stops(const WriterCall& call, u32 t, u32 l) const {
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

bool RowCells::covers(const std::vector<ColumnInput>& input, const ColumnMask& ahead, u32 table) const {
  const ColumnMask wanted = plan_.tables[table].observed & ~ahead;
  for (u32 c = 0; c < plan_.layout.columns.size(); ++c)
    if (wanted[c] && (input.empty() || !input[c].given())) return false;
  return true;
}

bool RowCells::covers_all(const std::vector<ColumnInput>& input) const {
  for (u32 table = 0; table < plan_.tables.size(); ++table)
    if (!covers(input, {}, table)) return false;
  return true;
}

void RowCells::keep(const RowSource& source, KeptRow* kept) const {
  const auto bytes_of = [&](u32 column) {
    return u64{source.cell(column).count} * plan_.layout.columns[column].row_bytes;
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

}  // namespace di
