// fork.h says what happens when.
#include "attach/fork.h"

#include <algorithm>
#include <new>
#include <utility>

#include "attach/arena.h"
#include "attach/registry.h"

namespace di {
namespace {

constexpr int kParentPatienceMs = 10'000;        // for the child's pins
constexpr u64 kChildPatienceNs = 5'000'000'000;  // for the heap's lock; the parent's pins stay longer than that
constexpr u64 kLost = ~u64{0};                   // no generation
thread_local bool t_by_python = false;           // this thread's child will report when it has its pins
thread_local int t_pipe[2] = {-1, -1};           // the pipe for this report; made and closed under the registry's mutex
thread_local bool t_frozen = false;              // this fork has frozen the ledgers

// ------------------------------------------------------------------------------------------------------- around fork()
// A thread that holds one of these mutexes never waits for the GIL (os.h). So this thread can simply wait for the
// others: their owners release them without its help.

void prepare_fork() {
  os::lock_aside(registry().mutex);
  bool pins = false;
  for (Arena* arena : registry().arenas) {
    arena->local().lock();
    pins = arena->ledger().prepare_fork() || pins;
  }
  if (!pins || !t_by_python) return;
  t_frozen = true;
  Ledger::freeze();
  os::make_pipe(t_pipe);
}

void forked_in_parent() {
  for (Arena* arena : registry().arenas) {
    arena->ledger().end_fork();
    arena->local().unlock();
  }
  // Before another thread may fork: its child would keep the pipe open.
  if (t_pipe[1] >= 0) os::close_fd(std::exchange(t_pipe[1], -1));
  registry().mutex.unlock();
}

void forked_in_child() {
  // A recursive mutex knows the thread id of its owner. The child has another id, so it cannot unlock the mutex.
  new (&registry().mutex) std::recursive_mutex;
  for (Arena* arena : registry().arenas) arena->renew_mutexes();
  std::erase_if(registry().arenas, [](Arena* arena) { return arena->disown(); });
  // An arena that another thread of the parent was closing has no handle in the child.
  std::erase_if(registry().arenas, [](Arena* arena) { return arena->weak_from_this().expired(); });
  Ledger::forget_freezes();
  t_frozen = false;
}

}  // namespace

void watch_forks() { os::on_fork(&prepare_fork, &forked_in_parent, &forked_in_child); }

Registry::Registry() { watch_forks(); }

void Arena::renew_mutexes() {
  renew_mutex();
  new (&renewal_) std::mutex;
  ledger().renew_mutex();
}

// ------------------------------------------------------------------------------------------------------ Python's hooks

void before_fork() { t_by_python = true; }

void after_fork_parent() {
  t_by_python = false;
  if (const int reading = std::exchange(t_pipe[0], -1); reading >= 0) {
    const os::Aside aside;                          // the child may wait for a lock that a thread here releases
    os::wait_readable(reading, kParentPatienceMs);  // the child's byte, or end of file when it died
    os::close_fd(reading);
  }
  if (!std::exchange(t_frozen, false) || !Ledger::unfreeze()) return;
  const os::LocalGuard local(registry().mutex);
  for (Arena* arena : registry().arenas) arena->ledger().thaw();
}

void after_fork_child() {
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

namespace {

// Inherited arrays whose pins were not repeated get copies of their pages. From now on the mapping belongs to these
// arrays alone. Other processes go on changing the shared pages.
void keep_inherited(Arena& arena) noexcept {
  const std::span<InheritedPin> left = arena.ledger().inheritance();
  if (left.empty()) return;
  std::sort(left.begin(), left.end(), [](const auto& a, const auto& b) { return a.what < b.what; });
  const auto each = [&](const auto& work) {
    for (std::size_t i = 0; i < left.size(); ++i) {
      InheritedPin& pin = left[i];
      if (i > 0 && pin.what == left[i - 1].what) continue;  // one more array over the same object
      try {
        const Descriptor& object = arena.heap().descriptor(ledger_descriptor(pin.what));
        if (is_away(object)) continue;  // it was not pinned for its bytes, so there is no array
        const u64 first = object.offset / kPageBytes * kPageBytes;
        const u64 bytes = align_up(object.offset + object.bytes, kPageBytes) - first;
        work(pin, object, const_cast<u8*>(arena.readonly_at(first, bytes)), bytes);
      } catch (...) {  // a damaged descriptor does not say where its bytes lay
      }
    }
  };
  each([](InheritedPin& pin, const Descriptor&, u8* at, u64 bytes) {
    if (!os::make_private(at, bytes)) pin.ref = kLost;
    DI_FAULT("fork.pin_copied");
  });
  // This check comes after the copies: an object that still has this generation was pinned by the parent all the while,
  // so its copy is whole.
  each([&arena](const InheritedPin& pin, const Descriptor& object, u8* at, u64 bytes) {
    if (word_generation(object.word.load()) == pin.ref || os::make_unreadable(at, bytes)) return;
    const u64 all = arena.file_bytes() - kPageBytes;  // too many mappings: then all at once
    os::make_unreadable(const_cast<u8*>(arena.readonly_at(kPageBytes, all)), all);
  });
  arena.ledger().keep_inheritance();
  arena.leave_readonly();  // never unmapped: arrays lie in it
}

}  // namespace

// A kill anywhere leaves a slot that is free, or a dead client's with the pins repeated so far in its ledger.
void Arena::renew_in_child() {
  const os::LongGuard local(renewal_);
  if (!is_foreign()) return;
  begin_child();
  ledger().begin_child();
  static_cast<void>(tier_.release());  // the parent's: threads that do not exist here may hold its locks
  heap_->room_maker = nullptr;
  try {
    if (!has_descriptor())
      throw Error(Code::kStoreClosed, "this process closed the store's file descriptor; open the store again");
    join();
    if (tiered()) tier_ = std::make_unique<Tier>(*heap_, Tier::join(*this, Deadline::in(kChildPatienceNs)));
  } catch (...) {
    keep_inherited(*this);
    throw;
  }
  try {
    ledger().repeat_pins(Deadline::in(kChildPatienceNs));
  } catch (...) {  // keep_inherited() copies the objects whose pins were not repeated
  }
  keep_inherited(*this);
  if (!renew_readonly()) {
    leave();
    throw Error(Code::kCapacity, "cannot map the store again in this forked process; raise `ulimit -v`").told();
  }
  end_foreign();
}

}  // namespace di
