#include "rows/buffers.h"

#include <algorithm>

#include "base/status.h"
#include "os/os.h"

namespace di {
namespace {

// Between two looks at free memory, a process commits at most an eighth of it, and between kLeastPieceBytes and
// kPieceBytes: other processes that look at the same time see the same memory.
constexpr u64 kPieceBytes = u64{8} << 20, kLeastPieceBytes = u64{256} << 10;
// A look takes 40 us: 1 % of the time that a batch of this size takes. Smaller batches return their buffers without a
// look.
constexpr u64 kLargeBytes = u64{32} << 20;

// All pools of this process, under `mutex`. It is locked before a pool's own mutex.
struct Pools {
  std::mutex mutex;
  std::vector<BufferPool*> all;
};

Pools& pools() {
  static Pools* const made = new Pools;  // never destroyed: buffers may end after static objects
  return *made;
}

[[noreturn]] void refuse(u64 bytes, u64 left) {
  throw Error(Code::kStoreFull, "a batch of " + std::to_string((bytes + (1 << 20) - 1) >> 20) +
                                    " MiB does not fit: machine or cgroup has only " + std::to_string(left >> 20) +
                                    " MiB of memory left above its safety margin; draw fewer items at once, lower "
                                    "prefetch= or memory=, drop earlier batches, or give the job more memory")
      .told();
}

[[noreturn]] void refuse_addresses(u64 bytes) {
  throw Error(Code::kStoreFull, "no addresses for a batch of " + std::to_string(bytes) +
                                    " bytes; raise `ulimit -v`, draw fewer items at once, lower prefetch=, or drop "
                                    "earlier batches")
      .told();
}

// Whether `bytes` may be committed. If memory is short, it first gives back unused buffers.
bool has_room(u64 bytes) {
  if (os::memory_for_buffers() >= bytes) return true;
  return BufferPool::give_back_unused() && os::memory_for_buffers() >= bytes;
}

// Whether one more buffer of this size would fit. If not, memory is short for other users. Called by destructors.
bool fits_again(u64 bytes) noexcept {
  try {
    return os::memory_for_buffers() >= bytes;
  } catch (...) {  // no descriptor or memory left for reading the limits: nothing is known
    return true;
  }
}

u8* map_region(u64 bytes) {
  u8* const data = os::map_private(bytes);
  return data == nullptr && BufferPool::give_back_unused() ? os::map_private(bytes) : data;
}

u64 piece_of(u64 bytes) {
  const u64 share = os::memory_for_buffers() / 8 / kPageBytes * kPageBytes;
  return std::min(bytes, std::clamp(share, kLeastPieceBytes, kPieceBytes));
}

u8* commit_region(u64 bytes) {
  if (!has_room(bytes)) refuse(bytes, os::memory_for_buffers());
  u8* const data = map_region(bytes);
  if (data == nullptr) refuse_addresses(bytes);
  u64 done = 0;
  try {
    while (done < bytes) {
      const u64 piece = piece_of(bytes - done);
      if (!has_room(piece)) refuse(bytes - done, os::memory_for_buffers());
      if (piece < std::min(kSliceBytes, bytes - done)) os::use_small_pages(data + done, bytes - done);
      os::touch_private(data + done, piece);
      done += piece;
    }
  } catch (...) {  // refused, or no descriptor left for reading the limits
    os::unmap_private(data, bytes, done);
    throw;
  }
  return data;
}

}  // namespace

BufferPool::BufferPool() {
  free_.reserve(kKeep + 1);  // so that give(), which destructors call, does not allocate
  std::lock_guard<std::mutex> guard(pools().mutex);
  pools().all.push_back(this);
}

BufferPool::~BufferPool() {
  {
    std::lock_guard<std::mutex> guard(pools().mutex);
    std::erase(pools().all, this);
  }
  for (const Region& region : free_) os::unmap_private(region.data, region.bytes, region.bytes);
}

bool BufferPool::take_free(u64 bytes, Region* region) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (std::size_t i = free_.size(); i-- > 0;)
    if (free_[i].bytes >= bytes && free_[i].bytes <= 2 * bytes) {
      *region = free_[i];
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      return true;
    }
  return false;
}

BufferPool::Buffer* BufferPool::take(u64 bytes) {
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (bytes == 0) bytes = kPageBytes;
  auto buffer = std::make_unique<Buffer>(Buffer{shared_from_this()});  // first: if this throws, no region is lost
  Region region{nullptr, bytes};
  if (!take_free(bytes, &region)) region.data = commit_region(bytes);
  buffer->data = region.data;
  buffer->bytes = region.bytes;
  return buffer.release();
}

void BufferPool::give(Buffer* buffer) {
  const std::unique_ptr<Buffer> ended(buffer);
  Region drop{buffer->data, buffer->bytes};
  if (buffer->bytes < kLargeBytes || fits_again(buffer->bytes)) {
    std::lock_guard<std::mutex> guard(buffer->pool->mutex_);
    std::vector<Region>& free = buffer->pool->free_;
    free.push_back(drop);
    drop.data = nullptr;
    if (free.size() > kKeep) {
      drop = free.front();
      free.erase(free.begin());
    }
  }
  if (drop.data != nullptr) os::unmap_private(drop.data, drop.bytes, drop.bytes);
}

bool BufferPool::give_back_unused() {
  bool any = false;
  std::lock_guard<std::mutex> guard(pools().mutex);
  for (BufferPool* pool : pools().all) {
    std::lock_guard<std::mutex> own(pool->mutex_);
    for (const Region& region : pool->free_) os::unmap_private(region.data, region.bytes, region.bytes);
    any = any || !pool->free_.empty();
    pool->free_.clear();
  }
  return any;
}

}  // namespace di
