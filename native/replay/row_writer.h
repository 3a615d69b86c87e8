// Writes the rows of a lane into its chunks: steps, and the observation after the last step, even while the rest of
// that row is not known yet. Readers see nothing before Lane::publish(), so only making room takes locks.
#pragma once

#include "replay/row_room.h"

namespace di {

class RowWriter {
 public:
  RowWriter(WriterState& state, RowRoom& room) : state_(state), room_(room) {}

  // Each function returns false if there is no room yet, as RowRoom::ensure() does.
  bool write_row(const WriterCall& call, u32 t, u32 l, Deadline deadline, Blocked* blocked);
  // Writes the observation after the last step to row `raw`. Unless it is `final`, the next step completes that row.
  bool write_behind(u32 lane, const RowSource& given, bool final, Deadline deadline, Blocked* blocked);
  // Does the same when the row may still be completed: writes the observation to its chunk, or keeps it in memory.
  bool store_ahead(u32 lane, const RowSource& source, Deadline deadline, Blocked* blocked);

  // Prepares for a restored row that does not follow the previous one. Begins its episode, or skips the steps that were
  // not exported, so that the row keeps its number in the episode. `source`: the source of that row.
  bool begin_given(const GivenRow& row, const RowSource& source, Deadline deadline, Blocked* blocked);
  void show_late(u32 there);  // sets which late values the restored row just written has

 private:
  void write_cells(u32 lane, const RowSource& source);
  void write_cells_behind(u32 lane, const RowSource& source);
  void require_kept(u32 lane, const RowSource& source) const;
  void note_versions(Lane& lane);

  WriterState& state_;
  RowRoom& room_;
};

}  // namespace di
