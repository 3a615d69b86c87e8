// Locks that live in shared memory and hold their owner's client slot.
//
// States of a word: 0 free; its owner; its owner with the top bit: somebody sleeps. An owner is its client slot and 20
// bits of the slot's generation, so that a waiter who slept through a death cannot rob who has the slot now. Taking: CAS
// from 0, spin <= 2 us, then set the top bit and sleep in slices; after each slice the owner's record lock is asked. A
// dead owner is replaced by one CAS (several waiters try, one wins). A stopped owner is never robbed: the wait ends by deadline or Ctrl-C.
// Who waits with another shared lock in hand waits for a moment only, and no Python runs meanwhile; patiently() then waits
// with nothing in hand and repeats the call. A kill anywhere leaves the word naming a dead owner, or free; `dirty` and the undo record tell the next owner what to
// finish. Lock order: reap, tables by index, heap; nothing else is taken while one is held.
#pragma once

#include <optional>
#include <string>

#include "arena/arena.h"
#include "arena/waits.h"
#include "base/annotations.h"
#include "os/deadline.h"

namespace di {

constexpr u32 kLockSlotBits = 11;  // of a lock word: client slot + 1; then the generation; the top bit: somebody sleeps
static_assert(kMaxClients < (1u << kLockSlotBits));
inline u32 lock_owner_word(u32 slot, u32 generation) {
  return ((generation << kLockSlotBits) | (slot + 1)) & 0x7fffffffu;
}
inline u32 lock_owner(u32 word) { return (word & ((1u << kLockSlotBits) - 1)) - 1; }  // client slot, or kNone

class DI_CAPABILITY("shared lock") SharedLock {
 public:
  SharedLock(const Arena& arena, LockWord& word, std::string name)
      : arena_(arena), word_(word), name_(std::move(name)) {}

  // Throws kTimeout naming who holds it up. The caller looks at needs_recovery() next.
  void acquire(u64 deadline_ns) DI_ACQUIRE();
  bool try_acquire();
  void release() DI_RELEASE();

  // The taker-over is at it: the reaper waits for that, and for nothing else a live owner may be doing.
  void begin_recovery() { word_.dirty.store(2, std::memory_order_release); }
  bool in_recovery() const { return word_.dirty.load(std::memory_order_acquire) == 2; }
  bool needs_recovery() const { return word_.dirty.load(std::memory_order_acquire) != 0; }
  // Between these two the derived state is in flux; a death in between makes the next owner rebuild.
  void begin_change() {
    word_.dirty.store(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  void end_change() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    word_.dirty.store(0, std::memory_order_release);
  }
  u32 owner() const { return lock_owner(word_.word.load(std::memory_order_acquire)); }  // client slot, or kNone

 private:
  u32 my_word() const { return lock_owner_word(arena_.slot(), arena_.slot_generation()); }
  bool owner_gone(u32 word) const;
  void acquire_slow(Deadline deadline);
  [[noreturn]] void refuse(u32 holder, bool nested);

  const Arena& arena_;
  LockWord& word_;
  std::string name_;
};

// Until what kept a call from a lock it wanted with another one in hand is over; throws that error at the deadline.
void await_inner(const Arena& arena, const Error& error, Deadline deadline);

// Runs a call that takes several shared locks, one inside the other, or sleeps with one in hand. If it fails in such a
// wait it has given back what it held and changed nothing that a second run would not find: it runs again after a wait
// in which nothing is held. So a stopped process keeps nobody from locks other than its own, and Ctrl-C is seen.
template <class Call>
auto patiently(const Arena& arena, Deadline deadline, Call&& call) {
  for (;;) {
    std::optional<Error> held_up;
    try {
      return call();
    } catch (const Error& error) {
      if (!error.is_worth_repeating() || os::is_python_held_off()) throw;
      held_up = error;
    }
    await_inner(arena, *held_up, deadline);
  }
}

}  // namespace di
