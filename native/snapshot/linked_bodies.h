// Bodies that stay in place when a store is restored: their checkpoint files get a second name in the folder of the
// disk tier, and their bytes are not read. Until end() no such file is removed, although none of its bodies is in use
// yet. After a kill, the files are removed when a store opens the folder again.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "rows/chunks.h"
#include "snapshot/saved_file.h"

namespace di {

class LinkedBodies {
 public:
  explicit LinkedBodies(Heap& heap) : heap_(heap) {}

  struct Wanted {
    const SavedFile* file = nullptr;
    u64 needed = 0;  // bytes of the file that are needed
  };
  // Links these files if there is room for all of them and for `beside` loaded bytes. Otherwise it leaves out files of
  // which little is needed: their rows are loaded, which takes less room. It never links files of another filesystem.
  // With `own` all files are linked: they lie in the store's own folder, so they already take disk space, and a store
  // must come back however full it was.
  void link(std::vector<Wanted> files, u64 beside, bool own, Deadline deadline);
  // The functions below may run in several threads.
  u32 entry_of(
      const SavedFile& file) const;  // entry in this store; kNone: it was not linked, and its rows must be loaded
  // Whether a new chunk lays out its body as the saved chunk with this head did.
  bool fits(u32 chunk, std::span<u8> head, const RecordHeader& record) const;
  // Gives a chunk the body at `page` of the file with this entry, and drops its body in memory. The chunk must fit, and
  // must still be open, so that no process writes its body to disk.
  void adopt(u32 chunk, std::span<u8> head, const RecordHeader& record, u32 entry, u32 page, Deadline deadline);
  void end(Deadline deadline);

 private:
  u32 link_one(const SavedFile& file, bool own, Deadline deadline);

  Heap& heap_;
  std::map<const SavedFile*, u32> entries_;
};

}  // namespace di
