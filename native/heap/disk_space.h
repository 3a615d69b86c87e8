// The files of the disk tier: which segments exist, which process fills each, and how much of it is still needed.
// Everything under the heap's lock. Truths are each entry's state, size and incarnation, and the places of copies in
// chunks. The counts of live bytes are derived, and recounted after a death.
//
// Nothing here touches a file: the owner of an open segment does that without a lock (tier/).
#pragma once

#include <string>
#include <vector>

#include "process/client.h"

namespace di {

// Where the record of an object lies.
struct LogPlace {
  u32 segment = kNone;  // number of the log's entry; kNone: nowhere
  u32 file = 0;         // number of the log's file
  u64 offset = 0;       // of the record in it, a multiple of kLogUnit
  bool operator==(const LogPlace&) const = default;
};
// Bytes that an object counts for in its log.
inline u64 logged_bytes(const Descriptor& object) {
  return (kLogUnit + object.bytes + kLogUnit - 1) / kLogUnit * kLogUnit;
}
inline bool is_logged(const Descriptor& object) { return (object.flags & kFlagLogged) != 0; }
inline bool is_durable(const Descriptor& object) { return (object.flags & kFlagDurable) != 0; }
inline bool is_away(const Descriptor& object) { return object.offset == 0; }  // its bytes are not in memory

class DiskSpace {
 public:
  explicit DiskSpace(Client& client) : client_(client), memory_(client.memory) {}

  // take_segment() gives this process a segment of `bytes` to fill: one whose file is used again, or a new one. Its
  // bytes count from now on, so that all processes together stay below disk_capacity= and leave room for `keep` bytes
  // more. After a kill the segment's owner is gone, so it counts as sealed; its file may not exist yet.
  struct Taken {
    u32 number = 0;
    u32 file = 0;
    u64 incarnation = 0;
    bool has_file = false;  // it exists and is used again
  };
  // kFull: the files would exceed the capacity (*why). kBlockedByEmptyFiles: they would fit if empty files of other
  // sizes were removed.
  enum class TakeResult { kDone, kFull, kBlockedByEmptyFiles };
  TakeResult take_segment(u64 bytes, u64 keep, Taken* taken, std::string* why);
  u32 rename(u32 number);  // a new file number for this process's segment, which gets another file
  // The segment is filled, or its file could not be made. A missing file is made when the segment is used again, unless
  // it was to be a link.
  void seal(u32 number, bool failed_link = false);
  // A record was added or removed: `bytes` on disk, of a body with `raw_bytes` in memory. A segment without needed
  // records becomes empty.
  void add(u32 number, u64 bytes, u64 raw_bytes);
  void add_fresh(u32 number, u64 bytes, u64 raw_bytes);  // a record that has just been written
  void remove(u32 number, u64 bytes, u64 raw_bytes);
  // Takes a file of a checkpoint, which gets a name in the folder, by the number *file: `bytes` long, `filled` of them
  // in records. Until seal() it counts as a segment that this process fills. kNone: there is no room. A file of the
  // store's `own` folder exists already, so it is taken even above the capacity; then nothing is written until removed
  // records have freed room.
  u32 take_link(u64 bytes, u64 filled, bool own, u32* file);
  static constexpr u32 kMostEmpty = 4;  // segments kept to be used again
  // Gives up an empty segment if there are more than `keep`: the caller now removes the file with the number *file.
  // False: there are no more. After a kill in between, the file stays until a store opens the folder again.
  bool take_spare(u32* file, u32 keep = kMostEmpty);
  // Bytes that further files may take, and those of empty segments. Read freely: the answer may be old.
  u64 room() const;
  // Segments that nobody fills, and of whose bytes at most the fraction `share` is still needed. The least needed
  // first.
  struct Sparse {
    u32 number = 0;
    u64 incarnation = 0, live = 0, filled = 0;
  };
  std::vector<Sparse> sparse(double share) const;
  bool is_same(u32 number, u64 incarnation) const;  // whether the segment has not changed since
  // Object logs (object_log.h). One process fills a log. Its file is never used again, and is removed when no object
  // needs it. Logs count as segments do.
  struct Log {
    u32 number = 0, file = 0;
    u64 bytes = 0, live = 0;
    bool sealed = false;
    bool passing = false;  // it ends with the store
    bool left = false;     // its owner is gone, and did not seal it
  };
  bool take_log(u64 bytes, bool passing, Taken* taken, std::string* why);  // as take_segment(), always a new file
  u32 adopt_log(u32 file, u64 bytes);     // one of an earlier store, sealed; kNone: there are too many
  void seal_log(u32 number, u64 bytes);   // it has `bytes`
  bool forget_log(u32 number, u32 file);  // true: it was sealed and nobody needs it, so its file may go
  std::vector<Log> logs() const;
  LogPlace place_of(const Descriptor& object) const;  // nowhere if it has no record
  void begin_recount();
  void end_recount();

 private:
  SegmentEntry& entry(u32 number) const;
  u32 high() const;                              // entries ever used
  bool is_filled(const SegmentEntry& of) const;  // and nobody fills it any more
  void add_file(u32 number, u32 file, u64 bytes);
  SegmentEntry& begin(u32 number, SegmentUse use, u32 filled);
  void mark_if_unneeded(SegmentEntry& of);

  Client& client_;
  Memory& memory_;
};

}  // namespace di
