// Which records count (docs/object_log.md): of the records with one id, the one with the highest number, unless it is
// marked as deleted or its ttl is over. Of the versions of a name, the newest counts, and the versions that its record
// keeps.
#include "objects/reopening.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

#include "objects/durable.h"
#include "objects/durable_logs.h"
#include "tier/log_reader.h"

namespace di {
namespace {

struct IdKey {
  Id id;
  bool operator==(const IdKey& other) const { return std::memcmp(id, other.id, sizeof id) == 0; }
};
struct IdHash {
  std::size_t operator()(const IdKey& key) const {
    u64 a, b;
    std::memcpy(&a, key.id, 8);
    std::memcpy(&b, key.id + 12, 8);
    return (a ^ (b * 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
  }
};

class Reopening {
 public:
  explicit Reopening(Arena& arena) : arena_(arena), heap_(arena.heap()), log_(arena.tier()->log()) {}
  Reopened run();

 private:
  struct LoggedState {
    u64 number = 0;
    bool deleted = false;
    u32 descriptor = kNone;
    LogPlace place;
  };
  struct Version {
    u64 number = 0;
    bool deleted = false;
    i64 oldest = 0;
    u64 expires_ns = 0;
    LogPlace place;
  };
  void expect(u64 objects);
  void read(const SegmentFile& file);
  void meet(const LogReader::SoundRecord& found, const LogPlace& place);
  void meet_weights(const LogReader::SoundRecord& found, const LogPlace& place);
  void make_weights(const std::string& name, const std::map<i64, Version>& versions);
  // The object of a record, sealed; kNone: its bytes are damaged. With `weights` that version of the entry.
  u32 make(const LogReader::SoundRecord& found, const LogPlace& place, const u32* weights, i64 version);
  void retire(u32 descriptor) {
    HeapGuard guard(heap_, Deadline::none());
    heap_.object_ends.retire(descriptor);
  }

  Arena& arena_;
  Heap& heap_;
  ObjectLog& log_;
  Reopened result_;
  u64 highest_ = 0;
  std::vector<LogPlace> damaged_;      // records with damaged bytes
  std::unordered_map<u32, u64> last_;  // by file: place of its last record
  std::unordered_map<IdKey, LoggedState, IdHash> seen_;
  std::map<std::string, std::map<i64, Version>> weights_;
};

u32 Reopening::make(const LogReader::SoundRecord& found, const LogPlace& place, const u32* weights, i64 version) {
  const LogRecord& record = found.record();
  Draft draft(arena_, Deadline::none());
  DraftRequest request;
  request.bytes = record.bytes;
  request.id = weights == nullptr ? record.id : nullptr;
  const u64 now = os::wall_ns();
  if (record.expires_ns != 0) request.expires_ns = os::boot_ns() + (std::max(record.expires_ns, now + 1) - now);
  try {
    if (!found.copy_to(draft.make_block(request, Deadline::none()))) {
      draft.abandon();
      damaged_.push_back(place);
      return kNone;
    }
  } catch (const Error& error) {
    if (error.code() != Code::kStoreFull) throw;
    throw Error(Code::kCapacity, "the durable objects in " + arena_.tier()->folder().path() +
                                     " take more than this store has: " + error.what() + "; raise memory=")
        .told();
  }
  ++result_.objects;
  const u32 made = draft.descriptor();
  if (weights != nullptr) {
    WeightsEntry& entry = arena_.weights(*weights);
    entry.newest.store(version - 1);
    const DurableVersion durable{version, place};
    Weights(heap_).publish(*weights, &draft, u64{1} << 40, Deadline::none(), &durable);
    return made;
  }
  HeapGuard guard(heap_, Deadline::none());
  heap_.note_record(made, place, true);
  draft.seal();
  return made;
}

void Reopening::meet(const LogReader::SoundRecord& found, const LogPlace& place) {
  const LogRecord& record = found.record();
  const u32 mark = mark_of(record);
  if (mark == kMarkVoid) return;
  const bool deleted = mark == kMarkDeleted;
  IdKey key;
  std::memcpy(key.id, record.id, sizeof key.id);
  const auto [at, first] = seen_.try_emplace(key);
  LoggedState& seen = at->second;
  if (!first) {
    if (record.number < seen.number || (record.number == seen.number && (!deleted || seen.deleted))) {
      if (!deleted) log_.mark(place, kMarkVoid);
      return;
    }
    if (seen.descriptor != kNone) {
      retire(seen.descriptor);
      --result_.objects;
    }
    if (!seen.deleted) log_.mark(seen.place, kMarkVoid);
  }
  seen = {record.number, deleted, kNone, place};
  if (deleted || (record.expires_ns != 0 && record.expires_ns <= os::wall_ns())) return;
  seen.descriptor = make(found, place, nullptr, 0);
}

void Reopening::meet_weights(const LogReader::SoundRecord& found, const LogPlace& place) {
  WeightsExtra extra;
  std::string name;
  if (mark_of(found.record()) == kMarkVoid) return;
  if (!found.extra(&extra, &name)) {
    ++result_.damaged;
    return;
  }
  Version& version = weights_[name][extra.version];
  if (found.record().number < version.number) return;
  version = {found.record().number, !counts(found.record()), extra.oldest, 0, place};
}

void Reopening::read(const SegmentFile& file) {
  LogReader reader;
  const std::string path = log_.path_of(file.number);
  switch (reader.open(path, log_.uuid(), file.number)) {
    case LogState::kSound: break;
    case LogState::kForeign: ++result_.foreign; return;
    case LogState::kOtherVersion:
      throw Error(Code::kLayoutMismatch, "the file " + path +
                                             " was written by another version of Di-store; use that one, or another "
                                             "folder")
          .told();
  }
  u32 number = kNone;
  {
    HeapGuard guard(heap_, Deadline::none());
    number = heap_.disk.adopt_log(file.number, file.bytes);
  }
  if (number == kNone) throw Error(Code::kCapacity, "the folder holds too many files of durable objects").told();
  const LogWalk walk = reader.walk([&](const LogReader::SoundRecord& found) {
    highest_ = std::max(highest_, found.record().number);
    const LogPlace place{number, file.number, found.offset()};
    last_[file.number] = found.offset();
    if (found.record().kind == LogKind::kWeights)
      meet_weights(found, place);
    else
      meet(found, place);
  });
  result_.damaged += walk.damaged;
  // Frees the space that was reserved after the last record.
  os::File shorter;
  const u64 end = pages_of(std::max(walk.end, u64{1})) * kPageBytes;
  if (end >= file.bytes || shorter.open(path, os::FileAccess::kReadWrite, os::PageCache::kThrough) != 0 ||
      shorter.truncate(end) != 0)
    return;
  HeapGuard guard(heap_, Deadline::none());
  heap_.disk.seal_log(number, end);
}

void Reopening::make_weights(const std::string& name, const std::map<i64, Version>& versions) {
  i64 newest = 0, oldest = 1;
  for (const auto& [version, found] : versions)
    if (!found.deleted && version > newest) {
      newest = version;
      oldest = found.oldest;
    }
  if (newest == 0) return;
  const u32 entry = Weights(heap_).entry(name, Deadline::none());
  i64 there = 0;
  for (const auto& [version, each] : versions) {
    if (each.deleted) continue;
    if (version < oldest) {
      log_.mark(each.place, kMarkVoid);
      continue;
    }
    LogReader reader;
    reader.open(log_.path_of(each.place.file), log_.uuid(), each.place.file);
    if (make(reader.at(each.place.offset), each.place, &entry, version) != kNone) there = version;
  }
  WeightsEntry& at = arena_.weights(entry);
  at.newest.store(newest);
  at.oldest.store(oldest);
  if (there != newest) at.lost.store(newest);  // it was damaged
}

// Makes the indexes once, of the right size for so many objects.
void Reopening::expect(u64 objects) {
  seen_.reserve(objects);
  HeapGuard guard(heap_, Deadline::none());
  if (objects > heap_.memory.heap_header().index_buckets) heap_.grow_index(objects);
}

Reopened Reopening::run() {
  const std::vector<SegmentFile> files = arena_.tier()->folder().logs();
  u64 done = 0, left = 0;
  for (const SegmentFile& file : files) left += file.bytes;
  for (const SegmentFile& file : files) {
    read(file);
    done += file.bytes;
    left -= file.bytes;
    // The other files are expected to hold as many objects as these, on average.
    if (const u64 more = seen_.size() * left / std::max<u64>(done, 1); more > seen_.size()) expect(seen_.size() + more);
  }
  for (const auto& [name, versions] : weights_) make_weights(name, versions);
  arena_.tier_header().next_record.store(highest_);
  // The last record of a file was being written when its process died.
  for (const LogPlace& place : damaged_) result_.damaged += place.offset != last_.at(place.file) ? 1 : 0;
  remove_unneeded_logs(arena_, Deadline::none());
  return result_;
}

}  // namespace

Reopened reopen_objects(Arena& arena) { return arena.tier() == nullptr ? Reopened{} : Reopening(arena).run(); }

}  // namespace di
