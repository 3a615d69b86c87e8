#include "heap/id_objects.h"

#include <algorithm>
#include <cstring>

namespace di {
namespace {

constexpr u64 kMostAside = u64{1} << 20;  // bytes of an object that a process may keep for itself
constexpr u64 kRoomPart = 16;             // memory has room while this fraction (1/n) of it is free

bool is_listed(const Descriptor& object) { return (object.flags & (kFlagHasId | kFlagWeights)) == kFlagHasId; }

}  // namespace

// Whether more than 1/kRoomPart of memory is free. Then every object that is read comes into memory.
bool IdObjects::has_room() const {
  const u64 most = heap_.budget.spendable();
  return heap_.budget.claimed() < most - most / kRoomPart;
}

PinResult IdObjects::look(const Id& id, u32* index) {
  sweeper_.settle_dropped();
  *index = heap_.ids.find(id);
  if (*index == kNone) return PinResult::kMissing;
  const Descriptor& found = heap_.descriptor(*index);
  if (word_state(found.word.load(std::memory_order_acquire)) == ObjectState::kCreating) return PinResult::kCreating;
  if (has_expired(found)) {
    ends_.expire();
    return PinResult::kMissing;
  }
  return is_away(found) ? PinResult::kAway : PinResult::kPinned;
}

PinResult IdObjects::pin(const Id& id, u32 entry, u32* out, AwayObject* away, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  const PinResult result = look(id, out);
  if (result != PinResult::kPinned && result != PinResult::kAway) return result;
  Descriptor& found = heap_.descriptor(*out);
  if (result == PinResult::kPinned) {
    ends_.pin(*out, entry);
  } else {
    const bool enters = (found.flags & kFlagRead) != 0 || found.bytes > kMostAside || has_room();
    *away = {heap_.disk.place_of(found), found.bytes, word_generation(found.word.load()), enters};
  }
  found.flags |= kFlagRead;
  return result;
}

PinResult IdObjects::pin_with(const Id& id, u32 entry, Loaded* loaded, u32* out, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  PinResult result = look(id, out);
  if (result == PinResult::kAway) {
    const Descriptor& found = heap_.descriptor(*out);
    // If it was deleted and put again meanwhile, it may have other bytes.
    const AwayObject& read = loaded->object;
    if (word_generation(found.word.load()) != read.generation || found.bytes != read.bytes) return result;
    heap_.give_block(loaded->draft, *out);
    loaded->draft = kNone;
    heap_.ledger.entry(loaded->entry).what.store(0, std::memory_order_release);
    result = PinResult::kPinned;
  }
  if (result != PinResult::kPinned) return result;
  heap_.descriptor(*out).flags |= kFlagRead;
  ends_.pin(*out, entry);
  return result;
}

void IdObjects::repeat_pins(std::span<const PinCopy> pins, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  for (const PinCopy& pin : pins) {
    Descriptor& entry = heap_.descriptor(ledger_descriptor(pin.what));
    const u64 seen = entry.word.load();
    if (word_generation(seen) != static_cast<u32>(pin.ref)) continue;  // the parent died and was swept meanwhile
    if (word_pins(seen) == 0) add_bytes(heap_.memory.heap_header().pinned_bytes, Blocks::block_bytes(entry.bytes));
    entry.word.fetch_add(1);
    DI_FAULT("fork.pin_between");
    pin.entry->ref.store(pin.ref);
    pin.entry->what.store(pin.what, std::memory_order_release);
  }
}

bool IdObjects::contains(const Id& id, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  const u32 index = heap_.ids.find(id);
  if (index == kNone) return false;
  const Descriptor& found = heap_.descriptor(index);
  return word_state(found.word.load()) == ObjectState::kSealed && !has_expired(found);
}

u64 IdObjects::bytes(const Id& id, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  const u32 index = heap_.ids.find(id);
  if (index == kNone) return 0;
  const Descriptor& found = heap_.descriptor(index);
  return word_state(found.word.load()) == ObjectState::kSealed ? Blocks::block_bytes(found.bytes) : 0;
}

bool IdObjects::remove(const Id& id, Deadline deadline, LogPlace* place) {
  HeapGuard guard(heap_, deadline);
  sweeper_.settle_dropped();
  const u32 index = heap_.ids.find(id);
  if (index == kNone) return false;
  const Descriptor& found = heap_.descriptor(index);
  if (word_state(found.word.load()) != ObjectState::kSealed) return false;
  const bool gone = has_expired(found);
  if (place != nullptr && !gone && is_durable(found)) {
    const LogPlace there = heap_.disk.place_of(found);
    if (there != *place) {
      *place = there;
      return false;
    }
  }
  ends_.retire(index);
  heap_.budget.announce_room();
  return !gone;
}

u32 IdObjects::find_taken(const Id& id) {
  const u32 index = heap_.ids.find(id);
  if (index == kNone) return kNone;
  const Descriptor& found = heap_.descriptor(index);
  if (word_state(found.word.load()) != ObjectState::kSealed || !has_expired(found)) return index;
  ends_.retire(index);
  return kNone;
}

// The lock is held for some descriptors at a time. An object that exists throughout keeps its descriptor, so it is
// listed once.
std::vector<std::string> IdObjects::keys(const u8* after, u64 count, Deadline deadline) {
  constexpr u32 kStep = 1024;
  std::vector<std::string> least;  // a heap, its largest first
  const u64 now = os::boot_ns();
  u32 total = 1;
  for (u32 from = 0; from < total && count != 0; from += kStep) {
    HeapGuard guard(heap_, deadline);
    total = heap_.descriptor_count();
    for (u32 index = from; index < std::min(total, from + kStep); ++index) {
      const Descriptor& entry = heap_.descriptor(index);
      if (word_state(entry.word.load()) != ObjectState::kSealed || !is_listed(entry)) continue;
      if (has_expired(entry, now)) continue;
      if (after != nullptr && std::memcmp(entry.name.id, after, sizeof(Id)) <= 0) continue;
      const std::string_view id(reinterpret_cast<const char*>(entry.name.id), sizeof(Id));
      if (least.size() == count) {
        if (id >= least.front()) continue;
        std::pop_heap(least.begin(), least.end());
        least.pop_back();
      }
      least.emplace_back(id);
      std::push_heap(least.begin(), least.end());
    }
  }
  std::sort_heap(least.begin(), least.end());
  return least;
}

}  // namespace di
