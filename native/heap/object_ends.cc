#include "heap/object_ends.h"

namespace di {

void ObjectEnds::retire(u32 index) {
  Descriptor& entry = heap_.descriptor(index);
  if (word_pins(entry.word.load()) == 0) {
    heap_.free_descriptor(index, false);
    return;
  }
  heap_.ids.erase(index);
  entry.word.fetch_add(kSealStep);  // doomed
  if (!is_away(entry)) add_bytes(heap_.memory.heap_header().pending_bytes, Blocks::block_bytes(entry.bytes));
}

void ObjectEnds::pin(u32 index, u32 entry, bool brief) {
  Descriptor& object = heap_.descriptor(index);
  const u64 word = object.word.load(std::memory_order_acquire);
  const u64 bytes = is_away(object) ? 0 : Blocks::block_bytes(object.bytes);
  if (word_pins(word) == 0) add_bytes(heap_.memory.heap_header().pinned_bytes, bytes);
  object.word.fetch_add(1);
  DI_FAULT("heap.pinned");
  LedgerEntry& mine = heap_.ledger.entry(entry);
  mine.ref.store(word_generation(word), std::memory_order_relaxed);
  mine.what.store(ledger_what(LedgerKind::kPin, brief ? kBriefPin : 0, index), std::memory_order_release);
}

void ObjectEnds::unpin(u32 index) {
  Descriptor& object = heap_.descriptor(index);
  const u64 word = object.word.fetch_sub(1) - 1;
  if (word_pins(word) != 0) return;
  if (!is_away(object)) subtract_bytes(heap_.memory.heap_header().pinned_bytes, Blocks::block_bytes(object.bytes));
  if (word_state(word) == ObjectState::kDoomed) heap_.free_descriptor(index, false);
}

void ObjectEnds::expire() {
  if (heap_.memory.heap_header().expiring == 0) return;
  const u64 now = os::boot_ns();
  for (u32 index = 0; index < heap_.descriptor_count(); ++index) {
    const Descriptor& entry = heap_.descriptor(index);
    if (word_state(entry.word.load()) == ObjectState::kSealed && has_expired(entry, now)) retire(index);
  }
}

}  // namespace di
