// The files of the disk tier: which segments there are, who fills them, and how much of each is still needed. Everything under
// the heap's lock. Truths are each entry's state, size and incarnation, and what chunks say of their copies; the counts of live
// bytes are derived, and recounted after a death.
//
// Nothing here touches a file: the owner of an open segment does that without a lock (tier/).
#pragma once

#include <string>
#include <vector>

#include "arena/client.h"

namespace di {

// Where the record of an object lies.
struct LogPlace {
  u32 segment = kNone;  // number of the log's entry; kNone: nowhere
  u32 file = 0;         // number of the log's file
  u64 offset = 0;       // of the record in it, a multiple of kLogUnit
  bool operator==(const LogPlace&) const = default;
};
// What an object counts in its log.
inline u64 logged_bytes(const Descriptor& object) {
  return (kLogUnit + object.bytes + kLogUnit - 1) / kLogUnit * kLogUnit;
}
inline bool is_logged(const Descriptor& object) { return (object.flags & kFlagLogged) != 0; }
inline bool is_durable(const Descriptor& object) { return (object.flags & kFlagDurable) != 0; }
inline bool is_away(const Descriptor& object) { return object.offset == 0; }  // its bytes are not in memory

class DiskSpace {
 public:
  explicit DiskSpace(Client& client) : client_(client), memory_(client.memory) {}

  // A segment for this process to fill, of `bytes`: one whose file is to be used again, or a new one. Its bytes count from now
  // on, so that several processes together stay below disk_capacity=, and leave room for `keep` bytes more. Killed: its owner
  // is gone, so it counts as sealed; its file may not be there yet.
  struct Taken {
    u32 number = 0;
    u32 file = 0;
    u64 incarnation = 0;
    bool has_file = false;  // to be used again
  };
  // kFull: the files would take more (*why). kInTheWay: they would not, if empty ones of other sizes were removed.
  enum class Take { kDone, kFull, kInTheWay };
  Take take(u64 bytes, u64 keep, Taken* taken, std::string* why);
  u32 rename(u32 number);  // a new number for the file of this process's segment, as it is to be another file
  // Filled; also when its file could not be made: it is made when the segment is used again, unless it was to be a link.
  void seal(u32 number, bool failed_link = false);
  // A record more or less, of so many bytes, and of a body that has so many in memory. An unneeded segment becomes empty.
  void add(u32 number, u64 bytes, u64 raw_bytes);
  void add_fresh(u32 number, u64 bytes, u64 raw_bytes);  // a record that has just been written
  void remove(u32 number, u64 bytes, u64 raw_bytes);
  // A file of a checkpoint that gets a name in the folder, the number *file: `bytes` long, `filled` of them in records. As one
  // that this process fills, until seal(). kNone: there is no room. One of the store's `own` folder is there already, and is
  // taken also above the capacity; nothing is written then until what goes has given room.
  u32 take_link(u64 bytes, u64 filled, bool own, u32* file);
  static constexpr u32 kMostEmpty = 4;  // segments kept to be used again
  // Of empty segments more than `keep`: one whose file is to be removed now, by its number. False: there is none. Killed after
  // it: the file stays until a store opens the folder again.
  bool take_spare(u32* file, u32 keep = kMostEmpty);
  // Bytes that further files may take, and those of empty ones. Read freely: an old answer.
  u64 room() const;
  // Segments that nobody fills, of whose records' bytes some are needed, but at most `share`; the least needed first.
  struct Sparse {
    u32 number = 0;
    u64 incarnation = 0, live = 0, filled = 0;
  };
  std::vector<Sparse> sparse(double share) const;
  bool is_same(u32 number, u64 incarnation) const;  // whether the segment still is what it was then
  // Files of objects (object_log.h). Each is filled by one process, never used again, and removed when no object needs
  // it. They count as segments do.
  struct Log {
    u32 number = 0, file = 0;
    u64 bytes = 0, live = 0;
    bool sealed = false;
    bool passing = false;  // it ends with the store
    bool left = false;     // its owner is gone, and did not seal it
  };
  bool take_log(u64 bytes, bool passing, Taken* taken, std::string* why);  // as take(), always a new file
  u32 adopt_log(u32 file, u64 bytes);     // one of an earlier store, sealed; kNone: there are too many
  void seal_log(u32 number, u64 bytes);   // it has so many
  bool forget_log(u32 number, u32 file);  // sealed, and nobody needs it: its file may go; false: it stays
  std::vector<Log> logs() const;
  LogPlace place_of(const Descriptor& object) const;  // of one that has no record: nowhere
  void begin_recount();
  void end_recount();

 private:
  SegmentEntry& entry(u32 number) const;
  u32 high() const;                              // entries ever used
  bool is_filled(const SegmentEntry& of) const;  // and by nobody any more
  void add_file(u32 number, u32 file, u64 bytes);
  SegmentEntry& begin(u32 number, SegmentUse use, u32 filled);
  void settle(SegmentEntry& of);

  Client& client_;
  Memory& memory_;
};

}  // namespace di
