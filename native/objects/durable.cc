#include "objects/durable.h"

#include <algorithm>

#include "objects/durable_logs.h"

namespace di {
namespace {

ObjectLog& log_of(Arena& arena) {
  if (arena.tier() == nullptr) throw Error(Code::kInvalid, "the store has no disk tier");
  return arena.tier()->log();
}

// Records that were appended for objects which are not sealed yet. At the end of the scope they are marked as void,
// unless they were kept. If a mark cannot be written, the object may be there when the store is opened again.
class UnsealedRecords {
 public:
  explicit UnsealedRecords(ObjectLog& log) : log_(log) {}
  ~UnsealedRecords() {
    for (const LogPlace& place : places_) {
      if (!kept_) give_up(place);
      log_.acknowledge(place);
    }
  }
  UnsealedRecords(const UnsealedRecords&) = delete;
  UnsealedRecords& operator=(const UnsealedRecords&) = delete;

  void reserve(u64 count) { places_.reserve(count); }
  void append(const LoggedObject& object) {
    const ObjectLog::Appended appended = log_.append(object, Deadline::slice());
    places_.push_back(appended.place);
    ticket_ = appended.ticket;
  }
  void sync() { log_.sync(ticket_); }
  const LogPlace& place(u64 number) const { return places_[number]; }
  void keep() { kept_ = true; }

 private:
  void give_up(const LogPlace& place) noexcept {
    try {
      log_.mark(place, kMarkVoid);
    } catch (...) {
    }
  }

  ObjectLog& log_;
  std::vector<LogPlace> places_;
  bool kept_ = false;
  u64 ticket_ = 0;
};

u64 wall_time(u64 expires_ns) {
  if (expires_ns == 0) return 0;
  const u64 now = os::boot_ns();
  return os::wall_ns() + (std::max(expires_ns, now + 1) - now);
}

LoggedObject logged(const Arena& arena, const Draft& draft) {
  const Descriptor& object = arena.heap().descriptor(draft.descriptor());
  LoggedObject made;
  made.expires_ns = wall_time(object.expires_ns);
  made.bytes = {arena.heap().block(draft.descriptor()), object.bytes};
  return made;
}

// put() waits while write_budget= is used up, as it waits for room.
void require_budget(Arena& arena) {
  const WriteBudget budget(arena.tier_header());
  if (budget.wait_ns() != 0) throw Error(Code::kStoreFull, budget.text()).told();
}

void charge(Arena& arena, const LoggedObject& object) {
  WriteBudget(arena.tier_header()).charge(log_record_bytes(object.extra.size(), object.bytes.size()));
}

// When the disk is full: copies the needed records out of logs in which little is needed. If that frees room, tries the
// call once more.
template <class Append>
void append_or_compact(Arena& arena, const Append& append) {
  try {
    append();
  } catch (const Error& error) {
    if (error.code() != Code::kStoreFull || !tidy_logs(arena, Deadline::slice())) throw;
    append();
  }
}

}  // namespace

void tidy_if_rolled(Arena& arena) {
  if (arena.tier() == nullptr || !arena.tier()->take_rolled()) return;
  try {
    tidy_logs(arena, Deadline::slice());
  } catch (const std::exception&) {  // the call has had its effect; the next one tries again
    arena.tier_header().idle_logs.store(1);
  }
}

namespace {

void keep_all(Arena& arena, std::span<const DurableDraft> drafts) {
  UnsealedRecords pending(log_of(arena));
  require_budget(arena);
  pending.reserve(drafts.size());
  for (const DurableDraft& each : drafts) {
    LoggedObject object = logged(arena, *each.draft);
    object.id = each.id;
    append_or_compact(arena, [&] { pending.append(object); });
    charge(arena, object);
  }
  pending.sync();
  DI_FAULT("durable.synced");
  {
    HeapGuard guard(arena.heap(), Deadline::slice());
    for (u64 i = 0; i < drafts.size(); ++i) {
      arena.heap().note_record(drafts[i].draft->descriptor(), pending.place(i), true);
      DI_FAULT("durable.noted");
      drafts[i].draft->seal();
      if (drafts[i].pin != kNone) arena.heap().object_ends.pin(drafts[i].draft->descriptor(), drafts[i].pin);
    }
    pending.keep();
  }
}

}  // namespace

void keep_objects(Arena& arena, std::span<const DurableDraft> drafts) {
  keep_all(arena, drafts);
  tidy_if_rolled(arena);
}

i64 publish_durable(Arena& arena, const std::string& name, Draft* draft, u64 keep, u32 pin) {
  Weights weights(arena.heap());
  const u32 index = weights.entry(name, Deadline::slice());
  const WeightsEntry& entry = arena.weights(index);
  for (;;) {
    WeightsExtra head;
    head.version = entry.newest.load() + 1;
    head.oldest = std::max<i64>(1, head.version - static_cast<i64>(keep) + 1);
    const std::vector<u8> extra = extra_of(head, name);
    LoggedObject object = logged(arena, *draft);
    object.kind = LogKind::kWeights;
    object.extra = extra;
    UnsealedRecords pending(log_of(arena));
    require_budget(arena);
    append_or_compact(arena, [&] { pending.append(object); });
    charge(arena, object);
    pending.sync();
    DI_FAULT("durable.synced");
    const DurableVersion durable{head.version, pending.place(0)};
    if (weights.publish(index, draft, keep, Deadline::slice(), &durable, pin) == 0)
      continue;  // another version was published in between
    pending.keep();
    tidy_if_rolled(arena);
    return head.version;
  }
}

bool remove_object(Arena& arena, const Id& id, Deadline deadline) {
  if (arena.tier() == nullptr) return arena.heap().objects.remove(id, deadline);
  LogPlace marked;
  for (;;) {
    LogPlace place = marked;
    const bool gone = arena.heap().objects.remove(id, deadline, &place);
    if (place == marked) {
      if (marked.segment != kNone) remove_unneeded_logs(arena, deadline);
      return gone;
    }
    log_of(arena).mark(place, kMarkDeleted);
    marked = place;
  }
}

void sync_objects(Arena& arena, Deadline deadline) {
  if (arena.tier() == nullptr) return;
  arena.tier()->folder().require_in_place();
  log_of(arena).require_files(deadline);
  log_of(arena).sync_marks(deadline);
}

}  // namespace di
