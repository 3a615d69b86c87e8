#include "objects/pin.h"

#include "objects/draft.h"
#include "objects/ids.h"

namespace di {

Pin pin_object(Arena& arena, const Id& id, Deadline deadline) {
  const u32 entry = arena.ledger().take_one(deadline);
  u32 descriptor = kNone;
  PinResult result;
  try {
    result = arena.heap().objects.pin(id, entry, &descriptor, deadline);
  } catch (...) {
    arena.ledger().give(entry);
    throw;
  }
  if (result == PinResult::kPinned) return {descriptor, entry};
  arena.ledger().give(entry);
  throw Error(Code::kObjectNotFound, result == PinResult::kMissing ? "object " + id_text(id) + " is not there"
                                                                   : describe_taken(arena, id, descriptor));
}

}  // namespace di
