// Locks that live in shared memory and hold their owner's client slot.
//
// The word is 0 when the lock is free. Else it holds the owner's client slot + 1 and 20 bits of the slot's generation;
// the top bit says that a waiter sleeps. The generation tells a slot's owner from the next one: a waiter that slept
// through a death cannot take the lock from a process that has the slot now.
//
// Taking: compare-and-swap from 0; spin for at most 2 us; then set the top bit and sleep in slices. After each slice
// the waiter asks whether the owner lives. A dead owner is replaced by one compare-and-swap; of several waiters one
// wins. The lock is never taken from a stopped process: the wait ends by deadline or Ctrl-C.
//
// A thread that already holds a shared lock waits for at most 50 ms. Meanwhile it runs no Python, and neither releases
// the GIL nor asks for it (os.h), since another thread may keep the GIL. After a failed wait, patiently() releases
// everything, waits, and repeats the call.
//
// A kill at any line leaves the word free or naming a dead owner. `dirty` and the undo record tell the next owner what
// to finish. Lock order: directory (reap), tables by index, heap. No shared lock is taken while the heap's is held.
#pragma once

#include <optional>
#include <string>

#include "base/annotations.h"
#include "os/deadline.h"
#include "process/client.h"
#include "process/waits.h"

namespace di {

constexpr u32 kLockSlotBits = 11;  // of a lock word: client slot + 1; above: the generation; top bit: a waiter sleeps
static_assert(kMaxClients < (1u << kLockSlotBits));
inline u32 lock_owner_word(u32 slot, u32 generation) {
  return ((generation << kLockSlotBits) | (slot + 1)) & 0x7fffffffu;
}
inline u32 lock_owner(u32 word) { return (word & ((1u << kLockSlotBits) - 1)) - 1; }  // client slot, or kNone
static_assert(kFillEnded == 1u << kLockSlotBits);                                     // names no slot

inline u32 lock_owner_word(const Client& client) { return lock_owner_word(client.slot(), client.slot_generation()); }
// Whether the process that the word names has left, or is dead, perhaps for so long that another process has its slot.
// A process that exits cleanly holds no lock.
bool owner_gone(const Client& client, u32 word);

class DI_CAPABILITY("shared lock") SharedLock {
 public:
  SharedLock(const Client& client, LockWord& word, std::string name)
      : client_(client), word_(word), name_(std::move(name)) {}

  // Throws kTimeout naming the process that holds the lock. Afterwards the caller checks needs_recovery().
  void acquire(Deadline deadline) DI_ACQUIRE();
  bool try_acquire();
  void release() DI_RELEASE();

  // Marks that the next owner after a death is repairing. The reaper waits for a repair, and for nothing else that a
  // live owner does.
  void begin_recovery() { word_.dirty.store(2, std::memory_order_release); }
  bool in_recovery() const { return word_.dirty.load(std::memory_order_acquire) == 2; }
  bool needs_recovery() const { return word_.dirty.load(std::memory_order_acquire) != 0; }
  // Between these two calls derived state may be wrong. A death in between makes the next owner rebuild it.
  void begin_change() {
    word_.dirty.store(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  void end_change() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    word_.dirty.store(0, std::memory_order_release);
  }

 private:
  void acquire_slow(Deadline deadline);
  [[noreturn]] void refuse(u32 holder, bool nested);

  const Client& client_;
  LockWord& word_;
  std::string name_;
};

// Waits until the lock that `error` names is available, or for a moment if it names none. Throws the error at the
// deadline. The caller holds no shared lock. The lock taken here is released at once; nothing that it guards changes.
void await_inner(const Client& client, const Error& error, Deadline deadline);

// Runs a call that takes one shared lock inside another, or sleeps while it holds one. Such a call may fail in the
// inner wait: by then it has released its locks, and running it again is safe. It runs again after a wait in which this
// thread holds no lock. So a stopped process blocks only the locks that it owns, and Ctrl-C is seen.
template <class Call>
auto patiently(const Client& client, Deadline deadline, Call&& call) {
  for (;;) {
    std::optional<Error> held_up;
    try {
      return call();
    } catch (const Error& error) {
      if (!error.is_worth_repeating() || os::t_in_hand.locks != 0) throw;
      held_up = error;
    }
    await_inner(client, *held_up, deadline);
  }
}

}  // namespace di
