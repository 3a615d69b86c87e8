// The folder in which a store keeps its segments. One folder belongs to one store, and to one memory file of it at a time:
//
//   open.lock   locked by a process while it opens the folder or joins those that have it open
//   alive.lock  locked, shared, by every process that has the store open; a forked child has its parent's lock. Whoever
//               opens the folder first gets it exclusively: nobody else is there
//   epoch       who owns the folder, and how often it was opened: "di-store-tier 1 <uuid> <epoch> <CRC-32C>"
//   segment-…   segments (segment_format.h)
//
// The lock files stay: a lock on a removed file excludes nobody.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "os/deadline.h"
#include "os/filesystem.h"
#include "tier/segment_format.h"

namespace di {

struct SegmentFile {
  u32 number = 0;
  u64 bytes = 0;  // blocks that it takes
};

struct Swept {
  u64 removed = 0, removed_bytes = 0;
  u64 foreign = 0;  // of other stores or another version: left alone
};

// Movable. Its end closes the lock files; alive.lock stays locked as long as a forked child has it open.
class TierFolder {
 public:
  // For a store that starts; the folder is made if need be, its parent must be there. Throws kInvalid (a path that cannot
  // serve: no parent, no folder, a network filesystem), kAccessDenied, kStoreFull, kStoreError (another store lives here;
  // culprit: its pids), kCorruptData, kLayoutMismatch (written by another version), kTimeout (open.lock).
  static TierFolder open(const std::string& path, Deadline deadline);
  // For a process that joins the store which has opened the folder.
  static TierFolder join(const std::string& path, const Uuid& uuid, u64 epoch, Deadline deadline);
  TierFolder(TierFolder&&) = default;
  TierFolder& operator=(TierFolder&&) = default;

  const std::string& path() const { return path_; }
  const Uuid& uuid() const { return uuid_; }  // chosen when the folder was first opened
  u64 epoch() const { return epoch_; }        // 1 when it was first opened
  std::string segment_path(u32 number) const { return path_ + "/" + segment_name(number); }

  // Bytes that a store there may take: what is free for this user, and what files of the folder take. `path`: of the folder,
  // or of the one in which it is to be made.
  static u64 room_in(const std::string& path);
  // Throws kStoreFull, naming both numbers, when so many bytes do not fit.
  void check_space(u64 capacity) const;
  // Throws kStoreError when the folder was removed or renamed, so that what is written here is not found under its name.
  void require_in_place() const;
  std::vector<SegmentFile> segments() const;  // by number
  std::vector<SegmentFile> logs() const;      // files of durable objects, by number
  void remove_segment(u32 number) const;      // nothing happens when it is gone
  // By the last process that has the store, when it leaves: removes the segments, and these logs. If it dies instead, the next store of the
  // folder does. Throws nothing, waits for nothing.
  void leave(const std::vector<u32>& logs) noexcept;
  // Before the store is used: removes segments of this store that `keep` does not want, and those without a sound header,
  // which a process left that was killed while it made them.
  void unlock() noexcept { alive_.close(); }  // a child, whose parent keeps the lock; and after leave()
  Swept sweep(const std::function<bool(const SegmentHeader&)>& keep) const;

 private:
  explicit TierFolder(const std::string& path) : path_(path) {}
  // Whether a store owns the folder. kStoreError, kCorruptData, kLayoutMismatch: it holds something else.
  bool find_owner();
  void lock_open(os::LockFile* file, Deadline deadline) const;
  std::string alive_path() const { return path_ + "/alive.lock"; }
  void require(int locked) const;  // throws unless alive.lock could be locked
  std::vector<SegmentFile> files(bool (*parse)(const std::string& name, u32* number)) const;
  bool read_epoch();  // false: there is none
  void raise_epoch();

  std::string path_;
  Uuid uuid_{};
  u64 epoch_ = 0;
  os::LockFile alive_;
};

}  // namespace di
