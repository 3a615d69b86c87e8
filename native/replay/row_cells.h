// Reads the cells of a row as a call gives them, by the writer's plan.
#pragma once

#include <vector>

#include "replay/writer_call.h"

namespace di {

struct KeptRow {  // one row's values of `columns`, copied into this process's memory
  ColumnMask columns;
  std::vector<u8> bytes;
  std::vector<Cell> cells;  // by column, into `bytes`
};

struct RowSource {  // where one row's values come from
  const std::vector<ColumnInput>& input;
  u32 t = 0, l = 0, lanes = 1;    // of the call
  const KeptRow* kept = nullptr;  // the values that the call does not give

  bool gives(u32 column) const { return input[column].given(); }
  bool has(u32 column) const { return gives(column) || (kept != nullptr && kept->columns[column]); }
  Cell cell(u32 column) const {
    const ColumnInput& from = input[column];
    if (!from.given()) return kept->cells[column];
    if (from.cells != nullptr) return from.cells[u64{t} * lanes + l];
    return Cell{from.base + t * from.step_stride + l * from.lane_stride, 1};
  }
};

class RowCells {
 public:
  explicit RowCells(const WriterPlan& plan) : plan_(plan), nothing_(plan.layout.columns.size()) {}

  // A step gives its flags and its discount itself, even where next= has given them before.
  bool flag(const WriterCall& call, u32 column, u32 t, u32 l) const;
  bool stops(const WriterCall& call, u32 t, u32 l) const;  // its discount is 0
  // Whether the columns that the table takes from the row behind an item are all known: in `input`, or in `ahead`.
  bool covers(const std::vector<ColumnInput>& input, const ColumnMask& ahead, u32 table) const;
  bool covers_all(const std::vector<ColumnInput>& input) const;
  // False: the column is stored where a sequence starts, and none does.
  bool stored_here(u32 column, i64 step) const {
    bool sparse = false;
    for (const TableSink& sink : plan_.tables)
      for (const u32 first : sink.first)
        if (first == column) {
          sparse = true;
          if (step % sink.spec.period == 0) return true;
        }
    return !sparse;
  }

  // Bytes of variable length that the row still needs: of columns not stored ahead. `behind`: an observation behind a
  // step, of which every column given is written.
  u64 heap_need(const RowSource& source, const ColumnMask& ahead, i64 step, bool behind) const {
    return plan_.heap_bytes_per_row == 0 ? 0 : heap_need_of_ragged(source, ahead, step, behind);
  }
  u64 heap_bytes(const RowSource& source) const;  // the same at most: of all columns

  void keep(const RowSource& source, KeptRow* kept) const;
  const std::vector<ColumnInput>& nothing() const { return nothing_; }  // a call that gives no column

 private:
  Cell told(const WriterCall& call, u32 column, u32 t, u32 l) const;
  u64 heap_need_of_ragged(const RowSource& source, const ColumnMask& ahead, i64 step, bool behind) const;
  u64 column_bytes(const RowSource& source, u32 column) const;

  const WriterPlan& plan_;
  const std::vector<ColumnInput> nothing_;
};

}  // namespace di
