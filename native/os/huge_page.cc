#include "os/huge_page.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "os/memory.h"
#include "os/os.h"

namespace di::os {

bool commit_huge(int fd, u64 offset, u8* at) {
  const off_t data = lseek(fd, static_cast<off_t>(offset), SEEK_DATA);  // a store's file is read and written by offsets
  if (data >= 0 ? static_cast<u64>(data) < offset + kSliceBytes : errno != ENXIO) return false;
  // A collapse adds missing pages, but refuses a range without any page.
  if (fallocate(fd, 0, static_cast<off_t>(offset), kPageBytes) != 0 || collapse(at, kSliceBytes) != 0) return false;
  note_commit(fd, kSliceBytes);
  return true;
}

}  // namespace di::os
