// Reads parts of bodies from disk, for one batch.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "heap/heap.h"
#include "os/file.h"
#include "tier/cold_bodies.h"
#include "tier/lost_bodies.h"

namespace di {

class BodyReader;

// The buffers that hold the parts of one batch until it is copied. A forked child has none of this memory, and does not
// touch the parent's pool.
class BodyBuffers {
 public:
  explicit BodyBuffers(os::SpareBuffers& memory) : memory_(memory) {}
  ~BodyBuffers() {
    if (pid_ != os::pid()) return;
    for (os::AlignedBuffer& buffer : buffers_) memory_.give(std::move(buffer));
  }
  BodyBuffers(const BodyBuffers&) = delete;
  BodyBuffers& operator=(const BodyBuffers&) = delete;

 private:
  friend class BodyReader;
  os::SpareBuffers& memory_;
  u32 pid_ = os::pid();
  std::vector<os::AlignedBuffer> buffers_;
};

// Reads that BodyReader has begun. The destructor cancels reads that have not started, and waits for the others.
class BodyReads {
 public:
  virtual ~BodyReads() = default;
  // Waits until all reads are done, without the GIL. Throws what BodyReader::read() throws.
  virtual void wait() = 0;
};

class BodyReader {
 public:
  BodyReader(const Heap& heap, LostBodies& lost) : heap_(heap), lost_(lost) {}

  os::SpareBuffers& memory() { return memory_; }
  // Reads all missing parts, many at a time, checks and unpacks them. The caller holds the chunks as a reader. Takes no
  // shared lock. Throws kRowsLost when stored bytes are gone or differ from those that were written: all such chunks
  // are noted by then, and their items must be removed before the next try. Throws kStoreError when this process cannot
  // read them now.
  void read(ColdBodies* bodies, BodyBuffers* buffers) { begin(bodies, buffers)->wait(); }
  // Begins the same reads without waiting: the parts are there when wait() has returned. *bodies and *buffers stay in
  // place until then, and outlive the returned object. Damage in memory is thrown here.
  std::unique_ptr<BodyReads> begin(ColdBodies* bodies, BodyBuffers* buffers);
  // The most memory, in bytes, that the wanted and missing parts take.
  u64 memory_for(const ColdBodies& bodies) const;

 private:
  struct Stored;
  struct BodyRange;
  class PendingReads;
  Stored find(u32 chunk) const;
  static BodyRange range_of(const Stored& of, u64 from, u64 bytes);
  static std::vector<BodyRange> ranges_of(const Stored& of, const std::vector<BodyPart*>& parts);
  static void unpack(const BodyRange& range, std::span<const u8> stored, u8* to);

  const Heap& heap_;
  LostBodies& lost_;
  os::SpareBuffers memory_;
};

}  // namespace di
