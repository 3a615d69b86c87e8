// See folder.h.
#include "tier/folder.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>

#include "os/crc32c.h"
#include "os/file.h"
#include "tier/read_pool.h"
#include "tier/segment_reader.h"

namespace di {

namespace {

constexpr u64 kLeavingNs = 1'000'000'000, kLookNs = 5'000'000;

constexpr const char* kEpochName = "epoch";
constexpr const char* kCheckpointName = "manifest.json";  // of checkpoints (checkpoint/tree/folder.py)
constexpr const char* kDurableFolder = "durable";         // of durable tables (checkpoint/store/durable.py)
constexpr const char* kFormat = "di-store-tier";

[[noreturn]] void refuse(const std::string& path, const std::string& why, const std::string& remedy) {
  throw Error(Code::kInvalid, path + " cannot hold a store: " + why + "; " + remedy).told();
}

std::string parent_of(const std::string& path) {
  const u64 end = path.find_last_not_of('/');
  const u64 slash = path.rfind('/', end);
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

// Checks the folder, and makes it if needed, on a filesystem that can hold a store.
void prepare(const std::string& path) {
  if (path.empty() || path[0] != '/') refuse(path, "the path is relative", "give the whole path");
  if (!os::is_folder(path)) {
    const std::string parent = parent_of(path);
    if (!os::is_folder(parent)) refuse(path, "there is no folder " + parent, "make it (mkdir -p " + parent + ")");
    const int number = os::make_folder(path);
    if (number == EEXIST) {
      if (!os::is_folder(path)) refuse(path, "it is no folder", "remove it, or choose another path");
    } else if (number != 0) {
      throw os::file_error("the folder " + path + " cannot be made", number);
    }
  }
  os::Filesystem found;
  if (const int number = os::filesystem_of(path, &found))
    throw os::file_error("the filesystem of " + path + " cannot be looked at", number);
  if (found.network)
    refuse(path, "its filesystem is " + found.kind + ", which other machines may share", "choose a local disk");
  if (const int number = os::may_write(path)) throw os::file_error("the folder " + path + " cannot be used", number);
}

std::string epoch_text(const Uuid& uuid, u64 epoch) {
  std::string text = std::string(kFormat) + " " + std::to_string(kSegmentVersion) + " ";
  char digits[12];
  for (const u8 byte : uuid) {
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  text += " " + std::to_string(epoch) + " ";
  std::snprintf(digits, sizeof digits, "%08x\n", crc32c(text.data(), text.size()));
  return text + digits;
}

bool parse_epoch(const std::string& text, Uuid* uuid, u64* epoch) {
  char hex[33] = {};
  unsigned long long number = 0;
  if (std::sscanf(text.c_str(), "di-store-tier %*u %32[0-9a-f] %llu", hex, &number) != 2 || hex[31] == 0) return false;
  for (u64 i = 0; i < uuid->size(); ++i) {
    unsigned byte = 0;
    std::sscanf(hex + 2 * i, "%2x", &byte);
    (*uuid)[i] = static_cast<u8>(byte);
  }
  *epoch = number;
  return text == epoch_text(*uuid, number);
}

std::string pids_text(const std::vector<u32>& pids) {
  std::string text;
  for (const u32 pid : pids) text += (text.empty() ? "pid " : ", ") + std::to_string(pid);
  return text;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------- open
void TierFolder::lock_open(os::LockFile* file, Deadline deadline) const {
  const std::string path = path_ + "/open.lock";
  if (const int number = file->open(path)) throw os::file_error("the file " + path + " cannot be opened", number);
  u64 slice_ns = 100'000;
  for (;;) {
    const int number = file->lock_exclusive();
    if (number == 0) return;
    if (number != EWOULDBLOCK) throw os::file_error("the file " + path + " cannot be locked", number);
    if (deadline.over()) {
      const std::string culprit = pids_text(file->holders());
      throw Error(Code::kTimeout,
                  "waited for the file " + path + ", locked by " + (culprit.empty() ? "another process" : culprit) +
                      " that opens the folder; raise timeout=",
                  culprit)
          .told();
    }
    const os::Blocking scope;
    os::sleep_ns(deadline.left_ns(slice_ns));
    slice_ns = std::min<u64>(slice_ns * 2, 10'000'000);
  }
}

namespace {

// Unlocks at the end of its scope, not only closes: if another thread forks meanwhile, the child has the file open.
class OpenLock {
 public:
  os::LockFile file;
  ~OpenLock() {
    if (file.is_open()) file.unlock();
  }
};

}  // namespace

bool TierFolder::find_owner() {
  if (read_epoch()) return true;
  u64 bytes = 0;
  if (os::blocks_of(path_ + "/" + kCheckpointName, &bytes) != ENOENT)
    throw Error(Code::kStoreError, "the folder " + path_ + " holds a checkpoint, or another file " + kCheckpointName +
                                       ", and disk= needs a folder that only this store uses; choose another one")
        .told();
  if (!segments().empty() || !logs().empty())
    throw Error(Code::kCorruptData,
                "the folder " + path_ + " holds segments but no file " + kEpochName +
                    ", which says which store they belong to; put it back, or move the segments away")
        .told();
  return false;
}

TierFolder TierFolder::open(const std::string& path, Deadline deadline) {
  prepare(path);
  TierFolder(path).find_owner();  // before the lock files are made: a refused folder stays as it was
  TierFolder folder(path);
  OpenLock opening;
  folder.lock_open(&opening.file, deadline);
  int number = folder.alive_.open(folder.alive_path());
  if (number == 0) number = folder.alive_.lock_exclusive();
  // A thread or process that has just closed the store may hold the lock for a moment.
  for (const Deadline leaving = deadline.at_most(kLeavingNs); number == EWOULDBLOCK && !leaving.over();) {
    const os::Blocking scope;
    os::sleep_ns(kLookNs);
    number = folder.alive_.lock_exclusive();
  }
  if (number == EWOULDBLOCK) {
    const std::string culprit = pids_text(folder.alive_.holders());
    throw Error(Code::kStoreError,
                "another store lives in " + path + (culprit.empty() ? "" : " (" + culprit + ")") +
                    "; attach to it by its name, end its processes, or choose another folder",
                culprit)
        .told();
  }
  folder.require(number);
  if (!folder.find_owner()) os::random_bytes(folder.uuid_.data(), folder.uuid_.size());
  DI_FAULT("folder.before_epoch");
  folder.raise_epoch();
  DI_FAULT("folder.after_epoch");
  // The exclusive lock becomes a shared one in two steps, which is safe: any process that asks for alive.lock holds
  // open.lock.
  folder.require(folder.alive_.lock_shared());
  ReadPool::of_process().close_all(path);  // file numbers begin again
  return folder;
}

TierFolder TierFolder::join(const std::string& path, const Uuid& uuid, u64 epoch, Deadline deadline) {
  TierFolder folder(path);
  OpenLock opening;
  folder.lock_open(&opening.file, deadline);
  int number = folder.alive_.open(folder.alive_path());
  if (number == 0) number = folder.alive_.lock_shared();
  folder.require(number);
  if (!folder.read_epoch() || folder.uuid_ != uuid || folder.epoch_ != epoch)
    throw Error(Code::kStoreError,
                "the folder " + path + " does not belong to this store any more; open the store again")
        .told();
  ReadPool::of_process().close_all(path);
  return folder;
}

void TierFolder::require(int locked) const {
  if (locked != 0) throw os::file_error("the file " + alive_path() + " cannot be locked", locked);
}

bool TierFolder::read_epoch() {
  const std::string path = path_ + "/" + kEpochName;
  std::string text;
  const int number = os::read_small(path, &text, 256);
  if (number == ENOENT) return false;
  if (number != 0 && number != EFBIG) throw os::file_error("the file " + path + " cannot be read", number);
  unsigned version = 0;
  if (std::sscanf(text.c_str(), "di-store-tier %u ", &version) == 1 && version != kSegmentVersion)
    throw Error(Code::kLayoutMismatch, "the folder " + path_ + " was written by another version of Di-store (format " +
                                           std::to_string(version) + ", this one has " +
                                           std::to_string(kSegmentVersion) + "); use that one, or another folder")
        .told();
  if (number != 0 || !parse_epoch(text, &uuid_, &epoch_))
    throw Error(Code::kCorruptData, "the file " + path + " is damaged; choose another folder").told();
  return true;
}

void TierFolder::raise_epoch() {
  ++epoch_;
  if (const int number = os::write_small(path_, kEpochName, epoch_text(uuid_, epoch_)))
    throw os::file_error("the file " + path_ + "/" + kEpochName + " cannot be written", number);
}

// ------------------------------------------------------------------------------------------------------- segments
u64 TierFolder::room_in(const std::string& path) {
  os::Filesystem found;
  if (const int number = os::filesystem_of(path, &found))
    throw os::file_error("the filesystem of " + path + " cannot be looked at", number);
  std::set<u64> seen;  // a segment has a second name in the folder of the durable tables that need it
  return found.free_bytes + os::bytes_of_files(path, &seen) + os::bytes_of_files(path + "/" + kDurableFolder, &seen);
}

void TierFolder::require_in_place() const {
  if (!alive_.is_open() || alive_.is_at(alive_path())) return;
  throw Error(Code::kStoreError,
              "the folder " + path_ +
                  " of this store's files was removed or renamed, or its filesystem is no longer mounted, so "
                  "nothing in it is durable; put it back, or save the data elsewhere (store.checkpoint)")
      .told();
}

void TierFolder::check_space(u64 capacity) const {
  const u64 room = room_in(path_);
  if (room < capacity)
    throw Error(Code::kStoreFull, "disk_capacity=" + std::to_string(capacity) + " does not fit: the filesystem of " +
                                      path_ + " has room for " + std::to_string(room) +
                                      " bytes; free space there, or give less")
        .told();
}

std::vector<SegmentFile> TierFolder::segments() const { return files("segment"); }
std::vector<SegmentFile> TierFolder::logs() const { return files("objects"); }

std::vector<SegmentFile> TierFolder::files(const char* kind) const {
  std::vector<std::string> names;
  if (const int number = os::list_folder(path_, &names))
    throw os::file_error("the folder " + path_ + " cannot be read", number);
  std::vector<SegmentFile> found;
  for (const std::string& name : names) {
    SegmentFile file;
    if (!parse_numbered_name(kind, name, &file.number)) continue;
    if (os::blocks_of(path_ + "/" + name, &file.bytes) == 0) found.push_back(file);  // else the file was just removed
  }
  std::sort(found.begin(), found.end(), [](const SegmentFile& a, const SegmentFile& b) { return a.number < b.number; });
  return found;
}

void TierFolder::remove_segment(u32 number) const {
  const int failed = os::remove_file(segment_path(number));
  if (failed != 0 && failed != ENOENT)
    throw os::file_error("the segment " + segment_path(number) + " cannot be removed", failed);
}

void TierFolder::leave(const std::vector<u32>& logs) noexcept {
  try {
    OpenLock opening;  // so that no process joins meanwhile
    lock_open(&opening.file, Deadline::only_try());
    if (alive_.lock_exclusive() != 0) return;
    sweep();
    for (const u32 log : logs) os::remove_file(path_ + "/" + log_name(log));
  } catch (...) {  // the files stay until a store opens the folder again
  }
}

void TierFolder::sweep() const {
  for (const SegmentFile& file : segments()) {
    SegmentReader reader;
    const SegmentState state = reader.open(segment_path(file.number), uuid_);
    const bool foreign = state == SegmentState::kForeign || state == SegmentState::kOtherVersion;
    if (!foreign || (file.number & kLinkedFile) != 0) remove_segment(file.number);
  }
}

}  // namespace di
