// See aligned_buffer.h.
#include "os/aligned_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "os/os.h"

namespace di::os {

namespace {

constexpr std::size_t kMostIdle = 4;

u64 rounded(u64 bytes, u64 unit) { return (std::max<u64>(bytes, 1) + unit - 1) & ~(unit - 1); }

// At a multiple of kSliceBytes if the size allows huge pages: older kernels place huge pages only there.
u8* map_aligned(u64 bytes) {
  if (bytes < kSliceBytes) return map_private(bytes);
  u8* const all = map_private(bytes + kSliceBytes);
  if (all == nullptr) return nullptr;
  const u64 front = (kSliceBytes - reinterpret_cast<u64>(all) % kSliceBytes) % kSliceBytes;
  if (front != 0) unmap(all, front);
  unmap(all + front + bytes, kSliceBytes - front);
  return all + front;
}

}  // namespace

AlignedBuffer::AlignedBuffer(u64 bytes)
    : bytes_(rounded(bytes, bytes > kSliceBytes / 8 ? kSliceBytes : kDirectBytes)), pid_(pid()) {
  at_ = bytes_ < bytes || bytes_ + kSliceBytes < bytes_ ? nullptr : map_aligned(bytes_);
  if (at_ == nullptr) throw std::bad_alloc();
  madvise(at_, bytes_, MADV_DONTFORK);  // only emulations of Linux refuse this, and they copy before the write
  madvise(at_, bytes_, MADV_DONTDUMP);
  touch_private(at_, bytes_);
}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this == &other) return *this;
  clear();
  at_ = std::exchange(other.at_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  pid_ = other.pid_;
  return *this;
}

void AlignedBuffer::clear() {
  if (at_ != nullptr && pid_ == pid()) unmap_private(at_, bytes_, bytes_);
  at_ = nullptr;
  bytes_ = 0;
}

AlignedBuffer SpareBuffers::take(u64 bytes) {
  {
    LocalGuard<std::mutex> local(mutex_);
    for (AlignedBuffer& buffer : idle_)
      if (buffer.bytes() >= bytes) {
        std::swap(buffer, idle_.back());
        AlignedBuffer found = std::move(idle_.back());
        idle_.pop_back();
        return found;
      }
  }
  return AlignedBuffer(bytes);
}

void SpareBuffers::give(AlignedBuffer buffer) {
  LocalGuard<std::mutex> local(mutex_);
  if (idle_.size() < kMostIdle) return idle_.push_back(std::move(buffer));
  for (AlignedBuffer& other : idle_)
    if (other.bytes() < buffer.bytes()) return std::swap(other, buffer);
}

}  // namespace di::os
