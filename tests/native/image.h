// The bytes of a store's memory file, from which any number of equal stores are made. Nobody holds such a store: its maker
// counts as dead.
#pragma once

#include <unistd.h>

#include <fcntl.h>

#include "store_fixture.h"

namespace di {

class Image {
 public:
  explicit Image(const Arena& arena) : file_bytes_(arena.file_bytes()) {
    const int fd = arena.fd();
    for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0;) {
      const off_t end = lseek(fd, at, SEEK_HOLE);
      CHECK(end > at);
      Extent& extent = extents_.emplace_back(Extent{static_cast<u64>(at), std::vector<u8>(static_cast<u64>(end - at))});
      CHECK(os::read_at(fd, extent.at, extent.bytes.data(), extent.bytes.size()));
      at = end;
    }
  }

  // A store of that name; it lives as long as the descriptor is open.
  int make(const std::string& name) const {
    const int fd = os::create_memfd(os::memfd_name(name, "1"), file_bytes_);
    for (const Extent& extent : extents_)
      CHECK(os::write_at(fd, extent.at, extent.bytes.data(), extent.bytes.size()) == extent.bytes.size());
    return fd;
  }

 private:
  struct Extent {
    u64 at;
    std::vector<u8> bytes;
  };
  u64 file_bytes_;
  std::vector<Extent> extents_;
};

}  // namespace di
