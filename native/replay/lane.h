// One lane of a writer: its open chunks, the windows of each table over its rows, and its position.
//
// A call changes `staged` and `windows_staged`, and writes rows that readers don't see. publish() shows the rows and
// makes the staged values the committed ones; roll_back() discards the staged values.
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
  ColumnMask ahead;     // columns of row `raw` that next= has stored in its chunk
  u32 kept = kNone;     // or index in Lane::kept of those columns, until the rest of the row is known
  bool open = false;    // an episode is open
  bool ending = false;  // its last row was flagged; its final observation may still follow
  bool terminated = false;
  bool skip = false;      // next-step autoreset: drop the next row
  i64 steps = 0;          // of the current episode
  u64 episode = 0;        // id of the current or last episode
  i64 given_episode = 0;  // restored rows: episode and step of the last row, as given
  i64 given_step = 0;
  i64 begin_raw = 0;       // raw row of its first step
  u32 begun_in_chunk = 0;  // episodes begun in the current chunk
  u32 current = 0;         // index in Lane::chunks of the chunk that holds row `raw - 1`
  u64 heap_used = 0;       // bytes of that chunk's heap
  // The first observation of the lane's next episode, kept while the final observation of this episode may still come.
  std::shared_ptr<const KeptRow> first;
};

struct Lane {
  LanePosition committed, staged;
  std::vector<Windows> windows, windows_staged;  // by table
  std::deque<OpenChunk> chunks;
  std::vector<u32> past;              // by table: how many of the first `chunks` no future item needs
  std::vector<VersionRuns> versions;  // by table; empty: no table tracks versions
  KeptRow kept[2];  // for the committed and for the staged position, so that a roll-back loses nothing

  void begin();
  void roll_back();
  void publish();  // chunk by chunk: rows of a chunk, then its link to the next chunk, then the rows of that one

  OpenChunk& chunk_of(i64 raw, u32* row) {  // the chunk that holds raw row `raw`, and the row's number in it
    u32 at = static_cast<u32>(std::min<u64>(staged.current + 1, chunks.size()));
    if (at > 2 && chunks[at - 2].first_raw > raw) {  // further back: mostly while rows are restored
      const auto later = [](i64 value, const OpenChunk& chunk) { return value < chunk.first_raw; };
      at = std::max<u32>(
          1, static_cast<u32>(std::upper_bound(chunks.begin(), chunks.begin() + at, raw, later) - chunks.begin()));
    }
    while (at > 1 && chunks[at - 1].first_raw > raw) --at;
    OpenChunk& chunk = chunks[at - 1];
    *row = static_cast<u32>(raw - chunk.first_raw);
    return chunk;
  }
  const KeptRow* kept_row() const { return staged.kept == kNone ? nullptr : &kept[staged.kept]; }
  ColumnMask known_behind() const;  // columns known of the row after the last step, in its chunk or kept
};

}  // namespace di
