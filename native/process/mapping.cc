#include "process/mapping.h"

#include <algorithm>

namespace di {

bool has_headroom(u64 bytes, std::string* why) {
  const u64 headroom = os::memory_headroom();
  if (headroom >= bytes) return true;
  if (why != nullptr)
    *why = "machine or cgroup has only " + std::to_string(headroom >> 20) +
           " MiB of memory left above its safety margin; lower memory= or give the job more memory";
  return false;
}

void Mapping::bad_offset(u64 offset, u64 bytes) const {
  const std::string name = reinterpret_cast<const ArenaHeader*>(base_)->name;
  throw Error(Code::kCorruptData, "offset " + std::to_string(offset) + " + " + std::to_string(bytes) +
                                      " lies outside the store; run `di-store check " + name + "`");
}

void Mapping::no_addresses() const {
  throw Error(Code::kCapacity, "cannot map " + std::to_string(2 * file_bytes_ >> 20) +
                                   " MiB of address space; raise `ulimit -v` or lower memory=")
      .told();
}

void Mapping::create_file(const std::string& memfd_name, u64 bytes) {
  file_bytes_ = bytes;
  fd_ = os::create_memfd(memfd_name, bytes);
  id_ = os::file_id(fd_);
}

void Mapping::adopt_file(int fd, os::FileId id) {
  fd_ = fd;
  id_ = id;
  file_bytes_ = os::file_bytes(fd);
}

void Mapping::map_file() {
  base_ = os::map(fd_, file_bytes_, true);
  if (base_ == nullptr || !renew_readonly()) no_addresses();
}

void Mapping::fill(u8* to, const u8* from, u64 bytes) const {
  const u64 done = has_descriptor() ? os::write_at(fd_, static_cast<u64>(to - base_), from, bytes) : 0;
  os::copy(to + done, from + done, bytes - done);
}

bool Mapping::renew_readonly() {
  if (readonly_ == nullptr) readonly_ = os::map(fd_, file_bytes_, false);
  return readonly_ != nullptr;
}

void Mapping::map_copy(const Mapping& of) {
  file_bytes_ = of.file_bytes_;
  base_ = os::map_copy(of.fd_, file_bytes_);
  if (base_ == nullptr)
    throw Error(Code::kCapacity, "no address space for a copy of the store; raise `ulimit -v`").told();
}

void Mapping::close() {
  if (base_ != nullptr) os::unmap(base_, file_bytes_);
  if (readonly_ != nullptr) os::unmap(const_cast<u8*>(readonly_), file_bytes_);
  if (has_descriptor()) os::close_fd(fd_);
  base_ = readonly_ = nullptr;
  fd_ = -1;
}

void Mapping::leave_descriptor() {
  if (has_descriptor()) os::close_fd(fd_);
  fd_ = -1;
}

bool Mapping::commit(u64 offset, u64 bytes, std::string* why) {
  u64 at = offset / kPageBytes * kPageBytes;
  const u64 end = align_up(offset + bytes, kPageBytes);
  while (at < end) {
    const u64 step = std::min(end - at, kSliceBytes);
    if (!has_headroom(step, why)) return false;
    DI_FAULT("arena.before_commit");
    if (os::commit(fd_, at, step) != 0) {
      if (why != nullptr) *why = "the kernel refused to commit memory; lower memory=";
      return false;
    }
    at += step;
  }
  return true;
}

}  // namespace di
