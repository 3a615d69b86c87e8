#include "process/locks.h"

#include "process/clients.h"

namespace di {
namespace {

constexpr u32 kSleeping = 0x80000000u;
constexpr u64 kSliceNs = 20'000'000;         // how long a waiter sleeps before it asks whether the owner lives
constexpr u64 kPatienceNs = 10'000'000'000;  // beyond the deadline, for an owner that is not stopped
constexpr u64 kNestedNs = 50'000'000;        // for a lock, while this thread holds another one
constexpr int kSpins = 60;                   // about 2 us of pauses

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // waits a little; `yield` does nothing on most cores
#endif
}

}  // namespace

bool SharedLock::try_acquire() {
  u32 free = 0;
  // acquire: pairs with the release in release(); what the last owner wrote is visible.
  if (!word_.word.compare_exchange_strong(free, lock_owner_word(client_), std::memory_order_acquire)) return false;
  ++os::t_in_hand.locks;
  return true;
}

void SharedLock::acquire(Deadline deadline) {
  if (try_acquire()) return;
  for (int i = 0; i < kSpins; ++i) {
    pause();
    if (word_.word.load(std::memory_order_relaxed) == 0 && try_acquire()) return;
  }
  acquire_slow(deadline);
}

bool owner_gone(const Client& client, u32 word) {
  const u32 holder = lock_owner(word);
  if (holder >= kMaxClients) return true;  // a damaged word: no process will ever release it
  const u32 generation = client.memory.client(holder).generation.load(std::memory_order_acquire);
  return lock_owner_word(holder, generation) != (word & ~kSleeping) || is_dead(client, holder);
}

void SharedLock::acquire_slow(Deadline deadline) {
  const u32 mine = lock_owner_word(client_) | kSleeping;  // others may sleep too: wake one at release
  const bool nested = os::t_in_hand.locks != 0 && !deadline.tries_only();
  const Deadline until = nested ? deadline.at_most(kNestedNs) : deadline;
  WaitRecord record(client_);
  os::LongWait wait;
  for (;;) {
    u32 seen = word_.word.load(std::memory_order_relaxed);
    if (seen == 0) {
      if (word_.word.compare_exchange_strong(seen, mine, std::memory_order_acquire)) break;
      continue;
    }
    if (!(seen & kSleeping) && !word_.word.compare_exchange_strong(seen, seen | kSleeping, std::memory_order_relaxed))
      continue;
    if (!deadline.tries_only()) {
      os::Blocking blocking;
      os::futex_wait(word_.word, seen | kSleeping, kSliceNs);
    }
    const u32 now = word_.word.load(std::memory_order_relaxed);
    if (now == 0) continue;
    const bool same_owner = (now & ~kSleeping) == (seen & ~kSleeping) && (now & ~kSleeping) != lock_owner_word(client_);
    if (same_owner && owner_gone(client_, now)) {
      DI_FAULT("lock.before_takeover");
      u32 dead = now;
      if (word_.word.compare_exchange_strong(dead, mine, std::memory_order_acquire)) break;
      continue;
    }
    const u32 holder = lock_owner(now);
    if (!deadline.tries_only()) record.is_for_lock(holder);  // from the second slice on: most waits are over by then
    if (!until.over()) {
      if (wait.is_due()) wait.tell(name_ + " is held by " + describe_client(client_.memory, holder));
      continue;
    }
    // A lock is held for microseconds. A running owner that keeps it longer waits for a processor: no reason to fail.
    if (!deadline.tries_only() && !until.over_since(kPatienceNs) && runs(client_.memory, holder)) continue;
    if (!deadline.tries_only()) record.give_up();
    refuse(holder, nested);
  }
  ++os::t_in_hand.locks;
}

void SharedLock::refuse(u32 holder, bool nested) {
  const std::string who = describe_client(client_.memory, holder);
  Error error(Code::kTimeout, name_ + " is held by " + who, who);
  error.held_by(holder);
  if (nested) error.while_holding(&word_, name_);
  throw error;
}

void await_inner(const Client& client, const Error& error, Deadline deadline) {
  if (deadline.over()) throw error;
  if (error.lock() == nullptr) {
    os::Blocking blocking;
    os::sleep_ns(kSliceNs / 2);
    return;
  }
  SharedLock lock(client, *static_cast<LockWord*>(error.lock()), error.lock_name());
  lock.acquire(deadline);  // after a death `dirty` stays set: the next owner repairs
  lock.release();
}

void SharedLock::release() {
  // release: pairs with the acquire of the next owner.
  const u32 before = word_.word.exchange(0, std::memory_order_release);
  --os::t_in_hand.locks;
  if (before & kSleeping) os::futex_wake(word_.word, 1);
}

}  // namespace di
