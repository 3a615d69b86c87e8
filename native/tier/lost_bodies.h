// Bodies that cannot be read from disk any more: their bytes differ from what was written, the drive refuses them, or the file
// is gone. Their chunks are marked (ChunkTier::damaged), and the items of these are to be removed (replay/lost_rows.h). The mark
// is one store without a lock, by a process that holds the chunk or the heap's lock; nobody takes it back. Killed behind it:
// whoever reads the chunk next sees the mark, and removes the items. What is listed here is of this process alone.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "heap/heap.h"

namespace di {

struct LostBody {
  u32 chunk = kNone;  // its descriptor, for as long as the chunk with this uid is there
  u64 uid = 0;
  std::string what;  // with file and page; "": another process has told, or all of its file is gone
};

// A chunk that cannot be read, and that no item needs any more: only readers keep it. Under the heap's lock.
bool is_given_up(const Heap& heap, u32 chunk);

class LostBodies {
 public:
  explicit LostBodies(Heap& heap) : heap_(heap) {}

  // Marks and lists a chunk that the caller holds as a reader. `no_file`: the number of its file, which is not there any more;
  // kNone: it is.
  void note(u32 chunk, const std::string& what, u32 no_file = kNone);
  void note_file(u32 file, const std::string& what);
  // A copy on disk that is damaged. The chunk that was listed by this uid may be gone: then nothing happens. One that is also
  // in memory loses the copy only, and gets another one in time. Under the heap's lock.
  void lose_copy(u32 chunk, u64 uid, const std::string& what) DI_UNCHECKED;
  // What is listed, once; with all of files that are gone. `marked`: and all chunks that are marked, by whomever.
  std::vector<LostBody> take(bool marked, Deadline deadline);
  void put_back(const std::vector<LostBody>& lost);

 private:
  void list(u32 chunk, u64 uid, const std::string& what);

  Heap& heap_;
  std::mutex mutex_;              // of what follows; nothing is waited for with it
  std::map<u64, LostBody> lost_;  // by uid
  std::map<u32, std::string> files_;
};

}  // namespace di
