// Reads the cells of a row from a call's input, as the writer's plan prescribes.
#pragma once

#include <vector>

#include "replay/writer_call.h"

namespace di {

struct KeptRow {  // values of one row, for `columns` only, copied into this process's memory
  ColumnMask columns;
  std::vector<u8> bytes;
  std::vector<Cell> cells;  // by column, into `bytes`
};

struct RowSource {  // the source of one row's values
  const std::vector<ColumnInput>& input;
  u32 t = 0, l = 0, lanes = 1;    // in the call: step, position of the lane, number of lanes
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

  // These two read the step's own columns, even if an earlier next= has given their values. Throw kColumnMissing.
  bool flag(const WriterCall& call, u32 column, u32 t, u32 l) const;
  bool stops(const WriterCall& call, u32 t, u32 l) const;  // every element of its discount is 0
  // Whether `input` or `ahead` provides all columns that the table takes from the row after an item's last step.
  bool covers(const std::vector<ColumnInput>& input, const ColumnMask& ahead, u32 table) const;
  bool covers_all(const std::vector<ColumnInput>& input) const;
  // False: the column is stored only at the start of a sequence, and none starts at this step.
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

  // Bytes that the row still needs in its chunk's heap, for columns that are not stored `ahead`. `behind`: the row
  // holds an observation after a step, and every given column of it is written.
  u64 heap_need(const RowSource& source, const ColumnMask& ahead, i64 step, bool behind) const {
    return plan_.heap_bytes_per_row == 0 ? 0 : heap_need_of_ragged(source, ahead, step, behind);
  }
  u64 heap_bytes(const RowSource& source) const;  // an upper bound of heap_need(): the bytes of all given columns

  void keep(const RowSource& source, KeptRow* kept) const;
  const std::vector<ColumnInput>& nothing() const { return nothing_; }  // the input of a call that gives no column

 private:
  Cell told(const WriterCall& call, u32 column, u32 t, u32 l) const;
  u64 heap_need_of_ragged(const RowSource& source, const ColumnMask& ahead, i64 step, bool behind) const;
  u64 column_bytes(const RowSource& source, u32 column) const;

  const WriterPlan& plan_;
  const std::vector<ColumnInput> nothing_;
};

}  // namespace di
