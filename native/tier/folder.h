// The folder in which a store keeps its segments. A folder belongs to one store, and to one memory file of it at a
// time:
//
//   open.lock   locked by a process while it opens the folder or joins the processes that have it open
//   alive.lock  locked, shared, by every process that has the store open; a forked child has its parent's lock. The
//               first process to open the folder locks it exclusively: then no other process has the store open
//   epoch       the owner of the folder, and how often it was opened: "di-store-tier 1 <uuid> <epoch> <CRC-32C>"
//   segment-…   segments (segment_format.h)
//
// The lock files stay: a lock on a removed file excludes nobody.
#pragma once

#include <string>
#include <vector>

#include "os/deadline.h"
#include "os/filesystem.h"
#include "tier/segment_format.h"

namespace di {

struct SegmentFile {
  u32 number = 0;
  u64 bytes = 0;  // blocks that it takes, in bytes
};

// Movable. The destructor closes the lock files; alive.lock stays locked as long as a forked child has it open.
class TierFolder {
 public:
  // For a store that starts. Makes the folder if it is missing; the parent folder must exist. Throws kInvalid (an
  // unusable path: no parent, not a folder, a network filesystem), kAccessDenied, kStoreFull, kStoreError (another
  // store lives here; culprit: its pids), kCorruptData, kLayoutMismatch (written by another version), kTimeout
  // (open.lock).
  static TierFolder open(const std::string& path, Deadline deadline);
  // For a process that joins a store whose folder is open.
  static TierFolder join(const std::string& path, const Uuid& uuid, u64 epoch, Deadline deadline);
  TierFolder(TierFolder&&) = default;
  TierFolder& operator=(TierFolder&&) = default;

  const std::string& path() const { return path_; }
  const Uuid& uuid() const { return uuid_; }  // chosen when the folder was first opened
  u64 epoch() const { return epoch_; }        // 1 when it was first opened
  std::string segment_path(u32 number) const { return path_ + "/" + segment_name(number); }

  // Bytes that a store there may take: the space that is free for this user plus the folder's own files. `path`: the
  // folder, or the parent in which it is to be made.
  static u64 room_in(const std::string& path);
  // Throws kStoreFull, with both numbers, when `capacity` bytes do not fit.
  void check_space(u64 capacity) const;
  // Throws kStoreError when the folder was removed or renamed, because files written here would not be found under its
  // name.
  void require_in_place() const;
  std::vector<SegmentFile> segments() const;  // by number
  std::vector<SegmentFile> logs() const;      // files of durable objects, by number
  void remove_segment(u32 number) const;      // does nothing when it is gone
  // The last process of the store calls this when it leaves: it removes the segments and these logs. If that process
  // dies instead, the next store of the folder removes them. Throws nothing, waits for nothing.
  void leave(const std::vector<u32>& logs) noexcept;
  void unlock() noexcept { alive_.close(); }  // in a child, whose parent keeps the lock; and after leave()
  // Called before the store is used. Removes the segments of this store, and segments without a sound header, which a
  // process left when it was killed while making them. Those of other stores or another version stay.
  void sweep() const;

 private:
  explicit TierFolder(const std::string& path) : path_(path) {}
  // Whether a store owns the folder. kStoreError, kCorruptData, kLayoutMismatch: the folder holds something else.
  bool find_owner();
  void lock_open(os::LockFile* file, Deadline deadline) const;
  std::string alive_path() const { return path_ + "/alive.lock"; }
  void require(int locked) const;  // throws unless alive.lock could be locked
  std::vector<SegmentFile> files(const char* kind) const;
  bool read_epoch();  // false: there is none
  void raise_epoch();

  std::string path_;
  Uuid uuid_{};
  u64 epoch_ = 0;
  os::LockFile alive_;
};

}  // namespace di
