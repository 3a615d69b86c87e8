// Pooled batch buffers, in the memory of one process. The arrays of a batch share one buffer, which returns to the pool
// when the last of them is destroyed. So a batch never changes while it is in use. Buffers are reused because the first
// write to fresh pages is 25 times slower.
//
// Buffers count against the memory that the machine and the cgroups have left, as the store itself does: the kernel
// kills a process past its cgroup's limit. When memory is short, unused buffers are given back, and a batch that still
// does not fit is refused.
//
// All calls are made with the GIL, so a fork of Python finds the mutexes free.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/layout.h"

namespace di {

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  BufferPool();
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  struct Buffer {
    std::shared_ptr<BufferPool> pool;
    u8* data = nullptr;
    u64 bytes = 0;
  };
  // Returns at least `bytes`, page-aligned, with committed pages. End it with give(). Throws kStoreFull when there is
  // no memory for it.
  Buffer* take(u64 bytes);
  static void give(Buffer* buffer);
  // Unmaps the unused buffers of all pools of this process. False: there were no unused buffers.
  static bool give_back_unused();

 private:
  struct Region {
    u8* data;
    u64 bytes;
  };
  static constexpr std::size_t kKeep = 8;
  bool take_free(u64 bytes, Region* region);
  std::mutex mutex_;
  std::vector<Region> free_;  // under mutex_
};

}  // namespace di
