// Pooled batch buffers, in the memory of one process. The arrays of a batch share one buffer, which returns to the pool
// when the last of them is destroyed: so a batch never changes while it is in use. Buffers are reused because the first
// write to fresh pages is 25 times slower. `mutex_` guards the list of free regions.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/layout.h"

namespace di {

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  BufferPool() { free_.reserve(kKeep + 1); }  // so that give(), called by destructors, allocates nothing
  ~BufferPool();
  struct Buffer {
    std::shared_ptr<BufferPool> pool;
    u8* data = nullptr;
    u64 bytes = 0;
  };
  // At least `bytes`, page-aligned; its pages are committed. End it with give().
  Buffer* take(u64 bytes);
  static void give(Buffer* buffer);

 private:
  struct Region {
    u8* data;
    u64 bytes;
  };
  static constexpr std::size_t kKeep = 8;
  std::mutex mutex_;
  std::vector<Region> free_;
};

}  // namespace di
