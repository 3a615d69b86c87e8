#include "heap/page_reclaim.h"

#include <algorithm>
#include <bit>

namespace di {
namespace {

constexpr u64 kWords = kPagesPerSlice / 64;  // of a bit for each page of a slice

// The pages that the slice's blocks in use touch.
void mark_used(const Slice& entry, const u64* map, u64* used) {
  if (entry.state != SliceState::kBlocks) {  // of a run: `hint` pages from the start
    for (u64 i = 0; i < kWords; ++i)
      used[i] = entry.hint >= i * 64 + 64 ? ~u64{0} : entry.hint <= i * 64 ? 0 : (u64{1} << (entry.hint % 64)) - 1;
    return;
  }
  const u64 size = block_class_bytes(entry.block_class);
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
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------ punching

// Finds the pages of a slice in use that are charged but touch no block in use; returns how many.
u64 PageReclaim::find_holes(u64 slice, u64* mask) const {
  const Slice& entry = memory_.slice(slice);
  u64 used[kWords] = {};
  mark_used(entry, memory_.bitmap(slice), used);
  u64 pages = 0;
  for (u64 i = 0; i < kWords; ++i) {
    mask[i] = entry.present[i] & ~used[i];
    pages += static_cast<u64>(std::popcount(mask[i]));
  }
  return pages;
}

// Uncharges the pages of a punched run that are gone; returns how many of them were charged. While another process
// holds a huge page, for example during a page fault, the kernel zeroes a part of the page instead of freeing it. Such
// pages stay charged, and are punched again the next time that room is short.
u64 PageReclaim::uncharge_gone(u64 slice, u64 first, u64 count) {
  u8 there[kPagesPerSlice] = {};
  const u64 base = pages_.offset_of(slice);
  if (count != kPagesPerSlice) os::resident(memory_.at(base + first * kPageBytes, count * kPageBytes), count, there);
  u64 gone = 0;
  for (u64 page = first; page < first + count;) {
    u64 end = page;
    while (end < first + count && there[end - first] == there[page - first]) ++end;
    if (there[page - first] == 0) {
      gone += end - page - pages_.missing(slice, page, end - page);
      pages_.uncharge(slice, page, end - page);
    }
    page = end;
  }
  return gone;
}

// Punches and uncharges the pages of the mask, run by run; returns how many.
u64 PageReclaim::punch_pages(u64 slice, const u64* mask) {
  u64 gone = 0;
  const u64 base = pages_.offset_of(slice);
  for (u64 page = 0; page < kPagesPerSlice;) {
    if (!(mask[page / 64] >> (page % 64) & 1)) {
      ++page;
      continue;
    }
    u64 end = page;
    while (end < kPagesPerSlice && (mask[end / 64] >> (end % 64) & 1)) ++end;
    os::punch(memory_.fd(), base + page * kPageBytes, (end - page) * kPageBytes);
    DI_FAULT("blocks.after_punch");
    gone += uncharge_gone(slice, page, end - page);
    page = end;
  }
  memory_.slice(slice).collapsed = 0;
  return gone;
}

// Punches and uncharges every page of the slice that no block in use touches; returns the bytes.
u64 PageReclaim::punch_unused(u64 slice) {
  const Slice& entry = memory_.slice(slice);
  u64 mask[kWords];
  std::fill(std::begin(mask), std::end(mask), ~u64{0});
  if ((entry.state == SliceState::kFree ? pages_.present(slice) : find_holes(slice, mask)) == 0) return 0;
  const u64 bytes = punch_pages(slice, mask) * kPageBytes;
  subtract_bytes(pages_.bytes_of(entry), bytes);
  return bytes;
}

u64 PageReclaim::punch_spare(const Blocks::Choice& choice) {
  const u64 slice = choice.last_slice();
  const u64 end = choice.is_run() ? choice.pages - (choice.run - 1) * kPagesPerSlice : choice.first_page + choice.pages;
  u64 mask[kWords] = {};
  for (u64 page = end; page < kPagesPerSlice; ++page)
    mask[page / 64] |= memory_.slice(slice).present[page / 64] & (u64{1} << (page % 64));
  const u64 got = punch_pages(slice, mask) * kPageBytes;
  subtract_bytes(memory_.heap_header().free_bytes, got);
  return got;
}

void PageReclaim::punch_block(u64 offset, u64 bytes) {
  const u64 first = pages_.slice_of(offset);
  const bool run = block_class(std::max(bytes, kMinBlockBytes)) == kNone;
  const u64 slices = run ? (bytes + kSliceBytes - 1) / kSliceBytes : 1;
  for (u64 i = 0; i < slices; ++i) punch_unused(first + i);
}

// ------------------------------------------------------------------------------------------------- where room is short

u64 PageReclaim::some(Cursor* cursor, Unused which) {
  const u64 got = which == Unused::kAny ? from_free(cursor) : 0;
  return got != 0 ? got : from_holes(cursor, which == Unused::kMetaHoles);
}

u64 PageReclaim::from_free(Cursor* cursor) {
  cursor->free = std::min(cursor->free, memory_.heap_header().slice_high);
  while (cursor->free > 0) {  // from the top: low slices are the next to be used
    const u64 at = --cursor->free;
    if (memory_.slice(at).state != SliceState::kFree) continue;
    if (const u64 got = punch_unused(at); got != 0) return got;
  }
  return 0;
}

u64 PageReclaim::from_holes(Cursor* cursor, bool meta_only) {
  cursor->holes = std::min(cursor->holes, memory_.heap_header().slice_high);
  while (cursor->holes > 0) {
    const u64 at = --cursor->holes;
    const Slice& entry = memory_.slice(at);
    if (entry.state == SliceState::kFree || (meta_only && entry.use != BlockUse::kMeta)) continue;
    if (const u64 got = punch_unused(at); got != 0) return got;
  }
  return 0;
}

u64 PageReclaim::meta_holes() const {
  u64 pages = 0, mask[kWords];
  for (u64 at = 0; at < memory_.heap_header().slice_high; ++at) {
    const Slice& entry = memory_.slice(at);
    if (entry.state != SliceState::kFree && entry.use == BlockUse::kMeta) pages += find_holes(at, mask);
  }
  return pages * kPageBytes;
}

// -------------------------------------------------------------------------------------------------------------- chores

bool PageReclaim::is_being_filled(u64 slice) {
  const Shared<u32>& filler = memory_.slice(slice).filler;
  if (filler.load(std::memory_order_acquire) == kFillEnded) charge_filled(slice, true);  // pairs with end_fill()
  return filler.load(std::memory_order_relaxed) != 0;
}

u64 PageReclaim::charge_free_slice(u32 filler) {
  HeapHeader& heap = memory_.heap_header();
  const u64 committed = heap.object_bytes + heap.chunk_bytes + heap.meta_bytes + heap.fixed_bytes + heap.free_bytes;
  if (committed + kSliceBytes > spendable(heap.budget.load())) return 0;
  for (u64 at = heap.free_low; at < memory_.places().slice_count; ++at) {
    if (at < heap.slice_high && memory_.slice(at).state != SliceState::kFree) continue;
    pages_.cover_slice(at);
    if (is_being_filled(at)) continue;
    const u64 missing = pages_.missing(at, 0, kPagesPerSlice);
    if (missing == 0) continue;
    memory_.slice(at).filler.store(filler, std::memory_order_relaxed);
    pages_.charge(at, 0, kPagesPerSlice);
    add_bytes(heap.free_bytes, missing * kPageBytes);
    return pages_.offset_of(at);
  }
  return 0;
}

void PageReclaim::charge_filled(u64 slice, bool give_back) {
  Slice& entry = memory_.slice(slice);
  entry.filler.store(0, std::memory_order_relaxed);
  const u64 missing = pages_.missing(slice, 0, kPagesPerSlice);
  if (missing == 0 && !give_back) return;
  pages_.charge(slice, 0, kPagesPerSlice);
  add_bytes(pages_.bytes_of(entry), missing * kPageBytes);
  punch_unused(slice);
}

}  // namespace di
