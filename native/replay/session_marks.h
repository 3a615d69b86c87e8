// Marks of remote writers' sessions: how far the calls of a session have come in each table.
//
// A session is a client on another machine. It has a uuid, and numbers its calls from 1. A local process, its agent,
// makes the calls with a Writer of that session. The Writer's commit sets the mark of (session, table) together with
// the items (mark_update.h). If the agent is killed, the next agent builds a Writer of the session, and then reads the
// marks. A mark says of its table: all calls before the mark's call have inserted their items, once; of the mark's
// call, `done` items are in, and these are all if the mark is complete; no later call has inserted any.
//
// Locks. The directory's lock serialises claims, ends and readers of the region. The word of a used mark changes under
// its table's lock, with one exception: nothing writes to the mark of a table that was dropped. A process that claims
// or frees the mark of a live table takes the table's lock too, for two reasons. The table's undo record may still hold
// the mark's old value for a dead writer, and must be rolled back first. And a writer that claimed the mark before must
// not be in the middle of a call. That writer finds another `owner` in its next hold, and refuses its call.
//
// A kill. A claim of a free place stores `owner` last, so the place stays free until then. A claim of a used mark is
// one store, and so is its end. A committed page of marks that `mark_count` does not cover is committed again.
//
// The agent's clients have sessions too, whose marks hold the leases of their draws (leases.h). Such a session ends with
// its client. Its leases are given back before its marks are free, so a mark that is used again holds none.
//
// A mark outlives its writer and its process. It ends with end(), or when its table is dropped. When the region is
// full, the mark that was idle longest ends, unless the process that claimed it lives.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "replay/directory.h"

namespace di {

using SessionId = std::array<u8, 16>;

struct MarkOf {  // a mark in one table
  std::string table;
  u64 seq, done;
  bool complete;
};

struct ClaimedMark {
  u32 mark;    // position in the region
  u64 owner;   // SessionMark::owner, as the claim has stored it
  u64 before;  // the mark's word at that time
};

class SessionMarks {
 public:
  static constexpr u64 kIdleNs = 600'000'000'000;

  // idle_ns: a full region gives away only marks that were unused for this long.
  explicit SessionMarks(std::shared_ptr<Arena> arena, u64 idle_ns = kIdleNs)
      : arena_(std::move(arena)), idle_ns_(idle_ns) {}

  // Takes over the session's mark of the table, or makes one. Throws kTableNotFound, kStoreFull, kCapacity.
  ClaimedMark claim(const SessionId& session, Table& table, Deadline deadline);
  // Takes over all marks of a session, as another agent does; returns their number.
  u32 claim_all(const SessionId& session, Deadline deadline);
  void keep(const SessionId& session);  // notes that the session's client was heard of. Takes no lock
  std::vector<MarkOf> list(const SessionId& session, Deadline deadline);  // of existing tables
  u32 end(const SessionId& session, Deadline deadline);                   // frees its marks and returns their number
  // Reports marks that contradict themselves; with `repair` frees them.
  void check(bool repair, Deadline deadline, std::vector<std::string>* findings);

 private:
  template <class Do>
  void for_each_of(const SessionId& session, const Do& each);
  bool is_of_live_table(const SessionMark& mark) const;
  ClaimedMark claim_now(const SessionId& session, Table& table, Deadline deadline);
  u32 find(const SessionId& session, const Table& table) const;
  u32 place(Deadline deadline);
  bool add_page(Deadline deadline);
  u32 longest_idle() const;
  void free(u32 index, Deadline deadline);

  std::shared_ptr<Arena> arena_;
  u64 idle_ns_;
};

}  // namespace di
