#include "tier/object_log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "heap/tiers.h"
#include "os/crc32c.h"

namespace di {
namespace {

constexpr u64 kLeastFile = u64{1} << 20;
constexpr u64 kAtOnce = u64{1} << 20;       // records up to this size are written by one call
constexpr u64 kCachedBytes = u64{4} << 20;  // a third of the bytes that the page cache holds of the current file

constexpr u32 kMarked = 1, kSyncBits = 20;  // of SegmentEntry::dirty

u64 whole_pages(u64 bytes) { return pages_of(bytes) * kPageBytes; }

// Whether there are marked records that may not be on disk yet. Call without the heap's lock.
bool has_marked_logs(const TierHeader& tier) {
  const SegmentEntry* const end = tier.segment + std::min(tier.segment_high.load(), kMaxSegments);
  return std::any_of(tier.segment, end, [](const SegmentEntry& at) {
    return static_cast<SegmentUse>(at.use.load()) >= SegmentUse::kLog && at.dirty.load() != 0;
  });
}

}  // namespace

ObjectLog::~ObjectLog() {
  if (file_ == nullptr || heap_.client.is_foreign()) return;
  try {
    end_file(Deadline::brief());
  } catch (...) {  // other processes find that its owner is gone
  }
}

void ObjectLog::fail(u32 file, const char* what, int number) const {
  throw os::file_error("the file " + path_of(file) + " cannot be " + what, number);
}

// ----------------------------------------------------------------------------------------------------------- the files

// A passing log may take only the room that would be left if all rows of all tables were on disk.
bool ObjectLog::leaves_room(u64 bytes, bool copy, std::string* why) {
  if (!passing_) return true;
  const TierHeader& tier = heap_.memory.tier_header();
  const u64 capacity = tier.capacity.load();
  u64 logs = 0;
  for (const DiskSpace::Log& log : heap_.disk.logs()) logs += log.bytes;
  const u64 segments = tier.file_bytes.load() - std::min(tier.file_bytes.load(), logs);
  const u64 rows = std::max(segments, least_disk(reserved_in_tiers(heap_.memory), 0));
  if (logs + rows + bytes + (copy ? 0 : usual_file_bytes(capacity)) <= capacity) return true;
  *why = "the disk tier has " + std::to_string(logs >> 20) + " MiB of disk_capacity=" + std::to_string(capacity) +
         " in use for objects, and keeps " + std::to_string(rows >> 20) + " MiB for rows of tables";
  heap_.memory.tier_header().idle_logs.store(1);  // files may be copied, and then removed
  return false;
}

// Takes room for a file of *bytes, or of fewer but at least `least`. Files kept for reuse are removed first.
DiskSpace::Taken ObjectLog::new_file(u64 least, bool copy, u64* bytes, Deadline deadline) {
  for (;;) {
    DiskSpace::Taken taken;
    std::string why;
    u32 spare = 0;
    {
      HeapGuard guard(heap_, deadline);
      if (leaves_room(*bytes, copy, &why) && heap_.disk.take_log(*bytes, passing_, &taken, &why)) return taken;
      if (!heap_.disk.take_spare(&spare, 0)) spare = kNone;
    }
    if (spare != kNone)
      folder_.remove_segment(spare);
    else if (*bytes > least)
      *bytes = std::max(least, whole_pages(*bytes / 2));
    else
      throw Error(Code::kStoreFull, why +
                                        "; delete objects, raise disk_capacity= with store.resize(), or make tables "
                                        "smaller")
          .told();
  }
}

bool ObjectLog::make_file(const DiskSpace::Taken& taken, u64 bytes) {
  auto made = std::make_shared<os::File>();
  LogHeader header;
  header.number = taken.file;
  header.uuid = folder_.uuid();
  header.epoch = folder_.epoch();
  set_crc(&header);
  if (const int number = made->open(path_of(taken.file), os::FileAccess::kCreate, os::PageCache::kThrough)) {
    if (number == EEXIST) return false;
    fail(taken.file, "made", number);
  }
  if (const int number = made->preallocate(bytes)) fail(taken.file, "given its room", number);
  DI_FAULT("log.file_made");
  if (const int number = made->write(0, &header, sizeof header)) fail(taken.file, "written", number);
  if (const int number = made->sync()) fail(taken.file, "synced", number);
  if (const int number = os::sync_folder(folder_.path())) fail(taken.file, "synced in its folder", number);
  if (heap_.memory.tier_header().ended.load() != 0) {  // see OwnSegment::make_file()
    os::remove_file(path_of(taken.file));
    throw Error(Code::kStoreClosed, "the store has ended");
  }
  file_ = std::move(made);
  return true;
}

// A kill after new_file() leaves a log whose owner is gone, and whose file may not exist.
void ObjectLog::begin_file(u64 record_bytes, bool copy, Deadline deadline) {
  const u64 least = whole_pages(std::max(kLeastFile, sizeof(LogHeader) + record_bytes));
  u64 bytes = std::max(least, usual_file_bytes(heap_.memory.tier_header().capacity.load()));
  const DiskSpace::Taken taken = new_file(least, copy, &bytes, deadline);
  DI_FAULT("log.file_taken");
  const auto forget = [&] {
    HeapGuard guard(heap_, deadline);
    heap_.disk.seal_log(taken.number, 0);
    heap_.disk.forget_log(taken.number, taken.file);
  };
  try {
    if (!make_file(taken, bytes)) return forget();  // the caller tries again with another name
  } catch (...) {
    os::remove_file(path_of(taken.file));
    forget();
    throw;
  }
  open_[taken.number] = {};
  taken_ = taken;
  size_ = bytes;
  end_ = sizeof(LogHeader);
  leaving_ = 0;
  rolled_.store(true, std::memory_order_relaxed);
}

// A kill before this leaves a log whose owner is gone.
bool ObjectLog::seal(u32 number, Deadline deadline) {
  const auto found = open_.find(number);
  if (found == open_.end() || found->second.records != 0 || found->second.bytes == 0) return false;
  DI_FAULT("log.before_seal");
  {
    HeapGuard guard(heap_, deadline);
    heap_.disk.seal_log(number, found->second.bytes);
  }
  open_.erase(found);
  return true;
}

void ObjectLog::acknowledge(const LogPlace& place) noexcept {
  try {
    const os::LongGuard lock(mutex_);
    const auto found = open_.find(place.segment);
    if (found == open_.end() || found->second.records == 0) return;
    --found->second.records;
    seal(place.segment, Deadline::slice());
  } catch (...) {  // the owner will be gone one day
  }
}

// All records in the file were synced, or their sync has failed.
void ObjectLog::end_file(Deadline deadline) {
  const u64 bytes = whole_pages(end_);
  file_->drop_cache(0, bytes);  // readers of the file go past the cache
  open_[taken_.number].bytes = file_->truncate(bytes) == 0 ? bytes : size_;
  file_.reset();
  std::vector<u32> others;  // files that a busy lock kept open
  for (const auto& [number, open] : open_)
    if (number != taken_.number) others.push_back(number);
  for (const u32 number : others) seal(number, deadline);
  if (!seal(taken_.number, deadline) || end_ != sizeof(LogHeader)) return;
  {
    HeapGuard guard(heap_, deadline);
    if (!heap_.disk.forget_log(taken_.number, taken_.file)) return;
  }
  remove_file(taken_.file);
}

void ObjectLog::remove_file(u32 file) {
  const int number = os::remove_file(path_of(file));
  if (number != 0 && number != ENOENT) fail(file, "removed", number);
}

// ----------------------------------------------------------------------------------------------------------- appending

void ObjectLog::write(const LogRecord& record, const LoggedObject& object) {
  const u64 front = sizeof record + object.extra.size();
  const bool at_once = front + object.bytes.size() <= kAtOnce;
  buffer_.assign(reinterpret_cast<const u8*>(&record), reinterpret_cast<const u8*>(&record) + sizeof record);
  buffer_.insert(buffer_.end(), object.extra.begin(), object.extra.end());
  if (at_once) buffer_.insert(buffer_.end(), object.bytes.begin(), object.bytes.end());
  // The bytes of a large object are written first: without its record the object does not exist.
  int number = at_once ? 0 : file_->write(end_ + front, object.bytes.data(), object.bytes.size());
  DI_FAULT("log.bytes_written");
  if (number == 0) number = file_->write(end_, buffer_.data(), buffer_.size());
  if (number != 0) fail(taken_.file, "written", number);
}

// Pages of the file count as memory of this process's cgroup, and readers go past them. They are dropped
// from the cache some appends later, when they are on disk: before it drops pages that are not, the kernel lets all
// processors look for them.
void ObjectLog::leave_cache() {
  const u64 until = end_ / kCachedBytes * kCachedBytes;
  if (until <= leaving_) return;
  if (leaving_ > kCachedBytes) file_->drop_cache(0, leaving_ - kCachedBytes);
  file_->start_writing(leaving_, until - leaving_);
  leaving_ = until;
}

ObjectLog::Appended ObjectLog::append(const LoggedObject& object, Deadline deadline) {
  const os::Aside aside;
  Lock lock(mutex_);
  const u64 bytes = log_record_bytes(object.extra.size(), object.bytes.size());
  while (file_ == nullptr || bytes > size_ - end_) {
    if (file_ == nullptr) {
      begin_file(bytes, object.copy, deadline);
    } else if (synced_ < appended_) {
      sync_some(&lock);
    } else {
      end_file(deadline);
    }
  }
  LogRecord record;
  record.kind = object.kind;
  record.extra_bytes = static_cast<u16>(object.extra.size());
  record.number = object.number;
  if (record.number == 0) record.number = heap_.memory.tier_header().next_record.fetch_add(1) + 1;
  record.bytes = object.bytes.size();
  record.expires_ns = object.expires_ns;
  if (object.id != nullptr) std::memcpy(record.id, object.id, sizeof record.id);
  record.body_crc = crc32c(object.bytes.data(), object.bytes.size(), crc32c(object.extra.data(), object.extra.size()));
  record.mark = passing_ ? kMarkVoid : kMarkCounts;
  record.crc = LogSeal(folder_.uuid(), taken_.file).of(record, end_);
  write(record, object);
  DI_FAULT("log.appended");
  const LogPlace place{taken_.number, taken_.file, end_};
  ++open_[taken_.number].records;
  end_ += bytes;
  appended_ += bytes;
  leave_cache();
  return {place, appended_};
}

// Waits for one fdatasync, by this thread or another one. An error loses the records that were appended since the last
// sync: the file is not used any more, and threads that wait for these records get the error.
void ObjectLog::sync_some(Lock* lock) {
  if (syncing_) {
    synced_some_.wait(*lock);
    return;
  }
  const u64 target = appended_;
  const std::shared_ptr<os::File> file = file_;
  const u32 name = taken_.file;
  syncing_ = true;
  lock->unlock();
  int number = file->sync();
  if (number == 0 && !file->is_at(path_of(name))) number = ENOENT;
  DI_FAULT("log.synced");
  lock->lock();
  syncing_ = false;
  if (number != 0) {
    failed_.push_back({synced_, appended_, name, number});
    synced_ = appended_;
    size_ = end_;  // the next record goes to another file
  } else {
    synced_ = std::max(synced_, target);
  }
  synced_some_.notify_all();
}

void ObjectLog::sync(u64 ticket) {
  const os::Aside aside;
  Lock lock(mutex_);
  while (synced_ < ticket) sync_some(&lock);
  for (const Failed& failed : failed_)
    if (ticket > failed.from && ticket <= failed.to) fail(failed.file, "synced", failed.number);
}

// ----------------------------------------------------------------------------------------------------------- deletions

// `dirty` is set before the write, because a sync may follow a kill, and again after it, because a sync in between did
// not see the mark.
void ObjectLog::mark(const LogPlace& place, u32 mark) {
  Shared<u32>& dirty = heap_.memory.tier_header().segment[place.segment % kMaxSegments].dirty;
  dirty.store(kMarked);
  os::File file;
  int number = file.open(path_of(place.file), os::FileAccess::kReadWrite, os::PageCache::kThrough);
  if (number == ENOENT) return;
  if (number == 0) number = file.write(place.offset + offsetof(LogRecord, mark), &mark, sizeof mark);
  if (number != 0) fail(place.file, "written", number);
  dirty.store(kMarked);
  DI_FAULT("log.marked");
}

// Looks without the lock, which a stopped process may hold, and takes it only for a file that seems to be missing. If a
// log was removed meanwhile because nobody needs it, it is no longer a log under the lock.
void ObjectLog::require_files(Deadline deadline) {
  const TierHeader& tier = heap_.memory.tier_header();
  const u32 high = std::min(tier.segment_high.load(), kMaxSegments);
  for (u32 number = 0; number < high; ++number) {
    const SegmentEntry& at = tier.segment[number];
    const SegmentUse use = static_cast<SegmentUse>(at.use.load());
    if ((use != SegmentUse::kLog && use != SegmentUse::kSealedLog) || at.live.load() == 0) continue;
    if (os::names_of(path_of(at.file)) != 0) continue;
    HeapGuard guard(heap_, deadline);
    for (const DiskSpace::Log& log : heap_.disk.logs())
      if (log.number == number && !log.passing && log.live != 0 && os::names_of(path_of(log.file)) == 0)
        fail(log.file, "found, and it holds durable objects", ENOENT);
  }
}

// Puts a word of its own, neither 0 nor kMarked, into `dirty`, syncs the file, and then clears only that word. The file
// counts as not synced while another call is syncing it or once there are further marks, even if a call is killed. A
// call whose word was replaced still syncs the file.
void ObjectLog::sync_marks(Deadline deadline) {
  if (!has_marked_logs(heap_.memory.tier_header())) return;  // the usual case: close() then waits for no lock
  const u32 mine = kMarked + 1 + ((heap_.client.slot() << kSyncBits) | (syncs_.fetch_add(1) & ((1u << kSyncBits) - 1)));
  const auto dirty = [this](const DiskSpace::Log& log) -> Shared<u32>& {
    return heap_.memory.tier_header().segment[log.number].dirty;
  };
  std::vector<DiskSpace::Log> logs;
  {
    HeapGuard guard(heap_, deadline);  // under the lock no entry passes to another file
    logs = heap_.disk.logs();
    std::erase_if(logs, [&](const DiskSpace::Log& log) {
      u32 found = dirty(log).load();
      while (found != 0 && !dirty(log).compare_exchange_weak(found, mine)) {
      }
      return found == 0;
    });
  }
  for (const DiskSpace::Log& log : logs) {
    DI_FAULT("log.marks_taken");
    os::File file;
    int number = file.open(path_of(log.file), os::FileAccess::kReadWrite, os::PageCache::kThrough);
    const bool gone = number == ENOENT;
    if (number == 0) number = file.sync();
    if (number != 0 && !gone) fail(log.file, "synced", number);
    u32 expected = mine;
    dirty(log).compare_exchange_strong(expected, 0);
  }
}

}  // namespace di
