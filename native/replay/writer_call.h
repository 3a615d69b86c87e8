// What a writer is made for, what one call gives it, and what the call results in.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "replay/table.h"
#include "rows/chunks.h"
#include "rows/windows.h"

namespace di {

constexpr u64 kNoMaxBytes = u64{1} << 63;  // max_bytes from here on: the table has none

enum class Autoreset : u32 { kOff = 0, kNextStep = 1, kSameStep = 2 };

struct TableSink {  // how one table turns this stream's rows into items
  std::shared_ptr<Table> table;
  ViewSpec spec;
  ColumnMask observed;         // columns it takes from the row behind an item's last step
  std::vector<u32> first;      // columns stored only where a sequence starts
  bool track_version = false;  // no column `version`: rows have the version last got from latest()
  bool weighted = false;       // its rows have the column `discount`
};

struct WriterPlan {
  LayoutInfo layout;
  std::vector<TableSink> tables;  // by index of the table
  u32 lanes = 1;
  Autoreset autoreset = Autoreset::kOff;
  u32 terminated = kNone, truncated = kNone, discount = kNone, version = kNone;  // columns
  u32 discount_f8 = 0, discount_count = 1, version_bytes = 0;
  u64 chunk_bytes = 0;
  u32 least_rows = 1;
  u64 heap_bytes_per_row = 0;  // estimate; 0: no column lies in the heap
  u64 heap_row_max = 0;        // the most bytes that one row's bounded values need
  ColumnMask unbounded;        // columns of variable length without a bound
  bool counted = true;         // as an open writer of its tables; the writer of table.insert() is not
};

// The cells of one call: value of column c for time t and the l-th lane of the call.
struct ColumnInput {
  const u8* base = nullptr;  // null, and `cells` too: the call does not give the column
  u64 step_stride = 0, lane_stride = 0;
  const Cell* cells = nullptr;  // of a column of variable length: [t * lanes + l]

  bool given() const { return base != nullptr || cells != nullptr; }
};

struct WriterCall {
  u32 steps = 1;
  std::vector<u32> lanes;
  std::vector<ColumnInput> columns;           // all of the layout
  std::vector<ColumnInput> next, final;       // empty, or all of the layout with holes
  std::vector<u8> final_given;                // [steps * lanes of the call]
  std::vector<std::vector<double>> priority;  // by table: empty, or [steps * lanes of the call]
  std::vector<double> alpha;                  // by table: PriorityRange::alpha that `priority` was checked with
  bool limited = false;                       // more items than a table's capacity are refused
  bool extends = false;                       // extend(): that limit holds for queues too
};

// One item of rows inserted whole: `rows` of them, of which the first `steps` are steps.
struct WholeItem {
  u32 rows = 1, steps = 1, flags = 0;
};

struct MadeItem {
  u64 key;
  i64 start;
  u32 lane;
  u32 order;  // in which the call's items were made
};

struct Blocked {
  enum class Why { kNothing, kLimiter, kTableRoom, kStoreRoom, kLock } why = Why::kNothing;
  u32 table = 0;        // position among the writer's tables
  u32 seq = 0;          // futex value seen before the look: wait on it
  u32 holder = kNone;   // of the lock: client slot
  bool passed = false;  // the call has passed and begun: only resume() may follow
  std::string text;
};

}  // namespace di
