// A writer: rows of some lanes become steps in chunks and items in tables.
//
// A call has two halves. The first writes rows behind the published ones and runs copies of the windows (RowWriter,
// Episodes); readers see none of it. The second takes the locks of all tables, publishes the rows and inserts the items
// (ItemCommit), or says what blocks and leaves everything as it was before the call, which may then be repeated.
//
// A kill between the halves leaves unpublished rows; a kill after publishing, rows without items. A killed writer may
// lose both. The reaper closes its chunks.
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
  // call.final: columns for each lane of the call, or empty. discard: withdraws rows that no item uses.
  Blocked end_episode(const WriterCall& call, bool discard, Deadline deadline);
  // Rows inserted whole: each item is an episode of lane 0. One in `items` stands for all. Priorities by item.
  Blocked insert_whole(const WriterCall& call, const std::vector<WholeItem>& items, Deadline deadline);
  Blocked finish(Deadline deadline);             // ends open episodes as end_episode() does
  Blocked resume() { return commit_.resume(); }  // the rest of a call that has passed; nothing to do: kNothing
  void close();                                  // lets go of chunks and tables

  const std::vector<MadeItem>& made(u32 table) const { return state_.made[table]; }
  // The version of rows written from now on, in a table that tracks versions.
  void set_version(u32 table, i64 version) { state_.versions[table] = version; }
  const WriterPlan& plan() const { return state_.plan; }

 private:
  bool begin_call(const WriterCall& call, bool several, Blocked* blocked);
  void restart_call(const std::vector<u32>& lanes, bool several);
  template <class Write>
  Blocked stage(const std::vector<u32>& lanes, const Write& write, Deadline deadline, Blocked* blocked);
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
