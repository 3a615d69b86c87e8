// The plan of a writer, the input of one of its calls, and the result of the call.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "replay/session_marks.h"
#include "rows/chunks.h"
#include "rows/windows.h"

namespace di {

constexpr u64 kNoMaxBytes = u64{1} << 63;  // a max_bytes of this or more is no limit

enum class Autoreset : u32 { kOff = 0, kNextStep = 1, kSameStep = 2 };

struct TableSink {  // how one table turns this stream's rows into items
  std::shared_ptr<Table> table;
  ViewSpec spec;
  ColumnMask observed;         // columns that it takes from the row after an item's last step
  std::vector<u32> first;      // columns stored only where a sequence starts
  bool track_version = false;  // no column `version`: rows get the version that latest() returned last
  bool weighted = false;       // its rows have the column `discount`
  u32 group = kNone;           // the column whose value groups its rows; kNone: items are not groups
  u32 needs = 0;               // late columns that its items wait for, as bits (ColumnLayout::index)

  // Whether the table's reserve may grow. For values of any size the reserve was estimated from the first value, so it
  // grows while there is memory.
  bool grows() const {
    return spec.kind == ViewKind::kOpaque &&
           __atomic_load_n(&table->header().max_bytes, __ATOMIC_RELAXED) >= kNoMaxBytes;
  }
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
  u32 pack_rows = 0;                 // ChunkPlan::pack_rows
  u64 heap_bytes_per_row = 0;        // estimate; 0: no column lies in the heap
  u64 heap_row_max = 0;              // the most heap bytes of one row's values whose length is bounded
  ColumnMask unbounded;              // columns whose length has no bound
  ColumnMask late;                   // columns that a step need not give
  bool counted = true;               // its tables count it as an open writer; table.insert()'s writer is not counted
  std::optional<SessionId> session;  // of a remote writer: its calls are numbered and marked (call_marks.h)
  bool restores = false;  // writes an export: asks no limiter, and keeps chunks until restore_items() releases them
};

// The values of one column in a call. The value of step t and the call's l-th lane is cells[t * lanes + l], or lies at
// base + t * step_stride + l * lane_stride.
struct ColumnInput {
  const u8* base = nullptr;  // if `cells` is null too, the call does not give the column
  u64 step_stride = 0, lane_stride = 0;
  const Cell* cells = nullptr;

  bool given() const { return base != nullptr || cells != nullptr; }
};

struct WriterCall {
  u32 steps = 1;
  std::vector<u32> lanes;
  std::vector<ColumnInput> columns;           // by column of the layout
  std::vector<ColumnInput> next, final;       // empty, or by column of the layout; some may not be given
  std::vector<u8> final_given;                // [steps * lanes of the call]
  std::vector<std::vector<double>> priority;  // by table: empty, or [steps * lanes of the call]
  std::vector<double> alpha;                  // by table: the PriorityRange::alpha used to check `priority`
  bool limited = false;                       // refuse more items than a table's capacity
  bool closes = false;                        // the writer's last call: open episodes just stop
  bool extends = false;                       // extend(): the limit counts items, also for queues (call_limits.h)
};

// One item of rows inserted whole: it has `rows` rows, and the first `steps` of them are steps.
struct WholeItem {
  u32 rows = 1, steps = 1, flags = 0;
};

// One row of an export (Writer::restore_rows).
struct GivenRow {
  i64 episode;  // any number that distinguishes episodes
  i64 step;     // in the episode
  bool final;   // the row holds only an observation after a step
  u32 late;     // which late values the row has, as in LateWord
};
// One item over restored rows.
struct GivenItem {
  i64 first;  // raw row
  u32 rows, back, flags, uses;
  i64 version;
  double priority;
  u64 epochs;  // Once: UseCounts::drawn_epochs()
};

struct MadeItem {
  u64 key;
  i64 start;
  u32 lane;
  u32 order;  // position among the items that the call made
};

struct Blocked {
  enum class Why { kNothing, kLimiter, kTableRoom, kStoreRoom, kLock } why = Why::kNothing;
  u32 table = 0;        // position among the writer's tables
  u32 seq = 0;          // the futex word before the check: wait until it changes
  u32 holder = kNone;   // client slot of the lock's owner
  bool passed = false;  // the call has passed, and some items are inserted: only resume() may follow
  std::string text;
};

}  // namespace di
