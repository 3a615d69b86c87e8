// One record for each waiting thread of any process says what the thread waits for. Stats and errors show the records;
// no decision depends on them.
//
// A call takes a record when it begins to wait and releases it when the call ends. The record's age is the age of the
// call, whatever the call waits for at the moment. A call that checks again may have to wait for a lock: this wait
// writes its reason into the call's record. If the wait fails, its reason stays until the call has checked again.
//
// Records are taken by compare-and-swap of `owner` and read without a lock. A kill leaves a record with a slot and
// generation that no longer exist. Any process may take such a record.
#pragma once

#include <vector>

#include "process/client.h"

namespace di {

// This thread has found no room for `bytes` bytes. Its next wait for room records the number.
void note_wanted(u64 bytes);

class WaitRecord {
 public:
  explicit WaitRecord(const Client& client);  // the wait begins now
  ~WaitRecord() { end(); }
  WaitRecord(const WaitRecord&) = delete;
  WaitRecord& operator=(const WaitRecord&) = delete;
  // The wait is for a lock; `holder`: client slot of its owner.
  void is_for_lock(u32 holder);
  // For a call between two checks: the reason of its wait. Ignored if the call did not get a lock and so could not
  // look.
  void is_for(WaitKind kind, u32 table, u32 culprit);
  // The wait did not get the lock: the enclosing call keeps the lock as its reason.
  void give_up();
  void end();  // a second one does nothing

 private:
  struct Reason {
    u32 kind, table, culprit, wanted;
  };
  bool is_ours() const;
  void claim_slot(Reason reason);
  void tell(Reason reason);

  const Client& client_;
  u64 since_ns_;
  u64 fork_generation_ = 0;
  u64 token_ = 0;
  WaitSlot* record_ = nullptr;  // null also when all records are taken: stats do not see this wait
  bool sought_ = false;
  bool inside_ = false;  // the record belongs to the enclosing call, which waited for `before_`
  Reason before_{};
  u32 given_up_;  // this thread's number of failed waits for locks when this call looked last
};

// In its scope this thread takes no records, because it does background work and not a user's call.
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
  u64 wanted_bytes;  // kRoom: bytes for which there was no room; 0: unknown
};
std::vector<Waiting> all_waiting(const Memory& memory);

}  // namespace di
