// Files of records, read and written past the page cache or through it. Calls return 0 or an errno; file_error() makes
// an Error of one. For folders and filesystems see filesystem.h.
#pragma once

#include <atomic>
#include <string>

#include "base/status.h"
#include "os/aligned_buffer.h"
#include "os/os.h"

namespace di::os {

enum class FileAccess {
  kRead,
  kReadWrite,
  kCreate,  // read and write; EEXIST if the file exists
};
// kPast: direct I/O. If the filesystem refuses it, the file is buffered without readahead, and its pages are dropped
// from the cache after use, so that they do not displace other files. kThrough: for small appends.
enum class PageCache { kPast, kThrough };

// An open file. read(), write() and sync() may run in several threads at once, and are repeated after EINTR. CLOEXEC. A
// forked child inherits it and must not write to it. Movable, as long as no other thread uses it.
//
// Each call has a fault point, "file." and its name: open, preallocate, write, read, truncate, sync.
class File {
 public:
  File() = default;
  File(File&& other) noexcept { *this = std::move(other); }
  File& operator=(File&& other) noexcept;
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Plain files only (else EINVAL), 0600, no symbolic links (ELOOP).
  int open(const std::string& path, FileAccess access, PageCache cache);
  void close();

  bool is_open() const { return fd_ >= 0; }
  bool is_direct() const { return mode() == Mode::kDirect; }
  bool is_at(const std::string& path) const;  // false: it was removed or renamed since it was opened
  FileId id() const { return file_id(fd_); }
  u64 bytes() const { return file_bytes(fd_); }
  u64 links() const;  // names that it has; 0: it was removed

  // Makes the file at least this large, and allocates blocks for all of it: later writes below this size cannot run out
  // of space. After an error some of the blocks may be allocated. EFBIG: beyond `ulimit -f`.
  int preallocate(u64 bytes);
  // All of it, or an errno. While the file is direct, all three are multiples of kDirectBytes, else EINVAL.
  int write(u64 offset, const void* from, u64 bytes);
  // *got < bytes only at the end of the file. The same multiples.
  int read(u64 offset, void* to, u64 bytes, u64* got);
  int truncate(u64 bytes);  // to a smaller size
  int sync();               // fdatasync; after an error, data written since the last sync may be lost

  // Hints for a file that is read and written through the cache.
  void expect_one_pass();                     // it is read from front to back
  void start_writing(u64 offset, u64 bytes);  // this range goes to the disk soon; returns before that
  void drop_cache(u64 offset, u64 bytes);     // drops these pages from the cache, except unwritten ones

 private:
  enum class Mode { kDirect, kNotDirect, kCached };  // kNotDirect: direct I/O was refused
  Mode mode() const { return mode_.load(std::memory_order_relaxed); }
  int write_zeros(u64 from, u64 to);
  void refuse_direct();  // from now on kNotDirect

  int fd_ = -1;
  std::atomic<Mode> mode_{Mode::kCached};
};

// The error of a failed call for the user, with what helps: kStoreFull (the filesystem is full), kAccessDenied, else
// kStoreError. `what`: "the segment … cannot be written".
Error file_error(const std::string& what, int number);

}  // namespace di::os
