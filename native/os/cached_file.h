// Files that are written by small appends, through the page cache. Calls return 0 or an errno, are repeated after
// EINTR, and have the fault points of DirectFile. write(), read() and sync() may run in several threads at once.
#pragma once

#include <string>

#include "os/direct.h"

namespace di::os {

class CachedFile {
 public:
  CachedFile() = default;
  ~CachedFile() { close(); }
  CachedFile(const CachedFile&) = delete;
  CachedFile& operator=(const CachedFile&) = delete;

  int open(const std::string& path, FileAccess access);  // plain files only, no symbolic links; 0600, CLOEXEC
  void close();
  bool is_open() const { return fd_ >= 0; }
  bool is_at(const std::string& path) const;  // false: it was removed or renamed since it was opened
  u64 bytes() const { return file_bytes(fd_); }

  int preallocate(u64 bytes);                           // blocks behind all of it, if the filesystem can do that
  int write(u64 offset, const void* from, u64 bytes);   // all of it, or an errno
  int read(u64 offset, void* to, u64 bytes, u64* got);  // *got < bytes only at the end of the file
  int truncate(u64 bytes);                              // to a smaller size
  int sync();                                           // fdatasync
  void expect_one_pass();                               // the file is read from front to back
  void start_writing(u64 offset, u64 bytes);            // this range goes to the disk soon; returns before that
  void drop_cache(u64 offset, u64 bytes);               // nobody needs these pages; those not yet on the disk stay

 private:
  int fd_ = -1;
};

}  // namespace di::os
