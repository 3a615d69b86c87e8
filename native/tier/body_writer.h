// Writes copies of chunk bodies to disk, a slice of a few MiB at a time.
//
// The writer claims bodies under the heap's lock. It packs and writes them without a lock, to a segment that this
// process alone fills, and commits them under the heap's lock again. A closed chunk never changes and a claimed chunk
// is not freed, so its body can be read all the while. A kill leaves claims of a dead process, which the next search
// for bodies takes over; the bytes that it wrote belong to nobody. One thread of a process writes at a time. A stopped
// writer keeps its claims and nothing else. If a call cannot end its claims because the heap's lock is held up, the
// next call ends them.
#pragma once

#include <mutex>
#include <vector>

#include "heap/heap.h"
#include "tier/own_segment.h"
#include "tier/patience.h"

namespace di {

// Which bodies should have a copy on disk.
struct BodiesWanted {
  u64 last_uid = ~u64{0};        // no chunk that came later
  std::vector<u32> tables = {};  // chunks of one of these tables, by index; empty: of any table

  bool has(const Heap& heap, u32 chunk) const;
};

class BodyWriter {
 public:
  explicit BodyWriter(Heap& heap)
      : heap_(heap), patience_(heap.memory, ~u64{0}), segment_(heap, OwnSegment::For::kNewBodies) {}
  BodyWriter(const BodyWriter&) = delete;
  BodyWriter& operator=(const BodyWriter&) = delete;

  // Returns the bytes of bodies that now have a copy on disk. 0: every wanted body has a copy, or *why names the
  // obstacle. Throws when a file can't be written.
  u64 write_some(const BodiesWanted& wanted, Deadline deadline, std::string* why);
  void end_left_claims(Deadline deadline);  // ends claims that an earlier call could not end
  // Sleeps for a moment if other processes are writing copies of bodies, as write_some() found. False: no process is,
  // or the bodies have been the same ones for a second.
  bool await_others(Deadline deadline);

 private:
  struct Claimed {
    u32 chunk = kNone;
    u64 word = 0;  // of its descriptor
    u64 uid = 0;
    std::span<const u8> head, body;
    u32 segment = kNone;  // number of its entry
    RecordPlace place{};
    BodyCodec codec = BodyCodec::kRaw;
    u64 stored_bytes = 0;
    std::vector<u32> crcs, ends;  // CRCs of stored pages; ends of blocks, empty if not packed
    u32* ends_to = nullptr;       // in the head
    bool written = false;
  };
  void claim(const BodiesWanted& wanted, Deadline deadline);
  u32 claim_some(const BodiesWanted& wanted, u32* at, u32 most) DI_REQUIRES(heap_.lock);
  // Packs a body, if that is wanted and worth it. Returns the bytes to store, valid until the next call.
  std::span<const u8> pack(Claimed* body);
  void write(Claimed* body, std::span<const u8> stored);
  u64 commit(std::size_t count, Deadline deadline);  // commits the first `count` bodies and takes them off the list
  u64 commit_one(const Claimed& body) DI_REQUIRES(heap_.lock);

  Heap& heap_;
  std::mutex mutex_;                      // one call of this process at a time
  std::vector<Claimed> bodies_;           // claimed and not committed
  std::vector<u64> others_, waited_for_;  // uids that others had claimed: at the last look; when the wait began
  Patience patience_;
  std::vector<u8> head_;  // the head being written, as it was when the write began
  OwnSegment segment_;
  std::vector<u8> packed_;
};

}  // namespace di
