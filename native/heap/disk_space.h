// The files of the disk tier: which segments there are, who fills them, and how much of each is still needed. Everything under
// the heap's lock. Truths are each entry's state, size and incarnation, and what chunks say of their copies; the counts of live
// bytes are derived, and recounted after a death.
//
// Nothing here touches a file: the owner of an open segment does that without a lock (tier/).
#pragma once

#include "arena/client.h"

namespace di {

class DiskSpace {
 public:
  explicit DiskSpace(Client& client) : client_(client), memory_(client.memory) {}

  // A segment for this process to fill, of `bytes`: one whose file is to be used again, or a new one. Its bytes count from now
  // on, so that several processes together stay below disk_capacity=. False: the files would take more (*why), and no segment
  // of this size is empty. Killed: its owner is gone, so it counts as sealed; its file may not be there yet.
  struct Taken {
    u32 number = 0;
    u32 file = 0;
    u64 incarnation = 0;
    bool has_file = false;  // to be used again
  };
  bool take(u64 bytes, Taken* taken, std::string* why);
  void seal(u32 number);  // filled; also when its file could not be made: it is made when the segment is used again
  // A record more or less, of so many bytes, and of a body that has so many in memory. An unneeded segment becomes empty.
  void add(u32 number, u64 bytes, u64 raw_bytes);
  void remove(u32 number, u64 bytes, u64 raw_bytes);
  static constexpr u32 kMostEmpty = 4;  // segments kept to be used again
  // Of empty segments more than `keep`: one whose file is to be removed now, by its number. False: there is none. Killed after
  // it: the file stays until a store opens the folder again.
  bool take_spare(u32* file, u32 keep = kMostEmpty);
  void begin_recount();
  void end_recount();

 private:
  SegmentEntry& entry(u32 number) const;
  u32 high() const;  // entries ever used
  bool is_unneeded(const SegmentEntry& of) const;
  void settle(SegmentEntry& of);

  Client& client_;
  Memory& memory_;
};

}  // namespace di
