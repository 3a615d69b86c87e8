// Who waits for what: one record for each call of any process that waits, for stats and for errors. Nobody decides by
// them.
//
// A record is taken when the call begins to wait and let go when it ends; in between its age is the call's, whatever it
// waits for just then. A wait for a lock has a record of its own, also inside another one's.
#pragma once

#include "arena.h"

namespace di {

class WaitRecord {
 public:
  explicit WaitRecord(const Arena& arena);  // the wait begins now
  ~WaitRecord() { end(); }
  WaitRecord(const WaitRecord&) = delete;
  WaitRecord& operator=(const WaitRecord&) = delete;
  void is_for(WaitKind kind, u32 table);
  void culprit(u32 slot);
  void end();  // a second one does nothing

 private:
  void take(WaitKind kind, u32 table);

  const Arena& arena_;
  u64 since_ns_;
  u64 fork_generation_ = 0;
  u64 token_ = 0;
  WaitSlot* record_ = nullptr;  // also where all are taken: this wait is not seen
  bool sought_ = false;
};

struct Waiting {
  u32 slot, thread;
  WaitKind kind;
  u32 table, culprit;  // culprit: client slot + 1; 0: nobody in particular
  u64 age_ns;
};
std::vector<Waiting> all_waiting(const Arena& arena);

}  // namespace di
