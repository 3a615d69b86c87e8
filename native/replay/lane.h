// One lane of a writer: its open chunks, the windows of each table over its rows, and how far it has come.
//
// A call works on `staged` and `windows_staged`; readers don't see what it writes. publish() makes them the committed
// ones, roll_back() discards them.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "replay/row_cells.h"
#include "replay/version_runs.h"
#include "rows/chunks.h"
#include "rows/windows.h"

namespace di {

struct LanePosition {
  i64 raw = 0;          // the next raw row
  ColumnMask ahead;     // columns of row `raw` stored ahead by next=
  u32 kept = kNone;     // or kept for it, until the rest of the row is known: in Lane::kept
  bool open = false;    // an episode is open
  bool ending = false;  // a flagged row came; its final observation may still follow
  bool terminated = false;
  bool skip = false;  // next-step autoreset: drop the next row
  i64 steps = 0;
  u64 episode = 0;  // id of the current or last episode
  i64 begin_raw = 0;
  u32 begun_in_chunk = 0;
  u32 current = 0;  // chunk that `raw - 1` lies in
  u64 heap_used = 0;
  // The first observation of the lane's next episode, while the final one of this episode may still come.
  std::shared_ptr<const KeptRow> first;
};

struct Lane {
  LanePosition committed, staged;
  std::vector<Windows> windows, windows_staged;  // by table
  std::deque<OpenChunk> chunks;
  std::vector<u32> past;              // by table: how many of the first `chunks` no item to come can reach any more
  std::vector<VersionRuns> versions;  // by table; empty: none tracks them
  KeptRow kept[2];                    // one is the committed row's: a call that is rolled back leaves it

  void begin();
  void roll_back();
  void publish();  // chunk by chunk; a chunk's link before the rows behind it

  OpenChunk& chunk_of(i64 raw, u32* row) {  // the chunk that holds raw row `raw`, and the row's number in it
    u32 at = static_cast<u32>(std::min<u64>(staged.current + 1, chunks.size()));
    while (at > 1 && chunks[at - 1].first_raw > raw) --at;
    OpenChunk& chunk = chunks[at - 1];
    *row = static_cast<u32>(raw - chunk.first_raw);
    return chunk;
  }
  const KeptRow* kept_row() const { return staged.kept == kNone ? nullptr : &kept[staged.kept]; }
  ColumnMask known_behind() const;  // columns known of the row behind the last step: in its chunk or kept
};

}  // namespace di
