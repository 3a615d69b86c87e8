// A process that forks, and its child.
//
// prepare(), in_parent() and in_child() lie around fork() itself: no Python runs between them. The forking thread holds
// every mutex of the process across it, and the child makes them anew, so they serve before anything runs there: Python's
// collector may call destructors of what the child inherits before any hook of ours. Until renew_in_child() all handles
// are foreign (`*alive_` reads 0): their destructors change nothing that is shared, and arrays let go are only noted.
//
// before_fork(), after_fork_parent() and after_fork_child() are Python's hooks. The child takes a client slot of its own
// through the inherited descriptor (record locks are not inherited) and repeats the parent's pins while the parent waits,
// so that views stay true in both. A pin that it cannot repeat (no room, no slot, somebody holds up the heap) it replaces
// by a copy of the bytes; where these have changed already, whoever reads them dies rather than read others.
#include <algorithm>
#include <new>
#include <utility>

#include "arena/arena.h"
#include "arena/locks.h"
#include "arena/registry.h"
#include "heap/heap.h"
#include "heap/ledger.h"

namespace di {
namespace {

constexpr int kParentPatienceMs = 10'000;        // for the child's pins
constexpr u64 kChildPatienceNs = 5'000'000'000;  // for the heap's lock; the parent's pins stay longer than that
constexpr u64 kLost = ~u64{0};                   // no generation
thread_local bool t_by_python = false;           // this thread's fork will tell when the child has its pins
thread_local int t_pipe[2] = {-1, -1};           // through which it does; made and closed under the registry's mutex
thread_local bool t_frozen = false;              // this fork has frozen the ledgers

}  // namespace

// ------------------------------------------------------------------------------------------------------- around fork()
// With the registry's mutex in hand nobody asks for the GIL (os.h): the other mutexes are taken as they are, those who have
// them let go by themselves.

void Arena::watch_forks() { os::on_fork(&Arena::prepare_fork, &Arena::forked_in_parent, &Arena::forked_in_child); }

void Arena::prepare_fork() {
  os::lock_aside(registry().mutex);
  bool pins = false;
  for (Arena* arena : registry().arenas) {
    arena->local_.lock();
    pins = arena->ledger_->prepare_fork() || pins;
  }
  if (!pins || !t_by_python) return;
  t_frozen = true;
  Ledger::freeze();
  os::make_pipe(t_pipe);
}

void Arena::forked_in_parent() {
  for (Arena* arena : registry().arenas) {
    arena->ledger_->unlock();
    arena->local_.unlock();
  }
  // Before another thread may fork: its child would keep the pipe open.
  if (t_pipe[1] >= 0) os::close_fd(std::exchange(t_pipe[1], -1));
  registry().mutex.unlock();
}

void Arena::forked_in_child() {
  // A recursive mutex knows its owner's thread id, which the child has not: it cannot be unlocked here.
  new (&registry().mutex) std::recursive_mutex;
  for (Arena* arena : registry().arenas) {
    new (&arena->local_) std::recursive_mutex;
    new (&arena->renewal_) std::mutex;
    // mutant: mutexes-stay-locked-in-a-child
    arena->ledger_->renew_mutex();
  }
  // One that a thread of the parent is just closing is nobody's here.
  std::erase_if(registry().arenas, [](Arena* arena) { return arena->weak_from_this().expired(); });
  Ledger::forget_freezes();
  t_frozen = false;
}

// ------------------------------------------------------------------------------------------------------ Python's hooks

void Arena::before_fork() { t_by_python = true; }

void Arena::after_fork_parent() {
  t_by_python = false;
  if (const int reading = std::exchange(t_pipe[0], -1); reading >= 0) {
    const os::Aside aside;                          // the child may wait for what a thread here gives back
    os::wait_readable(reading, kParentPatienceMs);  // the child's byte, or end of file when it died
    os::close_fd(reading);
  }
  if (!std::exchange(t_frozen, false) || !Ledger::unfreeze()) return;
  os::lock_aside(registry().mutex);
  const std::lock_guard<std::recursive_mutex> guard(registry().mutex, std::adopt_lock);
  for (Arena* arena : registry().arenas) arena->ledger_->thaw();
}

void Arena::after_fork_child() {
  const os::Quiet quiet;  // Python throws away what its hooks raise
  t_by_python = false;
  for (std::size_t i = 0; i < registry().arenas.size(); ++i) {
    const std::shared_ptr<Arena> arena = registry().arenas[i]->weak_from_this().lock();
    if (!arena) continue;
    try {
      arena->renew_in_child();
    } catch (...) {  // reported by the child's first call, through enter()
    }
  }
  if (t_pipe[1] >= 0) os::write_byte(t_pipe[1]);
  for (int& end : t_pipe)
    if (end >= 0) os::close_fd(std::exchange(end, -1));
}

// --------------------------------------------------------------------------------------------------- the child's store

void Arena::renew_in_child() {
  os::LocalGuard<std::mutex> guard(renewal_);
  if (*alive_ != 0) return;
  ++fork_generation_;
  pid_ = os::pid();
  // mutant: fork-keeps-the-parents-slot
  slot_ = kNone;
  ledger_->forget_for_child();
  try {
    if (os::file_id(fd_) != id_)
      throw Error(Code::kStoreClosed, "this process closed the store's file descriptor; open the store again");
    claim_slot();
  } catch (...) {
    keep_inherited();
    throw;
  }
  try {
    // mutant: fork-repeats-no-pins
    ledger_->repeat_pins(os::now_ns() + kChildPatienceNs);
  } catch (...) {  // what could not be repeated is kept in another way
  }
  keep_inherited();
  if (readonly_ == nullptr && (readonly_ = os::map(fd_, file_bytes_, false)) == nullptr) {
    leave_slot();
    throw Error(Code::kCapacity, "cannot map the store anew in this forked process; raise `ulimit -v`").told();
  }
  *alive_ = 1;
}

// Inherited arrays whose pins were not repeated get copies of their pages. The mapping is theirs alone from now on: what
// lies in those pages goes on changing for everybody else.
void Arena::keep_inherited() noexcept {
  const std::span<Ledger::Inherited> left = ledger_->inheritance();
  if (left.empty()) return;
  std::sort(left.begin(), left.end(), [](const auto& a, const auto& b) { return a.what < b.what; });
  const auto each = [&](const auto& work) {
    for (std::size_t i = 0; i < left.size(); ++i) {
      Ledger::Inherited& pin = left[i];
      if (i > 0 && pin.what == left[i - 1].what) continue;  // one more array over the same object
      try {
        const Descriptor& object = heap_->descriptor(ledger_descriptor(pin.what));
        const u64 first = object.offset / kPageBytes * kPageBytes;
        const u64 bytes = align_up(object.offset + object.bytes, kPageBytes) - first;
        work(pin, object, const_cast<u8*>(readonly_at(first, bytes)), bytes);
      } catch (...) {  // a damaged descriptor: nobody can tell where its bytes lay
      }
    }
  };
  each([](Ledger::Inherited& pin, const Descriptor&, u8* at, u64 bytes) {
    // mutant: what-a-child-cannot-pin-changes
    if (!os::make_private(at, bytes)) pin.ref = kLost;
    DI_FAULT("fork.pin_copied");
  });
  // After the copies: while the parent's pin held, the object was there, of this generation, and whole.
  each([this](const Ledger::Inherited& pin, const Descriptor& object, u8* at, u64 bytes) {
    if (word_generation(object.word.load()) == pin.ref || os::make_unreadable(at, bytes)) return;
    os::make_unreadable(const_cast<u8*>(readonly_), file_bytes_);  // too many mappings: then all at once
  });
  ledger_->keep_inheritance();
  readonly_ = nullptr;  // never unmapped: arrays lie in it
}

void Arena::leave_slot() {
  clients_[slot_].generation.fetch_add(1);
  clients_[slot_].state.store(static_cast<u32>(ClientState::kFree), std::memory_order_release);
  os::unlock_byte(fd_, kClientLockBase + slot_);
  slot_ = kNone;
}

}  // namespace di
