// Lists the rows of a table's items, each row once, for table.export().
//
// The items come sorted by episode and first step, some in each call. Items that overlap or follow each other make a
// run: their rows are listed one after the other, and an item begins at a row that is listed already. A row's identity
// is its episode and its number there, which stay the same however long the export takes.
//
// The row after an item's last step may still be a step that is being written. So only the observation of that row is
// read, unless a later item has the row as a step of its own. If a later call finds such an item too late, the item
// begins a new run, and its rows are listed again.
//
// The caller holds the items' chunks (Reads::peek), and no lock.
#pragma once

#include <compare>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attach/arena.h"
#include "replay/draw_set.h"
#include "replay/item_rows.h"
#include "rows/windows.h"

namespace di {

struct ListedRow {
  RowAt at;
  bool final;      // the row has only the observation, or only that may be read
  u32 late_there;  // which late columns the row has: bits in the order of RowList's columns
};

class RowList {
 public:
  // late: names of the late columns.
  RowList(std::shared_ptr<Arena> arena, const ViewSpec& spec, std::vector<std::string> late);

  // Lists the rows of the first `count` items, and only looks at the items after them. Throws kCorruptData.
  void list(std::span<const Drawn> items, std::size_t count);
  // Undoes the last call, because its rows could not be read.
  void forget_call();

  const std::vector<ListedRow>& rows() const { return rows_; }  // rows of the last call, without those listed before
  // By item of the last call: the number of its first row, counted over the rows of all calls; -1: the item is gone.
  const std::vector<i64>& firsts() const { return firsts_; }

 private:
  struct Id {
    u64 episode;
    i64 step;
    auto operator<=>(const Id&) const = default;
  };
  struct Row {
    Id id;
    RowAt at;
    bool whole;  // all columns may be read
  };
  struct Covered {  // rows of one item, in walked_
    std::size_t begin, end;
  };
  void walk(const Drawn& item);
  bool is_own_of_later(std::size_t item, const Id& id) const;
  bool joins(const Covered& item, std::size_t from) const;
  void add(std::size_t item, std::size_t from);
  u32 late_there(RowAt at);
  const Heap& heap() const { return arena_->heap(); }

  std::shared_ptr<Arena> arena_;
  ViewSpec spec_;
  std::vector<std::string> late_;
  std::map<u32, std::vector<u32>> late_bits_;  // by layout, then column: its bit there
  std::vector<Row> walked_;                    // rows of the call's items, one item after the other
  std::vector<Covered> covered_;               // by item
  std::vector<ListedRow> rows_;
  std::vector<i64> firsts_;
  std::deque<Row> run_;  // listed rows at which the next item may begin; `at` is invalid in a later call
  i64 run_first_ = 0;    // number of the first row in run_
  i64 listed_ = 0;
  std::deque<Row> run_before_;  // the values of these three before the last call
  i64 run_first_before_ = 0, listed_before_ = 0;
};

}  // namespace di
