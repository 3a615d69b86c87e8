// Who waits for what: one record for each waiting thread of any process, for stats and errors. No decision depends on them.
//
// A call takes a record when it begins to wait and releases it when it ends. The record's age is that of the call, whatever
// it waits for at the moment. If the call waits for a lock on the way (to look again), that wait writes its reason into the
// call's record. If the lock was not had, this stays the reason until the call has looked again.
//
// Records are taken by compare-and-swap of `owner` and read without a lock. A kill leaves a record that names a slot and
// generation that are gone, which is free for the next taker.
#pragma once

#include <vector>

#include "arena/client.h"

namespace di {

// This thread has found no room for so many bytes: its next wait for room says so.
void note_wanted(u64 bytes);

class WaitRecord {
 public:
  explicit WaitRecord(const Client& client);  // the wait begins now
  ~WaitRecord() { end(); }
  WaitRecord(const WaitRecord&) = delete;
  WaitRecord& operator=(const WaitRecord&) = delete;
  // The wait is for a lock; `holder`: client slot of its owner.
  void is_for_lock(u32 holder);
  // Of a call between two looks: what it waits for. Ignored if it could not look, as it did not get a lock.
  void is_for(WaitKind kind, u32 table, u32 culprit);
  // The lock was not had: the call around this wait keeps that as its reason.
  void give_up();
  void end();  // a second one does nothing

 private:
  struct Reason {
    u32 kind, table, culprit, wanted;
  };
  bool is_ours() const;
  void take(Reason reason);
  void tell(Reason reason);

  const Client& client_;
  u64 since_ns_;
  u64 fork_generation_ = 0;
  u64 token_ = 0;
  WaitSlot* record_ = nullptr;  // also where all are taken: this wait is not seen
  bool sought_ = false;
  bool inside_ = false;  // the record is that of the call around it, which waited for `before_`
  Reason before_{};
  u32 given_up_;  // waits for locks of this thread that were in vain when this call looked last
};

// In its scope this thread takes no records: it does background work, no user's call.
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
  u64 wanted_bytes;  // kRoom: that it found no room for; 0: not known
};
std::vector<Waiting> all_waiting(const Memory& memory);

}  // namespace di
