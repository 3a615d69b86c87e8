#include "attach/looks.h"

#include <map>

#include "attach/arena.h"
#include "attach/registry.h"

namespace di {

std::vector<StoreHolder> list_holders() {
  struct Facts {
    u64 bytes;
    bool removed, announced;
  };
  std::map<std::string, Facts> known;
  std::vector<StoreHolder> all;
  for (const os::Holder& holder : os::find_holders()) {
    auto found = known.find(holder.uuid);
    if (found == known.end()) {
      const os::LocalGuard local(registry().mutex);
      Facts facts{0, false, true};
      const auto own = [&](os::FileId file) {
        for (const Arena* arena : registry().arenas) {
          if (arena->id() != file) continue;
          facts = {os::file_blocks_bytes(arena->fd()), arena->header().removed.load() != 0, arena->announced()};
          return true;
        }
        return false;
      };
      os::FileId id;
      const int fd = os::open_to_look(holder, own, &id);
      if (fd < 0 && errno != EEXIST) {
        if (errno == ENOENT) continue;  // this process has ended; another holder may have the answer
      } else if (fd >= 0) {
        DI_FAULT("looks.opened");
        const FirstLook look = look_into(fd);
        facts = {os::file_blocks_bytes(fd), look.removed, look.announced};
        os::close_fd(fd);
      }
      found = known.emplace(holder.uuid, facts).first;
    }
    if (found->second.announced) all.push_back({holder, found->second.bytes, found->second.removed});
  }
  return all;
}

}  // namespace di
