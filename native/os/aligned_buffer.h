// Memory for reads and writes past the page cache (O_DIRECT).
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "base/types.h"

namespace di::os {

// Offsets, sizes and addresses of direct reads and writes are multiples of this, even if a device accepts less.
constexpr u64 kDirectBytes = 4096;

// Memory of this process alone, at a multiple of kDirectBytes, zeros at first. A forked child does not have it
// (MADV_DONTFORK): otherwise a read in flight would fill the child's page and not the parent's copy of it. Movable.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Rounds the size up; above 256 KiB, to huge pages: writes of 1 MiB from huge pages were measured a third faster.
  // Commits the whole buffer. Throws std::bad_alloc.
  explicit AlignedBuffer(u64 bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer() { clear(); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  u8* data() const { return at_; }
  u64 bytes() const { return bytes_; }
  void clear();

 private:
  u8* at_ = nullptr;
  u64 bytes_ = 0;
  u32 pid_ = 0;  // the process that has these pages; in a forked child, other memory may lie at at_
};

// Some buffers that are used again: pages that were touched before cost a sixth of fresh ones. For several threads.
class SpareBuffers {
 public:
  AlignedBuffer take(u64 bytes);
  void give(AlignedBuffer buffer);
  class Borrowed;  // a buffer for one scope

 private:
  std::mutex mutex_;
  std::vector<AlignedBuffer> idle_;
};

class SpareBuffers::Borrowed {
 public:
  Borrowed(SpareBuffers& spare, u64 bytes) : spare_(spare), buffer_(spare.take(bytes)) {}
  ~Borrowed() { spare_.give(std::move(buffer_)); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  u8* data() const { return buffer_.data(); }

 private:
  SpareBuffers& spare_;
  AlignedBuffer buffer_;
};

}  // namespace di::os
