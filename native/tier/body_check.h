// Compares all copies of bodies on disk with their checksums. It reads the first page of each file, and of each record
// the header, the head and the body. Of a record in a file that another store has written, it reads the body only.
//
// The check runs while other processes work. It lists chunks under the heap's lock, and reads their files without a
// lock or a hold. After a mismatch it looks at the chunk again under the lock: if the chunk is gone, or lies elsewhere
// by now, its old place was reused and nothing is wrong.
// Memory is bounded: the threads of the pool compare pages as they read them, and only the checksums of one step's
// chunks are kept.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "heap/heap.h"
#include "tier/lost_bodies.h"
#include "tier/read_pool.h"
#include "tier/segment_format.h"

namespace di {

class BodyCheck {
 public:
  // repair: `lost` lists damaged bodies. A body that is also in memory loses its copy on disk, and gets another one in
  // time.
  BodyCheck(Heap& heap, LostBodies& lost, bool repair) : heap_(heap), lost_(lost), repair_(repair) {}

  bool step(Deadline deadline);  // false: all bodies were checked
  std::vector<std::string> findings() const;

 private:
  struct Listed {
    u32 chunk = 0, file = 0, page = 0, pages = 0;  // page: of the body; pages: of the record
    u64 uid = 0, stored_bytes = 0, incarnation = 0;
    std::vector<u32> crcs;
    bool linked = false;  // its file belongs to a checkpoint that another store has written
  };
  struct Bad {
    std::string what;
    bool no_file = false;
  };
  bool list(Deadline deadline);  // false: these are the last
  void read_headers();
  void read_records();
  bool is_record(const Listed& body, const SegmentHeader& segment, std::span<const u8> pages) const;
  void note_bad(u64 number, const std::string& what, bool no_file);
  void report(Deadline deadline);
  bool is_still_there(const Listed& body) const DI_REQUIRES(heap_.lock);

  Heap& heap_;
  LostBodies& lost_;
  const bool repair_;
  u32 next_ = 0;                                          // descriptor
  std::vector<Listed> bodies_;                            // of the current step
  std::map<std::pair<u32, u64>, SegmentHeader> headers_;  // by file and incarnation; sound headers only
  std::mutex mutex_;                                      // held by threads of the pool
  std::map<u64, Bad> bad_;                                // by number in bodies_
  std::map<u32, std::pair<u64, std::string>> missing_;    // by file: its number of chunks, and the error
  std::vector<std::string> findings_;
  u64 unlisted_ = 0;  // findings beyond the most that are listed
};

}  // namespace di
