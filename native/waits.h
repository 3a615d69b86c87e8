// Who waits for what: one record for each waiting thread, for stats and for errors. Nobody decides by them.
#pragma once

#include "arena.h"

namespace di {

// A thread waits from here to the end of the scope, one slice of a blocked call.
class WaitRecord {
 public:
  WaitRecord(const Arena& arena, WaitKind kind, u32 table);
  ~WaitRecord();
  void culprit(u32 slot);
  WaitRecord(const WaitRecord&) = delete;
  WaitRecord& operator=(const WaitRecord&) = delete;

 private:
  WaitSlot* record_;  // nullptr: all are taken
  u64 token_;
  WaitKind kind_;
};

struct Waiting {  // a record as read: garbled for a moment while its owner writes it
  u32 slot, thread;
  WaitKind kind;
  u32 table, culprit;  // culprit: client slot + 1; 0: nobody in particular
  u64 since_ns;
};
std::vector<Waiting> all_waiting(const Arena& arena);

}  // namespace di
