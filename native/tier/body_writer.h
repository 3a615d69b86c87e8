// Writes copies of chunk bodies to disk, a slice of a few MiB at a time.
//
// Bodies are claimed under the heap's lock, packed and written without a lock, to a segment that this process alone fills, and
// committed under the heap's lock again. A closed chunk never changes, and a claimed one is not freed, so its body may be read
// all the while. A kill leaves claims of the dead, which whoever looks for bodies takes over, and what it wrote is nobody's. One
// thread of a process writes at a time; a stopped one keeps its claims and nothing else. Claims that a call could not end, because
// the heap's lock was held up, are ended by the next one.
#pragma once

#include <mutex>
#include <vector>

#include "heap/heap.h"
#include "tier/own_segment.h"

namespace di {

// Bodies that are to have a copy on disk.
struct BodiesWanted {
  u64 last_uid = ~u64{0};        // none of chunks that came later
  std::vector<u32> tables = {};  // of one of these, by index; empty: of any

  bool has(const Heap& heap, u32 chunk) const;
};

class BodyWriter {
 public:
  explicit BodyWriter(Heap& heap) : heap_(heap), segment_(heap, OwnSegment::For::kNewBodies) {}
  BodyWriter(const BodyWriter&) = delete;
  BodyWriter& operator=(const BodyWriter&) = delete;

  // Bytes of bodies that now have a copy on disk; 0: *why, or none that is wanted lacks one. Throws when a file can't be written.
  u64 write_some(const BodiesWanted& wanted, Deadline deadline, std::string* why);
  void settle(Deadline deadline);  // ends claims that an earlier call could not end
  // Sleeps for a moment where other processes are writing copies of bodies, as write_some() found them. False: none are, or they
  // have been the same ones for a second.
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
    std::vector<u32> crcs, ends;  // of pages as stored; of blocks, empty where it is not packed
    u32* ends_to = nullptr;       // in the head
    bool written = false;
  };
  void claim(const BodiesWanted& wanted, Deadline deadline);
  u32 claim_some(const BodiesWanted& wanted, u32* at, u32 most) DI_REQUIRES(heap_.lock);
  // Packs a body, where that is wanted and worth it. Returns what is to be stored, valid until the next call.
  std::span<const u8> pack(Claimed* body);
  void write(Claimed* body, std::span<const u8> stored);
  u64 commit(std::size_t count, Deadline deadline);  // the first ones; then they are no longer listed
  u64 commit_one(const Claimed& body) DI_REQUIRES(heap_.lock);

  Heap& heap_;
  std::mutex mutex_;                      // of this process
  std::vector<Claimed> bodies_;           // claimed and not committed
  std::vector<u64> others_, waited_for_;  // uids of bodies that others had claimed: at the last look, when a wait began
  u64 waits_since_ns_ = 0;
  std::vector<u8> head_;  // the one that is being written, as it was when that began
  OwnSegment segment_;
  std::vector<u8> packed_;
};

}  // namespace di
