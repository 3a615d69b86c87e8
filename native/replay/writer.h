// A writer writes the rows of some lanes to chunks, and inserts the items that they complete into tables.
//
// A call has two halves. The first half writes rows after the published ones and runs copies of the windows (RowWriter,
// Episodes). It takes locks only to make room for chunks, and readers see none of it. The second half takes the locks
// of all tables in order of index, publishes the rows and inserts the items (ItemCommit). Or it returns the reason to
// wait and leaves everything as it was before, so that the call may be repeated.
//
// A kill in the first half leaves unpublished rows, which are lost; a kill after publishing may leave rows without
// their items. The reaper closes the chunks.
#pragma once

#include <memory>
#include <vector>

#include "replay/call_limits.h"
#include "replay/episodes.h"
#include "replay/item_commit.h"

namespace di {

class Writer {
 public:
  Writer(std::shared_ptr<Arena> arena, WriterPlan plan, Deadline deadline);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  Blocked append(const WriterCall& call, Deadline deadline);
  // call.final: columns for each lane of the call, or empty. discard: the open episodes make no further items.
  Blocked end_episode(const WriterCall& call, bool discard, Deadline deadline);
  // Inserts rows whole: each item is an episode of lane 0. A single entry of `items` stands for all. call.priority has
  // one number for each item.
  Blocked insert_whole(const WriterCall& call, const std::vector<WholeItem>& items, Deadline deadline);
  // Writes rows of an export to lane 0. call.columns: the columns of all rows; call.next: the columns of an observation
  // after a step. restored() has the raw numbers of the rows.
  Blocked restore_rows(const WriterCall& call, const std::vector<GivenRow>& rows, Deadline deadline);
  // Inserts items over these rows. `next`: the raw row before which no further item will begin; chunks before it are
  // closed. Throws kInvalid for rows that don't exist.
  Blocked restore_items(std::vector<GivenItem> items, i64 next, Deadline deadline);
  Blocked end_open_episodes(Deadline deadline);  // ends open episodes as end_episode() does
  Blocked resume() { return commit_.resume(); }  // inserts the rest of a call that has passed; kNothing: all is done
  void close();                                  // closes the writer's chunks; its tables no longer count the writer

  const std::vector<MadeItem>& made(u32 table) const { return state_.made[table]; }
  const std::vector<i64>& restored() const { return state_.restored; }
  // Sets the number of the next call, for a writer of a session: see call_marks.h. Throws kInvalid.
  void number_call(u64 seq);
  // Sets the version of rows written from now on, in a table that tracks versions.
  void set_version(u32 table, i64 version) { state_.versions[table] = version; }
  const WriterPlan& plan() const { return state_.plan; }

 private:
  bool begin_call(const WriterCall& call, bool several, Blocked* blocked);
  void restart_call(const std::vector<u32>& lanes, bool several);
  template <class Write>
  Blocked stage(const std::vector<u32>& lanes, const Write& write, Deadline deadline, Blocked* blocked);
  Blocked finish_at_once(const WriterCall& call, Deadline deadline);
  bool write_steps(const WriterCall& call, Deadline deadline, Blocked* blocked);
  void be_counted(Deadline deadline);
  void let_chunks_go(Lane& lane);
  void let_tables_go();

  WriterState state_;
  RowRoom room_;
  RowWriter rows_;
  Episodes episodes_;
  CallLimits limits_;
  ItemCommit commit_;
  std::vector<u32> table_entries_;  // by table: the ledger entry that counts this open writer
  u64 fork_generation_;
  bool closed_ = false;
};

}  // namespace di
