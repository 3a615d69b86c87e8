// Steps and episodes of a lane. This part writes their rows, runs the tables' windows over them, and lists the
// resulting items as pending. The final observation of an episode may come with its last step, with a later step or
// with end_episode().
#pragma once

#include "replay/row_writer.h"

namespace di {

class Episodes {
 public:
  Episodes(WriterState& state, RowWriter& rows) : state_(state), rows_(rows) {}

  // Each function returns false if there is no room yet, as RowRoom::ensure() does.
  bool step(const WriterCall& call, u32 t, u32 l, Deadline deadline, Blocked* blocked);
  bool end_lane(const WriterCall& call, u32 l, bool discard, Deadline deadline, Blocked* blocked);
  bool insert_whole(const WriterCall& call, const std::vector<WholeItem>& items, Deadline deadline, Blocked* blocked);
  // Writes rows of an export to lane 0. They make no windows, because their items are restored too.
  bool restore_rows(const WriterCall& call, const std::vector<GivenRow>& rows, Deadline deadline, Blocked* blocked);
  void close_lane(u32 lane);  // at the end of the lane's stream: lists the items of its tails

 private:
  struct Priority {  // by table: the priority of the items that one step of a lane completes
    const WriterCall& call;
    u64 cell;
    double operator()(u32 table) const;
  };
  bool observe(const WriterCall& call, u32 t, u32 l, const Priority& priority, Deadline deadline, Blocked* blocked);
  bool end_step(const WriterCall& call, u32 t, u32 l, const Priority& priority, Deadline deadline, Blocked* blocked);
  bool drop_row(const WriterCall& call, u32 t, u32 l, const Priority& priority, Deadline deadline, Blocked* blocked);
  bool write_first(const WriterCall& call, u32 t, u32 l, Deadline deadline, Blocked* blocked);
  bool restore_first(u32 lane, Deadline deadline, Blocked* blocked);
  bool end_flagged(u32 lane, const Priority& priority, Deadline deadline, Blocked* blocked);
  void end_windows(u32 lane, const std::vector<ColumnInput>& given, const ColumnMask& known, bool has_final,
                   bool counted);
  void discard_windows(u32 lane, const ColumnMask& known, bool kept);
  void end_inserted(Lane& lane);

  WriterState& state_;
  RowWriter& rows_;
};

}  // namespace di
