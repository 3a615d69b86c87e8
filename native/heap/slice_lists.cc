#include "heap/slice_lists.h"

namespace di {

void SliceLists::link(u64 slice) {
  Slice& entry = memory_.slice(slice);
  u32& first = head(entry.use, entry.block_class);
  entry.prev = 0;
  entry.next = first;
  if (first != 0) memory_.slice(first - 1).prev = static_cast<u32>(slice) + 1;
  first = static_cast<u32>(slice) + 1;
}

void SliceLists::unlink(u64 slice) {
  Slice& entry = memory_.slice(slice);
  if (entry.prev != 0)
    memory_.slice(entry.prev - 1).next = entry.next;
  else
    head(entry.use, entry.block_class) = entry.next;
  if (entry.next != 0) memory_.slice(entry.next - 1).prev = entry.prev;
  entry.prev = entry.next = 0;
}

u64 SliceLists::find_free(u64 count) {
  HeapHeader& heap = memory_.heap_header();
  const u64 total = memory_.places().slice_count;
  u64 run = 0;
  bool first_seen = false;
  for (u64 at = heap.free_low; at < total; ++at) {
    if (at < heap.slice_high && memory_.slice(at).state != SliceState::kFree) {
      run = 0;
      continue;
    }
    if (!first_seen) {
      heap.free_low = at;
      first_seen = true;
    }
    if (++run == count) return at + 1 - count;
    if (at >= heap.slice_high && at + count - run < total) {  // from slice_high on all are free
      return at + 1 - run;
    }
  }
  return ~u64{0};
}

}  // namespace di
