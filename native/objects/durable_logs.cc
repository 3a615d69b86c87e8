#include "objects/durable_logs.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "objects/weights.h"
#include "os/filesystem.h"
#include "tier/log_reader.h"

namespace di {
namespace {

constexpr u32 kMostCopied = 4;  // logs, in one call

std::vector<DiskSpace::Log> logs_of(Arena& arena, Deadline deadline) {
  HeapGuard guard(arena.heap(), deadline);
  return arena.heap().disk.logs();
}

// The id of a record's object; false: the record does not say, or there is no such name.
bool id_of(Arena& arena, const LogReader::SoundRecord& found, Id* id) {
  std::memcpy(id, found.record().id, sizeof *id);
  if (found.record().kind != LogKind::kWeights) return true;
  WeightsExtra extra;
  std::string name;
  if (!found.extra(&extra, &name)) return false;
  const u32 index = Weights(arena.heap()).find(name);
  if (index == kNone) return false;
  Weights::version_id(arena, index, extra.version, *id);
  return true;
}

// The object whose record this is; kNone: there is none. A doomed object is not found, and needs its record no more.
u32 owner_of(Heap& heap, const Id& id, const LogPlace& place) DI_UNCHECKED {  // under the heap's lock
  const u32 found = heap.ids.find(id);
  if (found == kNone || word_state(heap.descriptor(found).word.load()) != ObjectState::kSealed) return kNone;
  return heap.disk.place_of(heap.descriptor(found)) == place ? found : kNone;
}

void void_strays_of(Arena& arena, const DiskSpace::Log& log, Deadline deadline) {
  ObjectLog& own = arena.tier()->log();
  u64 bytes = 0;
  if (os::blocks_of(own.path_of(log.file), &bytes) != ENOENT) {
    LogReader reader;
    reader.open(own.path_of(log.file), own.uuid(), log.file);
    reader.walk([&](const LogReader::SoundRecord& found) {
      if (!counts(found.record())) return;
      const LogPlace place{log.number, log.file, found.offset()};
      Id id;
      bool named = false;
      if (id_of(arena, found, &id)) {
        HeapGuard guard(arena.heap(), deadline);
        named = owner_of(arena.heap(), id, place) != kNone;
      }
      if (!named) own.mark(place, kMarkVoid);
    });
  }
  DI_FAULT("log.settled");
  HeapGuard guard(arena.heap(), deadline);
  const std::vector<DiskSpace::Log> now = arena.heap().disk.logs();
  const bool still = std::any_of(now.begin(), now.end(), [&](const DiskSpace::Log& each) {
    return each.number == log.number && each.file == log.file && each.left;
  });
  if (still) arena.heap().disk.seal_log(log.number, log.bytes);
}

struct LogCopy {
  Id id;
  LogPlace from, to;
  bool durable = false;  // false: of an object that left memory
};

ObjectLog& log_of(Arena& arena, const LogCopy& copy) {
  return copy.durable ? arena.tier()->log() : arena.tier()->passing_log();
}

// The copies made so far. At the end of the scope, also after an error, their logs may be sealed.
struct Copies {
  explicit Copies(Arena& of) : arena(of) {}
  ~Copies() {
    for (const LogCopy& copy : all) log_of(arena, copy).acknowledge(copy.to);
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  Arena& arena;
  std::vector<LogCopy> all;
};

// If the file stays after all, its records would count again once their copies are gone: marks them as void.
void void_copied(Arena& arena, const Copies& copies, u32 log, Deadline deadline) {
  bool stays = false;
  for (const DiskSpace::Log& each : logs_of(arena, deadline)) stays = stays || (each.number == log && each.live != 0);
  if (!stays) return;
  for (const LogCopy& copy : copies.all)
    if (copy.durable) arena.tier()->log().mark(copy.from, kMarkVoid);
}

// Copies the needed records of a log to this process's log. A copy counts when its object names it.
void copy_log(Arena& arena, const DiskSpace::Log& log) {
  Copies copies(arena);
  std::vector<u8> bytes;
  u64 ticket = 0;
  LogReader reader;
  const ObjectLog& any = arena.tier()->log();
  reader.open(any.path_of(log.file), any.uuid(), log.file);
  reader.walk([&](const LogReader::SoundRecord& found) {
    const u32 mark = mark_of(found.record());
    if (mark == kMarkDeleted) return;
    LogCopy copy{{}, {log.number, log.file, found.offset()}, {}, mark == kMarkCounts};
    if (!id_of(arena, found, &copy.id)) return;
    {
      HeapGuard guard(arena.heap(), Deadline::slice());
      if (owner_of(arena.heap(), copy.id, copy.from) == kNone) return;
    }
    bytes.resize(found.record().bytes);
    LoggedObject object;
    object.kind = found.record().kind;
    object.number = found.record().number;
    object.expires_ns = found.record().expires_ns;
    object.id = found.record().id;
    object.bytes = bytes;
    WeightsExtra head;
    std::string name;
    std::vector<u8> extra;
    if (found.extra(&head, &name)) extra = extra_of(head, name);
    object.extra = extra;
    if (!found.copy_to(bytes.data())) return;  // damaged: the file stays
    object.copy = true;
    const ObjectLog::Appended appended = log_of(arena, copy).append(object, Deadline::slice());
    copy.to = appended.place;
    if (copy.durable) ticket = appended.ticket;
    copies.all.push_back(copy);
  });
  arena.tier()->log().sync(ticket);
  DI_FAULT("log.copied");
  for (const LogCopy& copy : copies.all) {
    u32 object = kNone;
    {
      HeapGuard guard(arena.heap(), Deadline::slice());
      object = owner_of(arena.heap(), copy.id, copy.from);
      if (object != kNone) arena.heap().note_record(object, copy.to, copy.durable);
    }
    if (object == kNone && copy.durable) arena.tier()->log().mark(copy.to, kMarkVoid);  // deleted meanwhile
  }
  void_copied(arena, copies, log.number, Deadline::slice());
}

}  // namespace

void void_stray_records(Arena& arena, Deadline deadline) {
  for (const DiskSpace::Log& log : logs_of(arena, deadline))
    if (log.left) void_strays_of(arena, log, deadline);
}

bool remove_unneeded_logs(Arena& arena, Deadline deadline) {
  const auto unneeded = [](const DiskSpace::Log& log) { return log.live == 0 && (log.sealed || log.left); };
  std::vector<DiskSpace::Log> logs = logs_of(arena, deadline);
  if (std::none_of(logs.begin(), logs.end(), unneeded)) return false;
  bool any = false;
  void_stray_records(arena, deadline);
  arena.tier()->log().sync_marks(deadline);
  for (const DiskSpace::Log& log : logs_of(arena, deadline)) {
    if (!unneeded(log)) continue;
    {
      HeapGuard guard(arena.heap(), deadline);
      if (!arena.heap().disk.forget_log(log.number, log.file)) continue;
      arena.heap().budget.announce_room();
    }
    DI_FAULT("log.forgotten");
    arena.tier()->log().remove_file(log.file);
    any = true;
  }
  return any;
}

bool tidy_logs(Arena& arena, Deadline deadline) {
  void_stray_records(arena, deadline);
  const bool any = remove_unneeded_logs(arena, deadline);
  std::vector<DiskSpace::Log> logs = logs_of(arena, deadline);
  std::erase_if(logs, [](const DiskSpace::Log& log) { return !log.sealed || log.live > log.bytes / 2; });
  std::sort(logs.begin(), logs.end(), [](const auto& a, const auto& b) { return a.live < b.live; });
  if (logs.size() > kMostCopied) logs.resize(kMostCopied);
  for (const DiskSpace::Log& log : logs) copy_log(arena, log);
  return (!logs.empty() && remove_unneeded_logs(arena, deadline)) || any;
}

}  // namespace di
