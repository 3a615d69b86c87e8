// This process as a client of a store: its client slot, and which handles are its own and not its forked parent's.
//
// To take a slot, a process gets an exclusive record lock on the slot's byte of the memory file and then sets the
// slot's state. The kernel drops the lock when the process dies. So a kill while a slot is taken or left leaves the
// slot free, or live without a lock. In the second case the process counts as dead and is reaped.
#pragma once

#include <atomic>
#include <mutex>

#include "process/memory.h"

namespace di {

class Client {
 public:
  explicit Client(Memory& of) : memory(of) {}
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void claim();  // takes a free slot; throws kStoreError if there is none
  void leave();  // the ledger must be empty
  // For a private copy of the store: acts under the slot of the process that made the copy.
  void stand_in_for(const Client& other);

  u32 slot() const { return slot_; }  // kNone: none
  u32 slot_generation() const { return slot_generation_; }
  ClientSlot& self() const { return memory.client(slot_); }
  // Whether the slot is still this process's. False: others took this process for dead and freed the slot.
  bool has_slot() const { return self().generation.load() == slot_generation_; }

  // True in a forked child until it has a client slot of its own: everything it holds of the store is its parent's.
  bool is_foreign() const { return alive_ != nullptr && *alive_ == 0; }
  // Each fork raises it, in the child.
  u64 fork_generation() const { return fork_generation_; }
  // Whether a handle made in that generation belongs to this process: only then its destructor may change shared
  // memory.
  bool owns(u64 generation) const { return !is_foreign() && generation == fork_generation_; }
  void make_fork_mark();  // from here on a forked child is_foreign(); throws kCapacity
  void begin_child();     // the slot is the parent's
  void end_foreign() { *alive_ = 1; }

  // Guards state private to this process (free ledger entries, caches). The forking thread holds it across fork().
  std::recursive_mutex& local() const { return local_; }
  void renew_mutex();  // in a forked child: a thread that does not exist there may have locked it

  Memory& memory;

 private:
  u8* alive_ = nullptr;  // a page that the kernel wipes in a forked child
  u32 slot_ = kNone;
  u32 slot_generation_ = 0;
  u64 fork_generation_ = 0;
  mutable std::recursive_mutex local_;
};

}  // namespace di
