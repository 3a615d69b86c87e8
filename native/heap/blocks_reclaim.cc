// Giving pages back: those of free slices, and those between blocks in use.
#include <algorithm>
#include <bit>

#include "heap/blocks.h"

namespace di {

// Pages of a slice that are charged but touch no block in use.
u64 Blocks::holes(u64 slice, u64* mask) const {
  const Slice& entry = arena_.slice(slice);
  if (entry.state != SliceState::kBlocks) {
    u64 pages = 0;
    for (u64 i = 0; i < kPagesPerSlice / 64; ++i) {
      const u64 used = entry.hint >= i * 64 + 64 ? ~u64{0}
                       : entry.hint <= i * 64    ? 0
                                                 : (u64{1} << (entry.hint % 64)) - 1;
      mask[i] = entry.present[i] & ~used;
      pages += static_cast<u64>(std::popcount(mask[i]));
    }
    return pages;
  }
  const u64 size = block_class_bytes(entry.block_class);
  u64 used[kPagesPerSlice / 64] = {};
  const u64* map = arena_.bitmap(slice);
  const u32 count = blocks_in(entry.block_class);
  for (u32 word = 0; word * 64 < count; ++word) {
    u64 bits = map[word];
    if (word * 64 + 64 > count) bits &= (u64{1} << (count % 64)) - 1;
    while (bits != 0) {
      const u64 block = word * 64 + static_cast<u64>(std::countr_zero(bits));
      bits &= bits - 1;
      for (u64 page = block * size / kPageBytes; page < pages_for((block + 1) * size); ++page)
        used[page / 64] |= u64{1} << (page % 64);
    }
  }
  u64 pages = 0;
  for (u64 i = 0; i < kPagesPerSlice / 64; ++i) {
    mask[i] = entry.present[i] & ~used[i];
    pages += static_cast<u64>(std::popcount(mask[i]));
  }
  return pages;
}

u64 Blocks::charge_free_slice() {
  HeapHeader& heap = arena_.heap_header();
  const u64 committed = heap.object_bytes + heap.chunk_bytes + heap.meta_bytes + heap.fixed_bytes + heap.free_bytes;
  if (committed + kSliceBytes > spendable(heap.budget.load())) return 0;
  for (u64 at = heap.free_low; at < arena_.header().slice_count; ++at) {
    if (at < heap.slice_high && arena_.slice(at).state != SliceState::kFree) continue;
    cover_slice_tables(at);
    const u64 missing = missing_pages(at, 0, kPagesPerSlice);
    if (missing == 0) continue;
    charge(at, 0, kPagesPerSlice, true);
    add_bytes(heap.free_bytes, missing * kPageBytes);
    return arena_.header().data.value + at * kSliceBytes;
  }
  return 0;
}

u64 Blocks::reclaim_some(Cursor* cursor) {
  const u64 got = reclaim_free(cursor);
  // mutant: holes-are-not-memory
  return got != 0 ? got : reclaim_holes(cursor);
}

u64 Blocks::reclaim_free(Cursor* cursor) {
  cursor->free = std::min(cursor->free, arena_.heap_header().slice_high);
  while (cursor->free > 0) {  // from the top: low slices are the next to be used
    const u64 at = --cursor->free;
    if (arena_.slice(at).state != SliceState::kFree) continue;
    if (const u64 got = punch_unused(at); got != 0) return got;
  }
  return 0;
}

u64 Blocks::reclaim_holes(Cursor* cursor) {
  cursor->holes = std::min(cursor->holes, arena_.heap_header().slice_high);
  while (cursor->holes > 0) {
    const u64 at = --cursor->holes;
    if (arena_.slice(at).state == SliceState::kFree) continue;
    if (const u64 got = punch_unused(at); got != 0) return got;
  }
  return 0;
}

// Punches and uncharges every page of the slice that no block in use touches; bytes got.
u64 Blocks::punch_unused(u64 slice) {
  HeapHeader& heap = arena_.heap_header();
  const bool free = arena_.slice(slice).state == SliceState::kFree;
  u64 mask[kPagesPerSlice / 64];
  std::fill(std::begin(mask), std::end(mask), ~u64{0});
  if ((free ? present_pages(slice) : holes(slice, mask)) == 0) return 0;
  const u64 pages = punch_pages(slice, mask);
  add_bytes(free ? heap.free_bytes : counter(arena_.slice(slice).use), ~(pages * kPageBytes) + 1);
  return pages * kPageBytes;
}

// Uncharges the pages of a punched run that are gone; how many of them were charged. The kernel zeroes a part of a huge
// page instead of giving it back while somebody else holds on to it, as a fault in another process does for a moment:
// what is still there stays charged, and is punched anew the next time that room is short.
u64 Blocks::uncharge_gone(u64 slice, u64 first, u64 count) {
  u8 there[kPagesPerSlice] = {};
  const u64 base = arena_.header().data.value + slice * kSliceBytes;
  if (count != kPagesPerSlice) os::resident(arena_.at(base + first * kPageBytes, count * kPageBytes), count, there);
  u64 gone = 0;
  for (u64 page = first; page < first + count;) {
    u64 end = page;
    while (end < first + count && there[end - first] == there[page - first]) ++end;
    if (there[page - first] == 0) {
      gone += end - page - missing_pages(slice, page, end - page);
      charge(slice, page, end - page, false);
    }
    page = end;
  }
  return gone;
}

// Punches and uncharges the pages of the mask, run by run; how many went.
u64 Blocks::punch_pages(u64 slice, const u64* mask) {
  u64 gone = 0;
  const u64 base = arena_.header().data.value + slice * kSliceBytes;
  for (u64 page = 0; page < kPagesPerSlice;) {
    if (!(mask[page / 64] >> (page % 64) & 1)) {
      ++page;
      continue;
    }
    u64 end = page;
    while (end < kPagesPerSlice && (mask[end / 64] >> (end % 64) & 1)) ++end;
    os::punch(arena_.fd(), base + page * kPageBytes, (end - page) * kPageBytes);
    DI_FAULT("blocks.after_punch");
    gone += uncharge_gone(slice, page, end - page);
    page = end;
  }
  u8& collapsed = arena_.slice(slice).collapsed;
  if (collapsed != kCollapseUnderWay) collapsed = 0;
  return gone;
}

// A free slice brings all its pages along: those behind the block can go before it is taken.
u64 Blocks::punch_spare(const Choice& choice) {
  const u64 slice = choice.slice + std::max<u64>(choice.run, 1) - 1;
  const u64 end =
      choice.cls == kNone ? choice.pages - (choice.run - 1) * kPagesPerSlice : choice.first_page + choice.pages;
  u64 mask[kPagesPerSlice / 64] = {};
  for (u64 page = end; page < kPagesPerSlice; ++page)
    mask[page / 64] |= arena_.slice(slice).present[page / 64] & (u64{1} << (page % 64));
  const u64 got = punch_pages(slice, mask) * kPageBytes;
  add_bytes(arena_.heap_header().free_bytes, ~got + 1);
  return got;
}

void Blocks::punch_block(u64 offset, u64 bytes) {
  const u64 first = (offset - arena_.header().data.value) / kSliceBytes;
  const bool run = block_class(std::max(bytes, kMinBlockBytes)) == kNone;
  const u64 slices = run ? (bytes + kSliceBytes - 1) / kSliceBytes : 1;
  for (u64 i = 0; i < slices; ++i) punch_unused(first + i);
}

void Blocks::settle_collapsed(u64 slice) {
  Slice& entry = arena_.slice(slice);
  entry.collapsed = kCollapseTried;
  const u64 missing = missing_pages(slice, 0, kPagesPerSlice);
  charge(slice, 0, kPagesPerSlice, true);
  add_bytes(entry.state == SliceState::kFree ? arena_.heap_header().free_bytes : counter(entry.use),
            missing * kPageBytes);
  punch_unused(slice);
}

u64 Blocks::settle_collapses(u64 first, u64 count, bool under_way) {
  const u64 end = std::min(arena_.heap_header().slice_high, first + count);
  for (u64 at = first; at < end; ++at)
    if (!under_way || arena_.slice(at).collapsed == kCollapseUnderWay) settle_collapsed(at);
  return end;
}

}  // namespace di
