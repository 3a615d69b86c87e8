// Writes the rows of a lane into its chunks: steps, and the observation behind the last step while the rest of its row
// is not known yet. Readers see none of it before Lane::publish().
#pragma once

#include "replay/row_room.h"

namespace di {

class RowWriter {
 public:
  RowWriter(WriterState& state, RowRoom& room) : state_(state), room_(room) {}

  // Each returns false where there is no room yet, as RowRoom::ensure() does.
  bool write_row(const WriterCall& call, u32 t, u32 l, Deadline deadline, Blocked* blocked);
  // The observation behind the last step: the row at `raw`, to be completed by the next step or left as the final one.
  bool write_behind(u32 lane, const RowSource& given, bool final, Deadline deadline, Blocked* blocked);
  // The same while the rest of the row may still follow. It goes to its chunk, or stays in this process's memory.
  bool store_ahead(u32 lane, const RowSource& source, Deadline deadline, Blocked* blocked);

 private:
  void write_cells(u32 lane, const RowSource& source);
  void write_cells_behind(u32 lane, const RowSource& source);
  void require_kept(u32 lane, const RowSource& source) const;
  void note_versions(Lane& lane);

  WriterState& state_;
  RowRoom& room_;
};

}  // namespace di
