// Copies bodies to a segment of this process: bodies that have no copy yet (body_writer.h), and copies in files of which
// little is still needed (body_mover.h).
//
// Bodies are claimed under the heap's lock, written without a lock to a segment that this process alone fills, and
// committed under the heap's lock again. A claimed chunk is not freed, so its body can be read all the while. A kill
// leaves claims of a dead process, which the next search for bodies takes over; the bytes that it wrote belong to
// nobody. One thread of a process copies at a time. A stopped process keeps its claims and nothing else. If a call
// cannot end its claims because the heap's lock is held up, the next call ends them.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "heap/heap.h"
#include "tier/own_segment.h"

namespace di {

class BodyCopies {
 public:
  BodyCopies(const BodyCopies&) = delete;
  BodyCopies& operator=(const BodyCopies&) = delete;
  void end_left_claims(Deadline deadline);  // ends claims that an earlier call could not end

 protected:
  struct Copy {
    u32 chunk = kNone;
    u64 word = 0;  // of its descriptor
    u64 uid = 0;
    u64 from = 0;                    // the mover's: the place of the old copy
    std::span<const u8> head, body;  // body: the writer's, in memory
    u64 raw_bytes = 0, stored_bytes = 0;
    BodyCodec codec = BodyCodec::kRaw;
    std::vector<u32> crcs, ends;  // CRCs of stored pages; ends of blocks, empty if they stay as they are
    u32* ends_to = nullptr;       // in the head
    u64 to = 0;                   // the new place
    u32 pages = 0;                // of the new record
    bool written = false;         // the copy is written, and not committed yet
  };

  BodyCopies(Heap& heap, OwnSegment::For use) : heap_(heap), segment_(heap, use) {}
  virtual ~BodyCopies() = default;
  Copy& claim_body(u32 chunk, ChunkTier& tier) DI_REQUIRES(heap_.lock);
  ChunkTier* claimed(const Copy& copy) const;  // null: another process took this one for dead, and took over the claim
  // Writes the claimed bodies and commits them, those of one segment at a time. Returns what the commits return. If the
  // files are full, *why says so, and the other bodies are not copied.
  u64 write_claimed(Deadline deadline, std::string* why);
  // Commits the first `count` copies and takes them off the list.
  virtual u64 commit(std::size_t count, Deadline deadline);

  virtual void prepare(Copy*) {}             // its size on disk must be known afterwards
  virtual const u8* stored(Copy* copy) = 0;  // the bytes to write, valid until the next call; null: they are damaged
  virtual void note_written() = 0;
  virtual u64 commit_one(const Copy&, ChunkTier&) DI_REQUIRES(heap_.lock) { return 0; }

  Heap& heap_;
  std::mutex mutex_;          // one call of this process at a time
  std::vector<Copy> copies_;  // claimed and not committed
  OwnSegment segment_;

 private:
  void write(Copy* copy, const u8* body);

  std::vector<u8> head_;  // the head being written, as it was when the write began
};

}  // namespace di
