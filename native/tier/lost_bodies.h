// Bodies that can no longer be read from disk: their bytes differ from what was written, the drive refuses them, or the
// file is gone. Such a chunk is marked (ChunkTier::damaged), and its items must be removed (replay/lost_rows.h). A
// process that holds the chunk or the heap's lock sets the mark by one store, without another lock. Nobody clears it.
// If the process is killed after the store, the next reader of the chunk sees the mark and removes the items. The list
// here belongs to this process alone.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "heap/heap.h"

namespace di {

struct LostBody {
  u32 chunk = kNone;  // its descriptor, as long as it holds the chunk with this uid
  u64 uid = 0;
  std::string what;  // with file and page; "": another process marked it, or its whole file is gone
};

// Whether a chunk cannot be read and no item needs it any more: only readers keep it. Under the heap's lock.
bool is_given_up(const Heap& heap, u32 chunk);

class LostBodies {
 public:
  explicit LostBodies(Heap& heap) : heap_(heap) {}

  // Marks and lists a chunk that the caller holds as a reader. `no_file`: the number of its file if that file is gone;
  // else kNone.
  void note(u32 chunk, const std::string& what, u32 no_file = kNone);
  void note_file(u32 file, const std::string& what);
  // Handles a damaged copy on disk. Does nothing if the chunk with this uid is gone. A chunk that is also in memory
  // loses only the copy, and gets another one in time. Under the heap's lock.
  void lose_copy(u32 chunk, u64 uid, const std::string& what) DI_UNCHECKED;
  // Takes all bodies off the list and returns them, with all bodies of files that are gone. `marked`: also every marked
  // chunk, whichever process marked it.
  std::vector<LostBody> collect(bool marked, Deadline deadline);
  void put_back(const std::vector<LostBody>& lost);

 private:
  void list(u32 chunk, u64 uid, const std::string& what);

  Heap& heap_;
  std::mutex mutex_;              // guards the members below; nobody waits for anything while holding it
  std::map<u64, LostBody> lost_;  // by uid
  std::map<u32, std::string> files_;
};

}  // namespace di
