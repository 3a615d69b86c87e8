// Pooled batch buffers. A batch's arrays share one buffer; it returns to the pool when the last of them is gone, so a
// batch never changes while anyone looks at it, and fresh pages (25 times slower) are touched once. [one process]
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/layout.h"

namespace di {

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  BufferPool() { free_.reserve(kKeep + 1); }  // giving back, in destructors, takes no memory
  ~BufferPool();
  struct Buffer {
    std::shared_ptr<BufferPool> pool;
    u8* data = nullptr;
    u64 bytes = 0;
  };
  // At least `bytes`, touched, 64-byte aligned. Delete the Buffer through give().
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
