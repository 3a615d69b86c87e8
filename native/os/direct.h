// Files that are read and written past the page cache (O_DIRECT), and the memory for it. Calls return 0 or an errno;
// file_error() makes an Error of one. For folders and filesystems see filesystem.h.
#pragma once

#include <atomic>
#include <string>

#include "base/status.h"
#include "os/os.h"

namespace di::os {

// Offsets, sizes and addresses of direct reads and writes are multiples of this, even if a device accepts less.
constexpr u64 kDirectBytes = 4096;

// Memory of this process alone, at a multiple of kDirectBytes, zeros at first. A forked child does not have it
// (MADV_DONTFORK): a read in flight would fill a page that the child holds and not the parent's copy of it. Movable.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Rounds the size up, beyond 256 KiB to huge pages: writes of 1 MiB from them were measured a third faster than from
  // small ones. Commits the whole buffer. Throws std::bad_alloc.
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
  u32 pid_ = 0;  // of the process that has these pages: in a forked child something else may lie at at_
};

enum class FileAccess {
  kRead,
  kReadWrite,
  kCreate,  // read and write; EEXIST when there is one
};
int open_flags(FileAccess access);  // as open() takes them

// An open file. Direct if the filesystem takes that; else buffered, without readahead, and its pages are dropped from
// the cache after use, so that they do not crowd out other files. read(), write() and sync() may run in
// several threads at once. CLOEXEC. A forked child inherits it and must not write to it. Movable, as long as no other
// thread uses it.
//
// Each call has a fault point, "file." and its name: open, preallocate, write, read, sync.
class DirectFile {
 public:
  DirectFile() = default;
  DirectFile(DirectFile&& other) noexcept { *this = std::move(other); }
  DirectFile& operator=(DirectFile&& other) noexcept;
  ~DirectFile() { close(); }
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  // Plain files only (else EINVAL), 0600, no symbolic links (ELOOP).
  int open(const std::string& path, FileAccess access);
  void close();

  bool is_open() const { return fd_ >= 0; }
  bool is_direct() const { return direct_.load(std::memory_order_relaxed); }
  FileId id() const { return file_id(fd_); }
  u64 bytes() const { return file_bytes(fd_); }
  u64 links() const;  // names that it has; 0: it was removed

  // Gives the file this size at least, with blocks behind all of it: later writes below this size find no full
  // filesystem. After an error part of the blocks may be there. EFBIG: beyond `ulimit -f`.
  int preallocate(u64 bytes);
  // All of it, or an errno. While the file is direct, all three are multiples of kDirectBytes, else EINVAL.
  int write(u64 offset, const void* from, u64 bytes);
  // *got < bytes only at the end of the file. The same multiples.
  int read(u64 offset, void* to, u64 bytes, u64* got);
  int sync();  // fdatasync; an error means that what was written since the last one may be lost

 private:
  int write_zeros(u64 from, u64 to);
  bool is_aligned(u64 offset, const void* memory, u64 bytes) const;
  void use_cache();  // from now on buffered

  int fd_ = -1;
  std::atomic<bool> direct_{false};
};

// The error of a failed call for the user, with what helps: kStoreFull (the filesystem is full), kAccessDenied, else
// kStoreError. `what`: "the segment … cannot be written".
Error file_error(const std::string& what, int number);

}  // namespace di::os
