// This process as a client of a store: the client slot that it holds, and what is its own and not its forked parent's.
//
// A slot is taken by an exclusive record lock on its byte of the memory file, then by its state. The kernel drops the lock
// when the process dies, so a kill while taking or leaving a slot leaves it free, or live without a lock: then the process
// counts as dead and is reaped.
#pragma once

#include <atomic>
#include <mutex>

#include "arena/memory.h"

namespace di {

class Client {
 public:
  explicit Client(Memory& of) : memory(of) {}
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void claim();  // takes a free slot; throws kStoreError: there is none
  void leave();  // nothing may be left in its ledger
  // Of a private copy of the store: acts under the slot of the process that made it.
  void stand_in_for(const Client& other);

  u32 slot() const { return slot_; }  // kNone: none
  u32 slot_generation() const { return slot_generation_; }
  ClientSlot& self() const { return memory.client(slot_); }
  // Not given to another process, as it was taken for dead.
  bool has_slot() const { return self().generation.load() == slot_generation_; }

  // In a forked child, until it has a client slot of its own: all that this process holds of the store is its parent's.
  bool is_foreign() const { return alive_ != nullptr && *alive_ == 0; }
  // Raised by each fork, in the child.
  u64 fork_generation() const { return fork_generation_; }
  // Whether a handle made in that generation is this process's own, and its destructor may change what is shared.
  // mutant: a-child-takes-handles-for-its-own
  bool owns(u64 generation) const { return !is_foreign() && generation == fork_generation_; }
  void make_fork_mark();  // from here on a forked child is_foreign(); throws kCapacity
  void begin_child();     // the slot is the parent's
  void end_foreign() { *alive_ = 1; }

  // Guards what is private to this process (free ledger entries, caches). A fork takes it for its own moment.
  std::recursive_mutex& local() const { return local_; }
  void renew_mutex();  // in a forked child: it may be locked by a thread that is not there

  Memory& memory;

 private:
  u8* alive_ = nullptr;  // a page that the kernel wipes in a forked child
  u32 slot_ = kNone;
  u32 slot_generation_ = 0;
  u64 fork_generation_ = 0;
  mutable std::recursive_mutex local_;
};

}  // namespace di
