// Direct files. See direct.h.
#include "os/direct.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "os/files.h"

namespace di::os {

namespace {

// The alignment that direct I/O on this file needs, as Linux 6.1 tells it; 0: no direct I/O; kDirectBytes: the kernel
// does not tell. Reads by offsets into struct statx, because older headers lack these fields.
u32 direct_alignment(int fd) {
#ifdef SYS_statx
  constexpr u32 kDioAlign = 0x2000;  // STATX_DIOALIGN
  constexpr u64 kMaskAt = 0, kMemoryAt = 152, kOffsetAt = 156;
  alignas(8) u8 answer[256] = {};
  if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, kDioAlign, answer) != 0) return kDirectBytes;
  u32 mask = 0, memory = 0, offset = 0;
  std::memcpy(&mask, answer + kMaskAt, 4);
  if ((mask & kDioAlign) == 0) return kDirectBytes;
  std::memcpy(&memory, answer + kMemoryAt, 4);
  std::memcpy(&offset, answer + kOffsetAt, 4);
  return memory == 0 || offset == 0 ? 0 : std::max(memory, offset);
#else
  static_cast<void>(fd);
  return kDirectBytes;
#endif
}

}  // namespace

// --------------------------------------------------------------------------------------------------------- memory
namespace {

u64 rounded(u64 bytes, u64 unit) { return (std::max<u64>(bytes, 1) + unit - 1) & ~(unit - 1); }

// At a multiple of kSliceBytes where huge pages fit in: older kernels put them nowhere else.
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
  madvise(at_, bytes_, MADV_DONTFORK);  // only emulations of Linux refuse it, and they copy on the way to the file
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

// ----------------------------------------------------------------------------------------------------------- file
DirectFile& DirectFile::operator=(DirectFile&& other) noexcept {
  if (this == &other) return *this;
  close();
  fd_ = std::exchange(other.fd_, -1);
  direct_.store(other.direct_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  return *this;
}

int open_flags(FileAccess access) {
  return (access == FileAccess::kRead ? O_RDONLY : O_RDWR) | (access == FileAccess::kCreate ? O_CREAT | O_EXCL : 0);
}

int DirectFile::open(const std::string& path, FileAccess access) {
  close();
  if (const int number = refused("file.open")) return number;
  if (const int number = open_plain_file(path, open_flags(access), &fd_)) return number;
  // Afterwards and not in open(): some filesystems refuse O_DIRECT only when they have made the file.
  const u32 alignment = direct_alignment(fd_);
  const bool fits = alignment != 0 && alignment <= kDirectBytes;
  direct_.store(fits && fcntl(fd_, F_SETFL, O_DIRECT) == 0, std::memory_order_relaxed);
  if (!is_direct()) use_cache();
  return 0;
}

void DirectFile::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

u64 DirectFile::links() const {
  struct stat info{};
  return fstat(fd_, &info) == 0 ? static_cast<u64>(info.st_nlink) : 0;
}

void DirectFile::use_cache() {
  fcntl(fd_, F_SETFL, 0);
  posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);
  direct_.store(false, std::memory_order_relaxed);
}

bool DirectFile::is_aligned(u64 offset, const void* memory, u64 bytes) const {
  return ((offset | reinterpret_cast<u64>(memory) | bytes) & (kDirectBytes - 1)) == 0;
}

int DirectFile::preallocate(u64 bytes) {
  rlimit limit{};
  // Past RLIMIT_FSIZE the kernel does not only refuse, it kills with SIGXFSZ.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) return EFBIG;
  u64 piece = bytes;  // smaller after each EINTR, as in commit()
  for (u64 offset = 0; offset < bytes;) {
    const u64 now = std::min(piece, bytes - offset);
    int number = refused("file.preallocate");
    if (number == 0 && fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(now)) != 0) number = errno;
    if (number == 0) {
      offset += now;
    } else if (number == EINTR) {
      piece = std::max(now / 2 & ~(kDirectBytes - 1), kDirectBytes);
    } else if (number == EOPNOTSUPP) {
      return write_zeros(this->bytes(), bytes);
    } else {
      return number;
    }
  }
  return 0;
}

// For a filesystem that cannot set blocks aside: writes zeros there.
int DirectFile::write_zeros(u64 from, u64 to) {
  constexpr u64 kPiece = u64{1} << 20;
  const AlignedBuffer zeros(kPiece);
  for (u64 offset = from & ~(kDirectBytes - 1); offset < to; offset += kPiece) {
    const u64 now = (std::min(kPiece, to - offset) + kDirectBytes - 1) & ~(kDirectBytes - 1);
    if (const int number = write(offset, zeros.data(), now)) return number;
  }
  return 0;
}

int DirectFile::write(u64 offset, const void* from, u64 bytes) {
  bool direct = is_direct();
  if (direct && !is_aligned(offset, from, bytes)) return EINVAL;
  for (u64 done = 0; done < bytes;) {
    int number = refused("file.write");
    ssize_t put = 0;
    if (number == 0) {
      put = pwrite(fd_, static_cast<const u8*>(from) + done, bytes - done, static_cast<off_t>(offset + done));
      number = put < 0 ? errno : put == 0 ? EIO : 0;
    }
    if (number == 0) {
      done += static_cast<u64>(put);
    } else if (number == EINVAL && direct) {  // accepted when the file was opened, and refused now
      use_cache();
      direct = false;
    } else if (number != EINTR) {
      return number;
    }
  }
  // The disk may begin at once: the next sync() waits less, and fewer pages of the cache are dirty.
  if (!direct) sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
  return 0;
}

int DirectFile::read(u64 offset, void* to, u64 bytes, u64* got) {
  *got = 0;
  bool direct = is_direct();
  if (direct && !is_aligned(offset, to, bytes)) return EINVAL;
  while (*got < bytes) {
    int number = refused("file.read");
    ssize_t some = 0;
    if (number == 0) {
      some = pread(fd_, static_cast<u8*>(to) + *got, bytes - *got, static_cast<off_t>(offset + *got));
      number = some < 0 ? errno : 0;
    }
    if (number == 0 && some == 0) break;
    if (number == 0) {
      *got += static_cast<u64>(some);
    } else if (number == EINVAL && direct) {
      if (*got % kDirectBytes != 0) break;  // that was the rest at the end of the file
      use_cache();
      direct = false;
    } else if (number != EINTR) {
      return number;
    }
  }
  if (!direct) posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
  return 0;
}

int DirectFile::sync() {
  for (;;) {
    int number = refused("file.sync");
    if (number == 0 && fdatasync(fd_) != 0) number = errno;
    if (number == EINTR) continue;
    if (number == 0 && !is_direct()) posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    return number;
  }
}

// --------------------------------------------------------------------------------------------------------- errors
Error file_error(const std::string& what, int number) {
  const std::string text = what + ": " + errno_text(number);
  switch (number) {
    case ENOSPC:
      return Error(Code::kStoreFull, text + "; free space on that filesystem, or give a smaller disk_capacity=").told();
    case EDQUOT:
      return Error(Code::kStoreFull, text + "; ask for a larger quota, or give a smaller disk_capacity=").told();
    case EACCES:
    case EPERM:
      return Error(Code::kAccessDenied, text + "; let this user read and write there, or choose another folder").told();
    case EROFS:
      return Error(Code::kAccessDenied, text + "; choose a folder on a filesystem that can be written").told();
    case EMFILE:
      return Error(Code::kStoreError, text + "; close files, or raise the limit of open files (ulimit -n)").told();
    case ENFILE:
      return Error(Code::kStoreError, text + "; the machine is out of open files: raise fs.file-max (sysctl)").told();
    case EFBIG: return Error(Code::kStoreError, text + "; raise the limit of file sizes (ulimit -f)").told();
    case EIO:
    case EUCLEAN: return Error(Code::kStoreError, text + "; the disk fails: see the kernel's log (dmesg)").told();
    case ENOENT:
    case ESTALE:
      return Error(Code::kStoreError,
                   text + "; somebody has removed or renamed it, or its filesystem is no longer mounted")
          .told();
    default: return Error(Code::kStoreError, text + "; look whether the filesystem is mounted and sound").told();
  }
}

}  // namespace di::os
