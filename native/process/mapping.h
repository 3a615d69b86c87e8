// A store's memory file and this process's two mappings of it. Each process maps the same bytes at its own addresses,
// so only offsets go into shared memory.
//
// A process opens a store's file once: closing any other descriptor of the file would drop the process's record lock,
// and others would take it for dead. The members change while a store is attached or left, and in a forked child; no
// lock guards them.
#pragma once

#include <string>

#include "base/layout.h"
#include "base/status.h"
#include "os/os.h"

namespace di {

inline u64 align_up(u64 value, u64 to) { return (value + to - 1) / to * to; }
bool has_headroom(u64 bytes, std::string* why);  // of machine and cgroup; false: *why names the limit

class Mapping {
 public:
  Mapping() = default;
  ~Mapping() { close(); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // The one place where an offset becomes an address: bounds are checked here.
  u8* at(u64 offset, u64 bytes) const {
    if (offset - 1 >= file_bytes_ || bytes > file_bytes_ - offset) bad_offset(offset, bytes);  // 0 wraps
    return base_ + offset;
  }
  const u8* readonly_at(u64 offset, u64 bytes) const {
    if (offset - 1 >= file_bytes_ || bytes > file_bytes_ - offset) bad_offset(offset, bytes);  // 0 wraps
    return readonly_ + offset;
  }

  int fd() const { return fd_; }
  os::FileId id() const { return id_; }
  u64 file_bytes() const { return file_bytes_; }
  bool has_descriptor() const { return fd_ >= 0 && os::file_id(fd_) == id_; }  // not closed or replaced by the program

  // Commits the pages of [offset, offset + bytes) a slice at a time, and checks each slice against every cgroup's
  // headroom. False: there is too little memory; slices that were committed before stay.
  bool commit(u64 offset, u64 bytes, std::string* why);

  // Copies to pages that this process has not touched yet. The copy goes through the file, because a page fault for
  // each page would take as long as the copy itself.
  void fill(u8* to, const u8* from, u64 bytes) const;

  // In a forked child. Inherited arrays keep the old read-only mapping, which is never unmapped. renew_readonly() maps
  // another one if the child has none yet; false: no address space is left.
  void leave_readonly() { readonly_ = nullptr; }
  bool renew_readonly();
  void leave_descriptor();  // the store's file is no longer this process's

  [[noreturn]] void no_addresses() const;  // throws kCapacity: mapping failed

 protected:
  void create_file(const std::string& memfd_name, u64 bytes);
  void adopt_file(int fd, os::FileId id);
  void map_file();
  void map_copy(const Mapping& of);  // a private copy: other processes do not see writes to it. It has no descriptor
  void close();                      // unmaps and closes; a second call does nothing
  u8* base() const { return base_; }
  [[noreturn]] void bad_offset(u64 offset, u64 bytes) const;

 private:
  int fd_ = -1;
  os::FileId id_;
  u64 file_bytes_ = 0;
  u8* base_ = nullptr;
  u8* readonly_ = nullptr;
};

}  // namespace di
