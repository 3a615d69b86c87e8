// Reads parts of bodies from disk, for one batch.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "heap/heap.h"
#include "os/direct.h"
#include "tier/cold_bodies.h"
#include "tier/lost_bodies.h"

namespace di {

// Memory for what was read, kept from batch to batch: pages that were touched before cost a sixth of fresh ones.
class BodyMemory {
 public:
  os::AlignedBuffer take(u64 bytes);
  void give(os::AlignedBuffer buffer);

 private:
  std::mutex mutex_;
  std::vector<os::AlignedBuffer> idle_;
};

class BodyReader;

// What the parts of a batch lie in, until it has been copied. A forked child has none of this memory, and leaves the
// parent's pool of it alone.
class BodyBuffers {
 public:
  explicit BodyBuffers(BodyMemory& memory) : memory_(memory) {}
  ~BodyBuffers() {
    if (pid_ != os::pid()) return;
    for (os::AlignedBuffer& buffer : buffers_) memory_.give(std::move(buffer));
  }
  BodyBuffers(const BodyBuffers&) = delete;
  BodyBuffers& operator=(const BodyBuffers&) = delete;

 private:
  friend class BodyReader;
  BodyMemory& memory_;
  u32 pid_ = os::pid();
  std::vector<os::AlignedBuffer> buffers_;
};

// Reads that BodyReader has begun. Its end lets go those that have not started, and waits for the others.
class BodyReads {
 public:
  virtual ~BodyReads() = default;
  // Until all are done; leaves the GIL. Throws what BodyReader::read() throws.
  virtual void wait() = 0;
};

class BodyReader {
 public:
  BodyReader(const Heap& heap, LostBodies& lost) : heap_(heap), lost_(lost) {}

  BodyMemory& memory() { return memory_; }
  // Reads all parts that are missing, many at a time, checks and unpacks them. The caller holds the chunks as a reader. Takes no shared
  // lock. Throws kRowsLost when the bytes are not those that were written, or are gone: all such chunks are noted then, and
  // their items are to be removed before the next try. kStoreError: this process cannot read them now.
  void read(ColdBodies* bodies, BodyBuffers* buffers) { begin(bodies, buffers)->wait(); }
  // The same, not waited for: the parts are there when wait() has returned. *bodies and *buffers stay where they are until
  // then, and outlive what is returned. What is damaged in memory is thrown here.
  std::unique_ptr<BodyReads> begin(ColdBodies* bodies, BodyBuffers* buffers);
  // Bytes of memory that the parts which are wanted and missing take, at most.
  u64 memory_for(const ColdBodies& bodies) const;

 private:
  struct Stored;
  struct Extent;
  class Reads;
  Stored find(u32 chunk) const;
  static void add_packed(const Stored& of, BodyPart* part, std::vector<Extent>* extents);
  static std::vector<Extent> extents_of(const Stored& of, const std::vector<BodyPart*>& parts);
  static void unpack(const Extent& extent, std::span<const u8> stored, u8* to);

  const Heap& heap_;
  LostBodies& lost_;
  BodyMemory memory_;
};

}  // namespace di
