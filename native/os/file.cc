// See file.h.
#include "os/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "os/syscalls.h"

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

bool is_aligned(u64 offset, const void* memory, u64 bytes) {
  return ((offset | reinterpret_cast<u64>(memory) | bytes) & (kDirectBytes - 1)) == 0;
}

}  // namespace

File& File::operator=(File&& other) noexcept {
  if (this == &other) return *this;
  close();
  fd_ = std::exchange(other.fd_, -1);
  mode_.store(other.mode(), std::memory_order_relaxed);
  return *this;
}

int File::open(const std::string& path, FileAccess access, PageCache cache) {
  close();
  if (const int number = refused("file.open")) return number;
  const int flags = access == FileAccess::kRead ? O_RDONLY : O_RDWR;
  const int made = access == FileAccess::kCreate ? O_CREAT | O_EXCL : 0;
  if (const int number = open_plain_file(path, flags | made, &fd_)) return number;
  mode_.store(Mode::kCached, std::memory_order_relaxed);
  if (cache == PageCache::kThrough) return 0;
  // The flag is set after open(), because some filesystems refuse O_DIRECT only after they have made the file.
  const u32 alignment = direct_alignment(fd_);
  if (alignment != 0 && alignment <= kDirectBytes && fcntl(fd_, F_SETFL, O_DIRECT) == 0)
    mode_.store(Mode::kDirect, std::memory_order_relaxed);
  else
    refuse_direct();
  return 0;
}

void File::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool File::is_at(const std::string& path) const { return os::is_at(fd_, path); }

u64 File::links() const {
  struct stat info{};
  return fstat(fd_, &info) == 0 ? static_cast<u64>(info.st_nlink) : 0;
}

void File::refuse_direct() {
  fcntl(fd_, F_SETFL, 0);
  posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);
  mode_.store(Mode::kNotDirect, std::memory_order_relaxed);
}

int File::preallocate(u64 bytes) {
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

// For a filesystem that cannot allocate blocks ahead: writes zeros instead.
int File::write_zeros(u64 from, u64 to) {
  constexpr u64 kPiece = u64{1} << 20;
  const AlignedBuffer zeros(kPiece);
  for (u64 offset = from & ~(kDirectBytes - 1); offset < to; offset += kPiece) {
    const u64 now = (std::min(kPiece, to - offset) + kDirectBytes - 1) & ~(kDirectBytes - 1);
    if (const int number = write(offset, zeros.data(), now)) return number;
  }
  return 0;
}

int File::write(u64 offset, const void* from, u64 bytes) {
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
      refuse_direct();
      direct = false;
    } else if (number != EINTR) {
      return number;
    }
  }
  // The disk may begin at once: the next sync() waits less, and fewer pages of the cache are dirty.
  if (mode() == Mode::kNotDirect) start_writing(offset, bytes);
  return 0;
}

int File::read(u64 offset, void* to, u64 bytes, u64* got) {
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
      if (*got % kDirectBytes != 0) break;  // the last, shorter read at the end of the file
      refuse_direct();
      direct = false;
    } else if (number != EINTR) {
      return number;
    }
  }
  if (mode() == Mode::kNotDirect) drop_cache(offset, bytes);
  return 0;
}

int File::truncate(u64 bytes) {
  return repeated("file.truncate", [&] { return ftruncate(fd_, static_cast<off_t>(bytes)); });
}

int File::sync() {
  const int number = repeated("file.sync", [this] { return fdatasync(fd_); });
  if (number == 0 && mode() == Mode::kNotDirect) drop_cache(0, 0);  // all of it
  return number;
}

void File::expect_one_pass() { posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL); }

void File::start_writing(u64 offset, u64 bytes) {
  sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

void File::drop_cache(u64 offset, u64 bytes) {
  posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

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
