#include "objects/draft.h"

#include "objects/ids.h"
#include "process/clients.h"

namespace di {

Draft::~Draft() {
  if (entry_ == kNone || fork_generation_ != arena_.fork_generation()) return;  // the draft of a forked child's parent
  if (descriptor_ == kNone)
    arena_.ledger().give_unused(entry_);
  else
    arena_.ledger().drop(entry_);
}

u8* Draft::make_block(const DraftRequest& wanted, Deadline deadline) {
  const HeapHeader& heap = arena_.heap_header();
  const u64 budget = heap.budget.load();
  if (wanted.bytes > budget || wanted.bytes + heap.fixed_bytes > budget)
    throw Error(Code::kCapacity, "an object of " + std::to_string(wanted.bytes) +
                                     " bytes does not fit a store of memory=" + std::to_string(budget) + " bytes, " +
                                     std::to_string(heap.fixed_bytes.load()) +
                                     " of them its own; raise it with store.resize(memory=), or split the object")
        .told();
  MakeRequest request;
  request.bytes = wanted.bytes;
  request.id = wanted.id;
  request.expires_ns = wanted.expires_ns;
  std::string why;
  u32 made = kNone;
  switch (arena_.heap().maker.make(request, entry_, deadline, &made, &why)) {
    case MakeResult::kExists:
      throw Error(Code::kObjectExists, describe_taken(arena_, *reinterpret_cast<const Id*>(wanted.id), made));
    case MakeResult::kFull:
      throw Error(Code::kStoreFull, "an object of " + std::to_string(wanted.bytes) + " bytes finds no room: " + why);
    case MakeResult::kGone:  // this and the next two are results of chunks only
    case MakeResult::kNever:
    case MakeResult::kAgain:
    case MakeResult::kMade: break;
  }
  descriptor_ = made;
  DI_FAULT("put.before_copy");
  return arena_.at(arena_.heap().descriptor(made).offset, wanted.bytes);
}

void Draft::seal() {
  if (arena_.tier() != nullptr) arena_.tier()->object_drops().note(descriptor_);
  arena_.heap().maker.seal(descriptor_, std::exchange(entry_, kNone));
}

void Draft::seal_pinned(u32 pin, Deadline deadline) {
  Heap& heap = arena_.heap();
  HeapGuard guard(heap, deadline);
  seal();
  heap.object_ends.pin(descriptor_, pin);
}

void Draft::abandon() {
  if (descriptor_ != kNone && entry_ != kNone) arena_.heap().maker.abandon(descriptor_, std::exchange(entry_, kNone));
}

std::string describe_taken(const Arena& arena, const Id& id, u32 descriptor) {
  const Descriptor& found = arena.heap().descriptor(descriptor);
  if (word_state(found.word.load()) != ObjectState::kCreating) return "object " + id_text(id) + " exists";
  return "object " + id_text(id) + " is still being written by " + describe_client(arena, found.owner);
}

}  // namespace di
