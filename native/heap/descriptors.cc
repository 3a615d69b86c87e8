#include "heap/descriptors.h"

#include <algorithm>

namespace di {

void Descriptors::bad(u32 index) {
  throw Error(Code::kCorruptData, "descriptor " + std::to_string(index) + " does not exist");
}

u32 Descriptors::count() const {
  // acquire: pairs with the releases in add_segment() and HeapRecovery::rebuild(); sweeps look without the lock.
  const u32 segments = memory_.heap_header().segment_count.load(std::memory_order_acquire);
  return static_cast<u32>(((u64{1} << std::min(segments, kDescriptorSegments)) - 1) * kFirstDescriptorSegment);
}

u32 Descriptors::pop_free() {
  HeapHeader& heap = memory_.heap_header();
  if (heap.free_head == 0) return kNone;
  const u32 index = heap.free_head - 1;
  const Descriptor& entry = (*this)[index];
  if (word_state(entry.word.load()) != ObjectState::kFree)  // the next owner makes a new list
    throw Error(Code::kCorruptData, "the list of free descriptors is damaged");
  heap.free_head = entry.name.hash_next;
  --heap.free_count;
  return index;
}

void Descriptors::push_free(u32 index) {
  HeapHeader& heap = memory_.heap_header();
  (*this)[index].name.hash_next = heap.free_head;
  heap.free_head = index + 1;
  ++heap.free_count;
}

u64 Descriptors::next_segment_bytes() const {
  const u32 segments = memory_.heap_header().segment_count.load(std::memory_order_relaxed);
  return segments == kDescriptorSegments ? 0 : (u64{kFirstDescriptorSegment} << segments) * sizeof(Descriptor);
}

u64 Descriptors::segments_bytes(u64 descriptors) const {
  const HeapHeader& heap = memory_.heap_header();
  u64 more = 0;
  for (u32 i = heap.segment_count.load(); i < kDescriptorSegments && heap.free_count + more < descriptors; ++i)
    more += u64{kFirstDescriptorSegment} << i;
  return more * sizeof(Descriptor);
}

void Descriptors::add_segment(u64 offset) {
  HeapHeader& heap = memory_.heap_header();
  const u32 segments = heap.segment_count.load(std::memory_order_relaxed), first = count();
  heap.segments[segments] = Offset{offset};
  DI_FAULT("heap.segment_linked");
  heap.segment_count.store(segments + 1, std::memory_order_release);
  for (u32 index = count(); index-- > first;) push_free(index);
}

}  // namespace di
