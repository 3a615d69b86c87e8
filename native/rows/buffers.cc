#include "rows/buffers.h"

#include "base/status.h"
#include "os/os.h"

namespace di {

BufferPool::~BufferPool() {
  for (const Region& region : free_) os::unmap(region.data, region.bytes);
}

BufferPool::Buffer* BufferPool::take(u64 bytes) {
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (bytes == 0) bytes = kPageBytes;
  auto buffer = std::make_unique<Buffer>(Buffer{shared_from_this()});  // first: if it throws, no region is lost
  Region region{nullptr, 0};
  {
    std::lock_guard<std::mutex> guard(mutex_);
    for (std::size_t i = free_.size(); i-- > 0;)
      if (free_[i].bytes >= bytes && free_[i].bytes <= 2 * bytes) {
        region = free_[i];
        free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      }
  }
  if (region.data == nullptr) {
    region = {os::map_private(bytes), bytes};
    if (region.data == nullptr)
      throw Error(Code::kStoreFull, "no memory for a batch of " + std::to_string(bytes) + " bytes");
  }
  buffer->data = region.data;
  buffer->bytes = region.bytes;
  return buffer.release();
}

void BufferPool::give(Buffer* buffer) {
  Region drop{nullptr, 0};
  {
    std::lock_guard<std::mutex> guard(buffer->pool->mutex_);
    buffer->pool->free_.push_back({buffer->data, buffer->bytes});
    if (buffer->pool->free_.size() > kKeep) {
      drop = buffer->pool->free_.front();
      buffer->pool->free_.erase(buffer->pool->free_.begin());
    }
  }
  if (drop.data != nullptr) os::unmap(drop.data, drop.bytes);
  delete buffer;
}

}  // namespace di
