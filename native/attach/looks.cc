// Looking at stores without taking part: what there is, and a private copy to try things on.
#include <cstddef>
#include <map>

#include "arena/arena.h"
#include "arena/registry.h"
#include "heap/heap.h"
#include "heap/ledger.h"

namespace di {

std::vector<Arena::Listed> Arena::list() {
  struct Facts {
    u64 bytes;
    bool removed;
  };
  std::map<std::string, Facts> known;
  std::vector<Listed> all;
  for (const os::Holder& holder : os::find_holders()) {
    auto found = known.find(holder.uuid);
    if (found == known.end()) {
      os::lock_aside(registry().mutex);
      const std::lock_guard<std::recursive_mutex> guard(registry().mutex, std::adopt_lock);
      Facts facts{0, false};
      const auto own = [&](os::FileId file) {
        for (const Arena* arena : registry().arenas) {
          if (arena->id_ != file) continue;
          facts = {os::file_blocks_bytes(arena->fd_), arena->header_->removed.load() != 0};
          return true;
        }
        return false;
      };
      os::FileId id;
      const int fd = os::open_holder(holder, own, &id);
      if (fd < 0 && errno != EEXIST) {
        if (errno == ENOENT) continue;  // it has gone meanwhile; another holder may tell
      } else if (fd >= 0) {
        u32 removed = 0;
        os::read_at(fd, offsetof(ArenaHeader, removed), &removed, sizeof removed);
        facts = {os::file_blocks_bytes(fd), removed != 0};
        os::close_fd(fd);
      }
      found = known.emplace(holder.uuid, facts).first;
    }
    all.push_back({holder.pid, holder.name, holder.uuid, found->second.bytes, found->second.removed});
  }
  return all;
}

std::shared_ptr<Arena> Arena::private_copy() const {
  std::shared_ptr<Arena> copy(new Arena);
  copy->file_bytes_ = file_bytes_;
  copy->base_ = os::map_copy(fd_, file_bytes_);
  if (copy->base_ == nullptr)
    throw Error(Code::kCapacity, "no address space for a copy of the store; raise `ulimit -v`").told();
  copy->slot_ = slot_;  // its descriptor stays -1: nobody is declared dead, no page committed or punched
  copy->slot_generation_ = slot_generation_;
  copy->place_parts();
  return copy;
}

}  // namespace di
