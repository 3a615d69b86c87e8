// An object log that this process writes: records of objects, one after the other, in its own files. A process has one
// log for durable objects, and a passing log for objects that left memory. Records of the passing log are marked as
// void for the next store.
//
// Threads append under a mutex of this process and share one fdatasync: the first thread that finds none running syncs
// all that was appended before. A full file is sealed and another one begun. A forked child has a log of its own.
//
// A kill leaves whole records, then perhaps part of one, which no reader takes for a record. They may include a record
// that was never acknowledged: void_stray_records() (objects/durable_logs.h) marks it as void.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "heap/heap.h"
#include "os/file.h"
#include "tier/folder.h"
#include "tier/log_format.h"

namespace di {

struct LoggedObject {
  LogKind kind = LogKind::kObject;
  u64 number = 0;  // 0: the next one
  u64 expires_ns = 0;
  const u8* id = nullptr;  // null: zeros
  bool copy = false;       // a copy of a record in a file that will be removed
  std::span<const u8> extra, bytes;
};

class ObjectLog {
 public:
  ObjectLog(Heap& heap, const TierFolder& folder, bool passing) : heap_(heap), folder_(folder), passing_(passing) {}
  ~ObjectLog();  // seals the file if the heap's lock is soon available; else it counts as sealed once this process ends
  ObjectLog(const ObjectLog&) = delete;
  ObjectLog& operator=(const ObjectLog&) = delete;

  // Appends a record, which is on disk only after sync(ticket). kStoreFull: disk_capacity= or the filesystem has no
  // room. A passing log also leaves free what tables were promised and, unless it writes a copy, what the next copies
  // need.
  struct Appended {
    LogPlace place;
    u64 ticket = 0;
  };
  Appended append(const LoggedObject& object, Deadline deadline);
  // Call this once an object names the record at `place`, or once none ever will. Until then its file is not sealed, so
  // no process takes the file for one that is not needed. Call without the heap's lock.
  void acknowledge(const LogPlace& place) noexcept;
  void sync(u64 ticket);  // after an error, records up to the ticket may or may not be on disk
  // Writes a mark (kMark…) into a record's file; on disk after sync_marks(). A file that is gone needs no mark.
  void mark(const LogPlace& place, u32 mark);
  // Throws kStoreError when a file that durable objects need is no longer under its name.
  void require_files(Deadline deadline);
  // Puts on disk all marks that any process made before.
  void sync_marks(Deadline deadline);
  void remove_file(u32 file);  // if it exists
  // Whether files were begun since the last call.
  bool has_rolled() { return may_have_rolled() && rolled_.exchange(false, std::memory_order_relaxed); }
  bool may_have_rolled() const { return rolled_.load(std::memory_order_relaxed); }

  std::string path_of(u32 file) const { return folder_.path() + "/" + log_name(file); }
  const Uuid& uuid() const { return folder_.uuid(); }

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Failed {
    u64 from, to;  // tickets
    u32 file;
    int number;
  };
  struct UnsealedFile {
    u64 records = 0;  // records that are not settled
    u64 bytes = 0;    // size of a full file; 0: the file is still being filled
  };
  void begin_file(u64 bytes, bool copy, Deadline deadline);
  bool seal(u32 number, Deadline deadline);
  void end_file(Deadline deadline);
  bool make_file(const DiskSpace::Taken& taken, u64 bytes);  // false: another folder's file has that name
  DiskSpace::Taken new_file(u64 least, bool copy, u64* bytes, Deadline deadline);
  bool leaves_room(u64 bytes, bool copy, std::string* why) DI_UNCHECKED;  // under the heap's lock
  void write(const LogRecord& record, const LoggedObject& object);
  void leave_cache();
  void sync_some(Lock* lock);
  [[noreturn]] void fail(u32 file, const char* what, int number) const;

  Heap& heap_;
  const TierFolder& folder_;
  const bool passing_;
  std::mutex mutex_;
  std::condition_variable synced_some_;
  std::shared_ptr<os::File> file_;  // null: no file is open; the syncing thread shares it
  DiskSpace::Taken taken_;
  u64 size_ = 0, end_ = 0;         // of the file
  u64 leaving_ = 0;                // the bytes before it were told to leave the page cache
  u64 appended_ = 0, synced_ = 0;  // tickets: counts of units appended
  bool syncing_ = false;
  std::vector<Failed> failed_;
  std::map<u32, UnsealedFile> open_;  // by number of the log
  std::vector<u8> buffer_;
  std::atomic<bool> rolled_{false};
  std::atomic<u32> syncs_{0};  // counts calls of sync_marks()
};

}  // namespace di
