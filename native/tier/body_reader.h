// Reads parts of bodies from disk, for one batch.
#pragma once

#include <mutex>
#include <vector>

#include "heap/heap.h"
#include "os/direct.h"
#include "tier/cold_bodies.h"

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

// What the parts of a batch lie in, until it has been copied.
class BodyBuffers {
 public:
  explicit BodyBuffers(BodyMemory& memory) : memory_(memory) {}
  ~BodyBuffers() {
    for (os::AlignedBuffer& buffer : buffers_) memory_.give(std::move(buffer));
  }
  BodyBuffers(const BodyBuffers&) = delete;
  BodyBuffers& operator=(const BodyBuffers&) = delete;

 private:
  friend class BodyReader;
  BodyMemory& memory_;
  std::vector<os::AlignedBuffer> buffers_;
};

class BodyReader {
 public:
  explicit BodyReader(const Heap& heap) : heap_(heap) {}

  BodyMemory& memory() { return memory_; }
  // Reads all parts that are missing, many at a time, and checks them. The caller holds the chunks as a reader. Takes no shared
  // lock. Throws kCorruptData when the bytes are not those that were written, kStoreError when they can't be read.
  void read(ColdBodies* bodies, BodyBuffers* buffers);

 private:
  struct Wanted;
  Wanted place_of(u32 chunk) const;

  const Heap& heap_;
  BodyMemory memory_;
};

}  // namespace di
