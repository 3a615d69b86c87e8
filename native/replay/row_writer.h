// Writes the rows of a lane into its chunks: steps, and the observation after the last step, even while the rest of its
// row is not known yet. Readers see none of it before Lane::publish(), so only making room takes locks.
#pragma once

#include "replay/row_room.h"

namespace di {

class RowWriter {
 public:
  RowWriter(WriterState& state, RowRoom& room) : state_(state), room_(room) {}

  // Each returns false if there is no room yet, as RowRoom::ensure() does.
  bool write_row(const WriterCall& call, u32 t, u32 l, Deadline deadline, Blocked* blocked);
  // Writes the observation after the last step to row `raw`. Unless it is `final`, the next step completes that row.
  bool write_behind(u32 lane, const RowSource& given, bool final, Deadline deadline, Blocked* blocked);
  // The same for an observation whose row may still be completed: writes it to its chunk, or keeps it in memory.
  bool store_ahead(u32 lane, const RowSource& source, Deadline deadline, Blocked* blocked);

  // A restored row that does not follow the one before: begins its episode, or leaves out the steps that were not
  // exported, so that the row keeps its number in the episode. `source`: of that row.
  bool begin_given(const GivenRow& row, const RowSource& source, Deadline deadline, Blocked* blocked);
  void show_late(u32 there);  // of the restored row just written: which late values are there

 private:
  void write_cells(u32 lane, const RowSource& source);
  void write_cells_behind(u32 lane, const RowSource& source);
  void require_kept(u32 lane, const RowSource& source) const;
  void note_versions(Lane& lane);

  WriterState& state_;
  RowRoom& room_;
};

}  // namespace di
