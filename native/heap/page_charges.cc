#include "heap/page_charges.h"

#include <algorithm>
#include <bit>

namespace di {
namespace {

constexpr u64 kSliceTableStep = 32;  // slices whose tables are committed together

// Without the processor's own instruction, counting bits is a function call, and most words of a slice are 0.
u64 pages_in(u64 word) { return word == 0 ? 0 : static_cast<u64>(std::popcount(word)); }

}  // namespace

Shared<u64>& PageCharges::bytes_of(BlockUse use) const {
  HeapHeader& heap = memory_.heap_header();
  return use == BlockUse::kObject ? heap.object_bytes : use == BlockUse::kChunk ? heap.chunk_bytes : heap.meta_bytes;
}

Shared<u64>& PageCharges::bytes_of(const Slice& slice) const {
  return slice.state == SliceState::kFree ? memory_.heap_header().free_bytes : bytes_of(slice.use);
}

u64 PageCharges::present(u64 slice) const {
  u64 pages = 0;
  for (u64 word : memory_.slice(slice).present) pages += pages_in(word);
  return pages;
}

u64 PageCharges::missing(u64 slice, u64 first, u64 count) const {
  const auto& present = memory_.slice(slice).present;
  u64 missing = 0;
  for (u64 page = first; page < first + count;) {
    const u64 bit = page % 64, take = std::min<u64>(64 - bit, first + count - page);
    const u64 mask = (take == 64 ? ~u64{0} : ((u64{1} << take) - 1)) << bit;
    missing += pages_in(mask & ~present[page / 64]);
    page += take;
  }
  return missing;
}

void PageCharges::set(u64 slice, u64 first, u64 count, bool charged) {
  auto& present = memory_.slice(slice).present;
  for (u64 page = first; page < first + count;) {
    const u64 bit = page % 64, take = std::min<u64>(64 - bit, first + count - page);
    const u64 mask = (take == 64 ? ~u64{0} : ((u64{1} << take) - 1)) << bit;
    present[page / 64] = charged ? present[page / 64] | mask : present[page / 64] & ~mask;
    page += take;
  }
}

u64 PageCharges::table_bytes(u64 slices, u64 slice_count) {
  const auto step = [](u64 count) {
    return (pages_for(count * sizeof(Slice)) + pages_for(count * kBlockWords * sizeof(u64))) * kPageBytes;
  };
  const u64 steps = (slices + kSliceTableStep - 1) / kSliceTableStep;
  if (steps * kSliceTableStep <= slice_count) return steps * step(kSliceTableStep);
  return (steps - 1) * step(kSliceTableStep) + step(slice_count - (steps - 1) * kSliceTableStep);
}

void PageCharges::cover_slice(u64 slice) {
  HeapHeader& heap = memory_.heap_header();
  const u64 slices = memory_.places().slice_count;
  memory_.slice(slice);  // throws when there is no such slice
  while (heap.slice_high <= slice) {
    const u64 first = heap.slice_high;
    const u64 count = std::min(kSliceTableStep, slices - first);
    const u64 table = memory_.places().slices + first * sizeof(Slice);
    const u64 maps = memory_.places().bitmaps + first * kBlockWords * sizeof(u64);
    os::commit(memory_.fd(), table / kPageBytes * kPageBytes, pages_for(count * sizeof(Slice)) * kPageBytes);
    os::commit(memory_.fd(), maps / kPageBytes * kPageBytes, pages_for(count * kBlockWords * sizeof(u64)) * kPageBytes);
    add_bytes(heap.fixed_bytes, table_bytes(first + count, slices) - table_bytes(first, slices));
    heap.slice_high += count;
  }
}

}  // namespace di
