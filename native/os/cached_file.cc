#include "os/cached_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

#include "os/files.h"

namespace di::os {

int CachedFile::open(const std::string& path, FileAccess access) {
  close();
  if (const int number = refused("file.open")) return number;
  return open_plain_file(path, open_flags(access), &fd_);
}

void CachedFile::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool CachedFile::is_at(const std::string& path) const { return os::is_at(fd_, path); }

int CachedFile::preallocate(u64 bytes) {
  rlimit limit{};
  // Past RLIMIT_FSIZE the kernel does not only refuse, it kills with SIGXFSZ.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) return EFBIG;
  for (;;) {
    int number = refused("file.preallocate");
    if (number == 0 && fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) != 0) number = errno;
    if (number == EINTR) continue;
    return number == EOPNOTSUPP ? 0 : number;
  }
}

int CachedFile::write(u64 offset, const void* from, u64 bytes) {
  for (u64 done = 0; done < bytes;) {
    int number = refused("file.write");
    ssize_t put = 0;
    if (number == 0) {
      put = pwrite(fd_, static_cast<const u8*>(from) + done, bytes - done, static_cast<off_t>(offset + done));
      number = put < 0 ? errno : put == 0 ? EIO : 0;
    }
    if (number == 0)
      done += static_cast<u64>(put);
    else if (number != EINTR)
      return number;
  }
  return 0;
}

int CachedFile::read(u64 offset, void* to, u64 bytes, u64* got) {
  *got = 0;
  while (*got < bytes) {
    int number = refused("file.read");
    ssize_t some = 0;
    if (number == 0) {
      some = pread(fd_, static_cast<u8*>(to) + *got, bytes - *got, static_cast<off_t>(offset + *got));
      number = some < 0 ? errno : 0;
    }
    if (number == 0 && some == 0) break;
    if (number == 0)
      *got += static_cast<u64>(some);
    else if (number != EINTR)
      return number;
  }
  return 0;
}

int CachedFile::truncate(u64 bytes) {
  int result = 0;
  while ((result = ftruncate(fd_, static_cast<off_t>(bytes))) != 0 && errno == EINTR) {
  }
  return result == 0 ? 0 : errno;
}

int CachedFile::sync() {
  return repeated("file.sync", [this] { return fdatasync(fd_); });
}

void CachedFile::expect_one_pass() { posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL); }

void CachedFile::start_writing(u64 offset, u64 bytes) {
  sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

void CachedFile::drop_cache(u64 offset, u64 bytes) {
  posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

}  // namespace di::os
