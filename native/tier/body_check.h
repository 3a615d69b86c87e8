// Reads all copies of bodies on disk, and compares them with their checksums: the first page of each file, and of each record its
// header, head and body; of records in files that another store has written, the bodies.
//
// Beside everybody: chunks are listed under the heap's lock, and read without a lock or a hold. What differs is looked at again
// under the lock: if its chunk is gone, or lies elsewhere by now, the file was used again, and nothing is wrong.
// Memory is bounded: pages are compared where the threads of the pool read them; of the chunks of a step the checksums are kept.
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
  // repair: damaged ones are listed in `lost`; whose rows are also in memory lose their copy, and get another one in time.
  BodyCheck(Heap& heap, LostBodies& lost, bool repair) : heap_(heap), lost_(lost), repair_(repair) {}

  bool step(Deadline deadline);  // false: that were all
  std::vector<std::string> findings() const;

 private:
  struct Listed {
    u32 chunk = 0, file = 0, page = 0, pages = 0;  // page: of the body; pages: of the record
    u64 uid = 0, stored_bytes = 0, incarnation = 0;
    std::vector<u32> crcs;
    bool linked = false;  // its file is one of a checkpoint, which another store has written
  };
  struct Bad {
    std::string what;
    bool no_file = false;
  };
  void list(Deadline deadline);
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
  std::vector<Listed> bodies_;                            // of the step
  std::map<std::pair<u32, u64>, SegmentHeader> headers_;  // by file and incarnation, of those that are sound
  std::mutex mutex_;                                      // of threads of the pool
  std::map<u64, Bad> bad_;                                // by number in bodies_
  std::map<u32, std::pair<u64, std::string>> missing_;    // by file: its chunks, and what was said
  std::vector<std::string> findings_;
  u64 unlisted_ = 0;  // beyond the most that are listed
};

}  // namespace di
