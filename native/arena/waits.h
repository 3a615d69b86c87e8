// Who waits for what: one record for each thread of any process that waits, for stats and for errors. Nobody decides by
// them.
//
// A record is taken when the call begins to wait and let go when it ends; in between its age is the call's, whatever it
// waits for just then. A wait inside that of a call (for a lock, while the call looks again) tells its reason in the
// call's record. If it was in vain, that stays the reason until the call has looked once more.
#pragma once

#include "arena/arena.h"

namespace di {

class WaitRecord {
 public:
  explicit WaitRecord(const Arena& arena);  // the wait begins now
  ~WaitRecord() { end(); }
  WaitRecord(const WaitRecord&) = delete;
  WaitRecord& operator=(const WaitRecord&) = delete;
  // Of a wait for a lock, by who holds it (client slot).
  void is_for_lock(u32 holder);
  // Of a call between two looks: what it looked for, unless a lock kept it from looking.
  void is_for(WaitKind kind, u32 table, u32 culprit);
  // The wait for a lock was in vain: the call it is inside of goes on waiting for that.
  void give_up();
  void end();  // a second one does nothing

 private:
  struct Reason {
    u32 kind, table, culprit;
  };
  bool is_ours() const;
  void take(Reason reason);
  void tell(Reason reason);

  const Arena& arena_;
  u64 since_ns_;
  u64 fork_generation_ = 0;
  u64 token_ = 0;
  WaitSlot* record_ = nullptr;  // also where all are taken: this wait is not seen
  bool sought_ = false;
  bool inside_ = false;  // the record is that of the call around it, which waited for `before_`
  Reason before_{};
  u32 given_up_;  // waits for locks of this thread that were in vain when this call looked last
};

// Waits of this thread in its scope are not seen: they are no call of anybody's.
class UnseenWaits {
 public:
  UnseenWaits();
  ~UnseenWaits();
  UnseenWaits(const UnseenWaits&) = delete;
  UnseenWaits& operator=(const UnseenWaits&) = delete;
};

struct Waiting {
  u32 slot, thread;
  WaitKind kind;
  u32 table, culprit;  // culprit: client slot + 1; 0: nobody in particular
  u64 age_ns;
};
std::vector<Waiting> all_waiting(const Arena& arena);

}  // namespace di
