// A real store in this process, children that inherit it, and objects whose bytes tell what they should be.
#pragma once

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attach/arena.h"
#include "attach/fork.h"
#include "attach/registry.h"
#include "check.h"
#include "child.h"
#include "heap/heap.h"
#include "maintenance/reaper.h"
#include "objects/pin.h"
#include "objects/weights.h"
#include "process/ledger.h"

namespace di {

inline bool full_scale() {
  const char* scale = std::getenv("DI_STORE_TEST_SCALE");
  return scale != nullptr && std::string(scale) == "full";
}
inline u64 scaled_count(u64 small, u64 full) { return full_scale() ? full : small; }
constexpr u64 kMiB = u64{1} << 20;
inline Deadline soon() { return Deadline::in(60'000'000'000); }

// Until the child stands still, by a signal or at a fault point armed with ":stop".
inline void wait_stopped(const Child& child) {
  while (os::look_at(static_cast<u32>(child.pid())).state != 'T') os::sleep_ns(1'000'000);
}

// Every fork of the program passes the arenas on, as os.fork does in Python.
inline void pass_arenas_on() {
  registry();  // its own handlers are the innermost ones
  static const int once = pthread_atfork(&before_fork, &after_fork_parent, &after_fork_child);
  CHECK(once == 0);
}

inline std::string fresh_name(const char* what) {
  static u32 count = 0;
  return std::string(what) + "-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

inline std::shared_ptr<Arena> make_store(const char* what, u64 budget, u64 seed = 1) {
  pass_arenas_on();
  return Arena::open(fresh_name(what), Arena::Mode::kNew, {budget, seed}, soon());
}

// splitmix64: a small stream of random words, the same for the same seed.
struct Random {
  u64 state;
  u64 next() {
    u64 x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  u64 below(u64 n) { return next() % n; }
};

struct ObjectId {
  Id bytes;
  explicit ObjectId(u64 number) {
    std::memset(bytes, 0, sizeof bytes);
    std::memcpy(bytes, &number, 8);
  }
};

// An object's bytes: its number in every 64-bit word of the first and last 64 bytes, and every 4 KiB.
inline void stamp(u8* at, u64 bytes, u64 number) {
  for (u64 i = 0; i + 8 <= bytes; i += (i < 64 || i + 64 >= bytes) ? 8 : 8 * 13) std::memcpy(at + i, &number, 8);
}
inline bool stamped(const u8* at, u64 bytes, u64 number) {
  for (u64 i = 0; i + 8 <= bytes; i += (i < 64 || i + 64 >= bytes) ? 8 : 8 * 13)
    if (std::memcmp(at + i, &number, 8) != 0) return false;
  return true;
}

inline MakeResult put_number(Arena& arena, u64 number, u64 bytes, u64 expires_ns = 0) {
  const ObjectId id(number);
  const u32 entry = arena.ledger().take_one(Deadline::none());
  MakeRequest request;
  request.bytes = bytes;
  request.id = id.bytes;
  request.expires_ns = expires_ns;
  u32 descriptor = kNone;
  std::string why;
  const MakeResult made = arena.heap().maker.make(request, entry, soon(), &descriptor, &why);
  if (made != MakeResult::kMade) {
    arena.ledger().give(entry);
    return made;
  }
  DI_FAULT("put.before_copy");
  stamp(arena.heap().block(descriptor), bytes, number);
  DI_FAULT("put.before_seal");
  arena.heap().maker.seal(descriptor, entry);
  return made;
}

// A pin on an object, as an array holds one.
class Pinned {
 public:
  Pinned(Arena& arena, u64 number) : arena_(&arena), entry_(arena.ledger().take_one(Deadline::none())) {
    AwayObject away;
    result_ = arena.heap().objects.pin(ObjectId(number).bytes, entry_, &descriptor_, &away, soon());
    if (result_ != PinResult::kPinned) arena.ledger().give(entry_);
    if (result_ == PinResult::kAway) load(number);
  }
  ~Pinned() { drop(); }
  Pinned(Pinned&& other) noexcept { *this = std::move(other); }
  Pinned& operator=(Pinned&& other) noexcept {
    std::swap(arena_, other.arena_);
    std::swap(entry_, other.entry_);
    std::swap(descriptor_, other.descriptor_);
    std::swap(result_, other.result_);
    std::swap(aside_, other.aside_);
    return *this;
  }
  explicit operator bool() const { return result_ == PinResult::kPinned; }
  PinResult result() const { return result_; }
  u32 descriptor() const { return descriptor_; }
  const u8* data() const {
    return aside_.empty() ? arena_->readonly_at(arena_->heap().descriptor(descriptor_).offset, size()) : aside_.data();
  }
  u64 size() const { return aside_.empty() ? arena_->heap().descriptor(descriptor_).bytes : aside_.size(); }
  void drop() {
    if (std::exchange(result_, PinResult::kMissing) == PinResult::kPinned && aside_.empty())
      arena_->ledger().drop(entry_);
  }

 private:
  void load(u64 number) {
    result_ = PinResult::kMissing;
    const auto aside = [this](u64 bytes) {
      aside_.resize(bytes);
      return aside_.data();
    };
    try {
      const Pin pin = pin_object(*arena_, ObjectId(number).bytes, aside, soon());
      if (pin.aside.empty()) aside_.clear();
      entry_ = pin.entry;
      descriptor_ = pin.descriptor;
      result_ = PinResult::kPinned;
    } catch (const Error& error) {
      CHECK(error.code() == Code::kObjectNotFound);
    }
  }

  Arena* arena_ = nullptr;
  u32 entry_ = kNone, descriptor_ = kNone;
  PinResult result_ = PinResult::kMissing;
  std::vector<u8> aside_;  // its bytes, where shared memory had no room for them
};

inline bool holds_number(Arena& arena, u64 number) {
  const Pinned pinned(arena, number);
  return pinned && stamped(pinned.data(), pinned.size(), number);
}

inline void report(const std::vector<std::string>& findings) {
  for (const std::string& finding : findings) std::fprintf(stderr, "finding: %s\n", finding.c_str());
}

// As the bindings do it: a wait for a lock that was cut short, since another one is in hand, is repeated.
inline void reap_patiently(const std::shared_ptr<Arena>& arena) {
  patiently(*arena, soon(), [&] { return reap(arena, soon()); });
}

// Reaps, then compares every derived figure of the heap with a recount.
inline void check_heap(const std::shared_ptr<Arena>& arena) {
  reap_patiently(arena);
  std::vector<std::string> findings;
  arena->heap().check(false, soon(), &findings);
  report(findings);
  CHECK(findings.empty());
}

struct HeapCounts {  // what must be as before once everything made has gone
  u64 live, pinned, pending, objects, charge;
  bool operator==(const HeapCounts&) const = default;
};
inline HeapCounts heap_counts(const Arena& arena) {
  const HeapHeader& heap = arena.heap_header();
  return {heap.live_bytes, heap.pinned_bytes, heap.pending_bytes, heap.live_objects, heap.table_charge};
}

inline u64 committed_bytes(const Arena& arena) {
  const HeapHeader& heap = arena.heap_header();
  return heap.object_bytes + heap.chunk_bytes + heap.meta_bytes + heap.free_bytes + heap.fixed_bytes;
}

}  // namespace di
