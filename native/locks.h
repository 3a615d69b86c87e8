// Locks that live in shared memory and hold their owner's client slot.
//
// States of a word: 0 free; owner + 1; owner + 1 with the top bit: somebody sleeps. Taking: CAS from 0, spin <= 2 us,
// then set the top bit and sleep in slices; after each slice the owner's record lock is asked. A dead owner is replaced
// by one CAS (several waiters try, one wins). A stopped owner is never robbed: the wait ends by deadline or Ctrl-C.
// A kill anywhere leaves the word naming a dead owner, or free; `dirty` and the redo record tell the next owner what to
// finish. Lock order: reap, tables by index, heap; nothing else is taken while one is held.
#pragma once

#include <string>

#include "annotations.h"
#include "arena.h"

namespace di {

constexpr u64 kForever = ~u64{0};
u64 deadline_after(double seconds);  // negative: forever

class DI_CAPABILITY("shared lock") SharedLock {
 public:
  SharedLock(const Arena& arena, LockWord& word, std::string name) : arena_(arena), word_(word), name_(std::move(name)) {}

  // Throws kTimeout naming the holder. The caller looks at needs_recovery() next.
  void acquire(u64 deadline_ns) DI_ACQUIRE();
  bool try_acquire();
  void release() DI_RELEASE();

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
  u32 owner() const {  // client slot, or kNone
    const u32 value = word_.word.load(std::memory_order_acquire) & 0x7fffffffu;
    return value == 0 ? kNone : value - 1;
  }

 private:
  void acquire_slow(u64 deadline_ns);

  const Arena& arena_;
  LockWord& word_;
  std::string name_;
};

// What this process waits for, for stats, for as long as the object lives.
class WaitRecord {
 public:
  WaitRecord(const Arena& arena, WaitKind kind, u32 table);
  ~WaitRecord();
  void culprit(u32 slot);
  WaitRecord(const WaitRecord&) = delete;
  WaitRecord& operator=(const WaitRecord&) = delete;

 private:
  ClientSlot& self_;
};

}  // namespace di
