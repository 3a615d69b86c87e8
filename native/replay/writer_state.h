// The state that the parts of a writer share: its plan, its lanes, and the items that the current call will make. It
// lies in this process's memory and needs no lock: one thread at a time calls a writer.
#pragma once

#include <memory>
#include <vector>

#include "replay/call_marks.h"
#include "replay/lane.h"

namespace di {

struct PendingItem {
  u32 lane;
  Window window;
  double priority;
  u32 given = 0;  // position in WriterState::given, + 1; 0: a new item
};

struct WriterState {
  WriterState(std::shared_ptr<Arena> store, WriterPlan of);
  WriterState(const WriterState&) = delete;
  WriterState& operator=(const WriterState&) = delete;

  void begin_call(const std::vector<u32>& of, bool has_several);
  void roll_back(const std::vector<u32>& of);
  void emit(u32 table, u32 lane, double priority) {  // moves `windows` to the pending items
    for (const Window& window : windows) pending[table].push_back({lane, window, priority});
    windows.clear();
  }

  const std::shared_ptr<Arena> arena;
  const WriterPlan plan;
  const RowCells cells;
  ChunkPlan chunk_plan;
  std::vector<Lane> lanes;
  std::vector<i64> versions;  // by table: weights version of rows written from now on; -1: not known
  bool tracks_versions = false;
  std::unique_ptr<CallMarks> marks;  // null: the writer has no session

  // State of the current call.
  bool several = false;         // the call has more than one row for a lane, or rows inserted whole
  std::vector<u8> next_covers;  // by table: next= gives all columns that the table takes from the row after an item
  std::vector<double> alpha;
  std::vector<std::vector<PendingItem>> pending;  // by table
  std::vector<std::vector<MadeItem>> made;        // by table
  std::vector<Window> windows;                    // of one table, from the row just written
  std::vector<i64> restored;                      // raw numbers of the restored rows
  std::vector<GivenItem> given;                   // restored items

  i64 next_given = 0;  // for a restoring writer: raw row before which no further item begins
};

}  // namespace di
