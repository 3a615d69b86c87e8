#include "objects/pin.h"

#include <optional>

#include "objects/draft.h"
#include "objects/ids.h"

namespace di {
namespace {

// One read of an object that is not in memory. `away`: its record, as it was found.
class Loading {
 public:
  Loading(Arena& arena, const Id& id, const AwayObject& away, Deadline deadline)
      : arena_(arena), id_(id), away_(away), deadline_(deadline) {
    if (arena.tier() == nullptr || away.place.segment == kNone)
      throw Error(Code::kCorruptData, "damaged store: object " + id_text(id) + " is neither in memory nor on disk");
  }
  ~Loading() {
    if (draft_) draft_->abandon();
  }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  // Reads the object into a block of its own and pins it. If the object should not enter memory, or memory has no room,
  // reads it into the memory that `aside` gives. kAway: it was read aside, or the record was moved or is now of another
  // object.
  PinResult load(u32 entry, const Aside& aside, Pin* pin) {
    if (u8* const to = away_.enters ? make_block() : nullptr) return read(to) ? adopt(entry, pin) : PinResult::kAway;
    u8* const to = aside(away_.bytes);
    if (read(to)) pin->aside = {to, away_.bytes};
    return PinResult::kAway;
  }

 private:
  u8* make_block() {  // null: there is no room
    DraftRequest request;
    request.bytes = away_.bytes;
    draft_.emplace(arena_, deadline_);
    try {
      return draft_->make_block(request, deadline_);
    } catch (const Error& error) {
      // kCapacity: memory has become smaller than the object.
      if (error.code() != Code::kStoreFull && error.code() != Code::kCapacity) throw;
      return nullptr;
    }
  }

  bool read(u8* to) {
    if (!arena_.tier()->object_reader().read(away_.place, id_, {to, away_.bytes})) return false;
    arena_.tier_header().loaded_objects.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  PinResult adopt(u32 entry, Pin* pin) {
    DI_FAULT("get.loaded");
    IdObjects::Loaded loaded{away_, draft_->descriptor(), draft_->entry()};
    const PinResult result = arena_.heap().objects.pin_with(id_, entry, &loaded, &pin->descriptor, Deadline::slice());
    if (loaded.draft != kNone) return result;  // another thread was faster, or the object is gone
    arena_.ledger().give(draft_->entry());
    draft_->hand_over();
    arena_.tier()->object_drops().note(pin->descriptor);
    return result;
  }

  Arena& arena_;
  const Id& id_;
  AwayObject away_;
  Deadline deadline_;
  std::optional<Draft> draft_;
};

PinResult find(Arena& arena, const Id& id, u32 entry, const Aside& aside, Pin* pin, Deadline deadline) {
  for (int moves = 0; moves < ObjectReader::kMostMoves; ++moves) {
    AwayObject away;
    PinResult result = arena.heap().objects.pin(id, entry, &pin->descriptor, &away, deadline);
    if (result == PinResult::kAway) result = Loading(arena, id, away, deadline).load(entry, aside, pin);
    if (result != PinResult::kAway || !pin->aside.empty()) return result;
  }
  throw arena.tier()->object_reader().not_found();
}

}  // namespace

Pin pin_object(Arena& arena, const Id& id, const Aside& aside, Deadline deadline) {
  Pin pin;
  const u32 entry = arena.ledger().take_one(deadline);
  PinResult result;
  try {
    result = find(arena, id, entry, aside, &pin, deadline);
  } catch (...) {
    arena.ledger().give(entry);
    throw;
  }
  if (result == PinResult::kPinned) {
    pin.entry = entry;
    return pin;
  }
  arena.ledger().give(entry);
  if (!pin.aside.empty()) return pin;
  throw Error(Code::kObjectNotFound, result == PinResult::kMissing ? "object " + id_text(id) + " is not there"
                                                                   : describe_taken(arena, id, pin.descriptor));
}

}  // namespace di
