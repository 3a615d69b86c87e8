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

  // A segment for this process to fill, of `bytes`: one whose file is to be used again, or a new one. False: the files would
  // take more than disk_capacity= (*why), and no segment is empty. Killed: its owner is gone, so it counts as sealed.
  struct Taken {
    u32 number = 0;
    u32 file = 0;
    u64 incarnation = 0;
    bool has_file = false;  // to be used again
  };
  bool take(u64 bytes, Taken* taken, std::string* why);
  void made(u32 number, u64 bytes);  // its file has this size now
  void seal(u32 number);             // filled; also when its file could not be made (no bytes)
  // A record more or less, of so many bytes. An unneeded segment becomes empty.
  void add(u32 number, u64 bytes);
  void remove(u32 number, u64 bytes);
  // Of empty segments more than a few: one whose file is to be removed now, by its number. False: there is none. Killed after
  // it: the file stays until a store opens the folder again.
  bool take_spare(u32* file);
  void begin_recount();
  void end_recount();

 private:
  SegmentEntry& entry(u32 number) const;
  bool is_unneeded(const SegmentEntry& of) const;
  void settle(SegmentEntry& of);

  Client& client_;
  Memory& memory_;
};

}  // namespace di
