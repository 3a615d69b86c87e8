// Bodies that stay where they lie when a store is restored: their files of the checkpoint get a second name in the folder of the
// disk tier, and nothing of them is read. Until end() no file goes, though none of its bodies is in use yet. Killed: its files go
// when a store opens the folder again.
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
    u64 needed = 0;  // bytes of it
  };
  // Links these files, if there is room for all of them and for `beside` bytes that are loaded. Else those of which little is
  // needed are left out: their rows are loaded, and take less room. None of another filesystem. Files of the store's `own`
  // folder lie on the disk already, and what it was filled with comes back whatever fills it: all of them are linked.
  void link(std::vector<Wanted> files, u64 beside, bool own, Deadline deadline);
  // What follows may run in several threads.
  u32 entry_of(
      const SavedFile& file) const;  // in the store's folder; kNone: it was not linked, and its rows are to be loaded
  // Whether a new chunk has its body laid out as the saved one, of which this is the head.
  bool fits(u32 chunk, std::span<u8> head, const RecordHeader& record) const;
  // The chunk, which is still open, so that nobody writes its body to disk, and fits, has its body at `page` of the file with this
  // entry, and not in memory any more.
  void adopt(u32 chunk, std::span<u8> head, const RecordHeader& record, u32 entry, u32 page, Deadline deadline);
  void end(Deadline deadline);

 private:
  u32 link_one(const SavedFile& file, bool own, Deadline deadline);

  Heap& heap_;
  std::map<const SavedFile*, u32> entries_;
};

}  // namespace di
