#include "locks.h"

#include <cmath>

namespace di {
namespace {

constexpr u32 kSleeping = 0x80000000u;
constexpr u64 kSliceNs = 20'000'000;         // how long a waiter sleeps before it asks whether the owner lives
constexpr u64 kPatienceNs = 10'000'000'000;  // beyond the deadline, for an owner that is not stopped
constexpr int kSpins = 60;                   // about 2 us of pauses

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

u64 deadline_after(double seconds) {
  if (seconds < 0 || std::isinf(seconds)) return kForever;
  return os::now_ns() + static_cast<u64>(seconds * 1e9);
}

bool SharedLock::try_acquire() {
  u32 free = 0;
  // acquire: pairs with the release in release(); what the last owner wrote is visible.
  return word_.word.compare_exchange_strong(free, my_word(), std::memory_order_acquire);
}

void SharedLock::acquire(u64 deadline_ns) {
  if (try_acquire()) return;
  for (int i = 0; i < kSpins; ++i) {
    pause();
    if (word_.word.load(std::memory_order_relaxed) == 0 && try_acquire()) return;
  }
  acquire_slow(deadline_ns);
}

// Dead, or dead so long that its slot is somebody else's. A clean exit leaves no lock behind.
bool SharedLock::owner_gone(u32 word) const {
  const u32 holder = lock_owner(word);
  if (holder >= kMaxClients) return true;  // a damaged word: nobody can ever let go of it
  const u32 generation = arena_.client(holder).generation.load(std::memory_order_acquire);
  return lock_owner_word(holder, generation) != (word & ~kSleeping) || arena_.is_dead(holder);
}

void SharedLock::acquire_slow(u64 deadline_ns) {
  const u32 mine = my_word() | kSleeping;  // others may sleep too: wake one at release
  WaitRecord record(arena_);
  record.is_for(WaitKind::kLock, kNone);
  for (;;) {
    u32 seen = word_.word.load(std::memory_order_relaxed);
    if (seen == 0) {
      if (word_.word.compare_exchange_strong(seen, mine, std::memory_order_acquire)) return;
      continue;
    }
    if (!(seen & kSleeping) && !word_.word.compare_exchange_strong(seen, seen | kSleeping, std::memory_order_relaxed))
      continue;
    if (deadline_ns != 0) {
      os::Blocking blocking;
      os::futex_wait(word_.word, seen | kSleeping, kSliceNs);
    }
    const u32 now = word_.word.load(std::memory_order_relaxed);
    if (now == 0) continue;
    const bool same_owner = (now & ~kSleeping) == (seen & ~kSleeping) && (now & ~kSleeping) != my_word();
    if (same_owner && owner_gone(now)) {
      DI_FAULT("lock.before_takeover");
      u32 dead = now;
      if (word_.word.compare_exchange_strong(dead, mine, std::memory_order_acquire)) return;
      continue;
    }
    const u32 holder = lock_owner(now);
    record.culprit(holder);
    const u64 time = os::now_ns();
    if (time < deadline_ns) continue;
    // A lock is held for microseconds. An owner that runs and keeps it longer waits for a processor: no reason to fail.
    if (deadline_ns != 0 && time < deadline_ns + kPatienceNs && arena_.runs(holder)) continue;
    const std::string who = arena_.describe_client(holder);
    throw Error(Code::kTimeout, name_ + " is held by " + who, who);
  }
}

void SharedLock::release() {
  // release: pairs with the acquire of the next owner.
  const u32 before = word_.word.exchange(0, std::memory_order_release);
  if (before & kSleeping) os::futex_wake(word_.word, 1);
}

}  // namespace di
