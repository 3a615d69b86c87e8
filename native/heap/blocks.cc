#include "heap/blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace di {
namespace {

constexpr u64 kAheadPages = 16;  // small blocks: pages charged at once

u64 slices_for(u64 pages) { return (pages + kPagesPerSlice - 1) / kPagesPerSlice; }

void require_block(bool sound) {
  if (!sound) [[unlikely]]
    throw Error(Code::kCorruptData, "damaged store: a block of memory lies where a block of its size cannot be");
}

bool is_set(const u64* map, u32 block) { return (map[block / 64] >> (block % 64) & 1) != 0; }

}  // namespace

u64 Blocks::block_bytes(u64 bytes) {
  const u32 cls = block_class(bytes);
  return cls == kNone ? pages_for(bytes) * kPageBytes : block_class_bytes(cls);
}

// ----------------------------------------------------------------------------------------------------------- choosing

// Slices from slice_high on have no entry in the table yet: all their pages are missing.
u64 Blocks::missing_pages(u64 slice, u64 first, u64 count) const {
  return slice < memory_.heap_header().slice_high ? pages_.missing(slice, first, count) : count;
}

void Blocks::choose_run(u64 bytes, Choice* choice) {
  choice->pages = pages_for(bytes);
  choice->bytes = choice->pages * kPageBytes;
  choice->run = slices_for(choice->pages);
  choice->slice = lists_.find_free(choice->run);
  if (choice->slice == ~u64{0}) return;
  for (u64 i = 0; i < choice->run; ++i) {
    const u64 want = std::min(kPagesPerSlice, choice->pages - i * kPagesPerSlice);
    const bool known = choice->slice + i < memory_.heap_header().slice_high;
    const u64 missing = known ? pages_.missing(choice->slice + i, 0, want) : want;
    const u64 present = known ? pages_.present(choice->slice + i) : 0;
    choice->missing_bytes += missing * kPageBytes;
    choice->taken_bytes += (missing + present) * kPageBytes;
    choice->spare_bytes += (present + missing - want) * kPageBytes;
  }
}

void Blocks::choose_block(BlockUse use, bool ahead, Choice* choice) {
  choice->bytes = block_class_bytes(choice->cls);
  const u32 head = lists_.head(use, choice->cls);
  const bool fresh = head == 0;
  choice->slice = fresh ? lists_.find_free(1) : head - 1;
  if (choice->slice == ~u64{0}) return;
  if (!fresh) {
    Slice& entry = memory_.slice(choice->slice);
    const u64* map = memory_.bitmap(choice->slice);
    u32 word = entry.hint;
    while (word < kBlockWords && map[word] == ~u64{0}) ++word;
    if (word >= kBlockWords) throw Error(Code::kCorruptData, "a list of slices with room is damaged");
    entry.hint = word;
    choice->block = word * 64 + static_cast<u32>(std::countr_one(map[word]));
    require_block(entry.state == SliceState::kBlocks && entry.use == use && entry.block_class == choice->cls &&
                  (choice->block + 1) * choice->bytes <= kSliceBytes);
  }
  choice->first_page = choice->block * choice->bytes / kPageBytes;
  choice->pages = pages_for((choice->block + 1) * choice->bytes) - choice->first_page;
  u64 missing = missing_pages(choice->slice, choice->first_page, choice->pages);
  if (ahead && missing != 0 && choice->pages < kAheadPages) {
    choice->pages = std::min(kAheadPages, kPagesPerSlice - choice->first_page);
    missing = missing_pages(choice->slice, choice->first_page, choice->pages);
  }
  choice->missing_bytes = missing * kPageBytes;
  choice->taken_bytes = choice->missing_bytes;
  if (fresh && choice->slice < memory_.heap_header().slice_high) {
    const u64 present = pages_.present(choice->slice);
    choice->taken_bytes += present * kPageBytes;
    choice->spare_bytes = (present + missing - choice->pages) * kPageBytes;
  }
}

Blocks::Choice Blocks::choose(u64 bytes, BlockUse use, bool ahead) {
  Choice choice;
  choice.cls = block_class(std::max(bytes, kMinBlockBytes));
  if (choice.is_run())
    choose_run(bytes, &choice);
  else
    choose_block(use, ahead, &choice);
  if (choice.slice == ~u64{0}) return choice;
  const u64 high = memory_.heap_header().slice_high, top = choice.last_slice() + 1;
  const u64 all = memory_.places().slice_count;
  if (top > high) choice.table_bytes = PageCharges::table_bytes(top, all) - PageCharges::table_bytes(high, all);
  choice.found = true;
  choice.offset = pages_.offset_of(choice.slice) + choice.block * (choice.is_run() ? 0 : choice.bytes);
  return choice;
}

// ------------------------------------------------------------------------------------------------ taking and releasing

// Makes one block of that many pages from a run of free slices, and charges the pages.
void Blocks::set_run(u64 slice, u64 pages, BlockUse use) {
  const u64 run = slices_for(pages);
  for (u64 i = 0; i < run; ++i) {
    Slice& entry = memory_.slice(slice + i);
    entry.state = i == 0 ? SliceState::kRunHead : SliceState::kRunBody;
    entry.use = use;
    entry.run = static_cast<u32>(run);
    entry.hint = static_cast<u32>(std::min(kPagesPerSlice, pages - i * kPagesPerSlice));  // pages in use
    pages_.charge(slice + i, 0, entry.hint);
  }
}

// Cuts a free slice into blocks of the class, all free.
void Blocks::cut_slice(u64 slice, u32 cls, BlockUse use) {
  Slice& entry = memory_.slice(slice);
  const u32 count = blocks_in(cls);
  entry.state = SliceState::kBlocks;
  entry.use = use;
  entry.block_class = static_cast<u8>(cls);
  entry.free_blocks = count;
  entry.hint = 0;
  u64* map = memory_.bitmap(slice);
  std::memset(map, 0, (count + 63) / 64 * 8);
  if (count % 64 != 0) map[count / 64] = ~u64{0} << (count % 64);  // bits past the last block are never free
}

void Blocks::apply(const Choice& choice, BlockUse use) {
  pages_.cover_slice(choice.last_slice());
  add_bytes(pages_.bytes_of(use), choice.taken_bytes);
  // Wraps: it subtracts the charged pages of the free slices taken.
  add_bytes(memory_.heap_header().free_bytes, choice.missing_bytes - choice.taken_bytes);
  if (choice.is_run()) return set_run(choice.slice, choice.pages, use);
  Slice& entry = memory_.slice(choice.slice);
  if (entry.state == SliceState::kFree) {
    cut_slice(choice.slice, choice.cls, use);
    lists_.link(choice.slice);
  }
  pages_.charge(choice.slice, choice.first_page, choice.pages);
  memory_.bitmap(choice.slice)[choice.block / 64] |= u64{1} << (choice.block % 64);
  if (--entry.free_blocks == 0) lists_.unlink(choice.slice);
}

void Blocks::become_free(u64 slice) {
  HeapHeader& heap = memory_.heap_header();
  Slice& entry = memory_.slice(slice);
  const u64 bytes = pages_.present(slice) * kPageBytes;
  subtract_bytes(pages_.bytes_of(entry.use), bytes);
  add_bytes(heap.free_bytes, bytes);
  entry.state = SliceState::kFree;
  heap.free_low = std::min(heap.free_low, slice);
}

// Where the block of a descriptor lies. Throws kCorruptData if no block of that size can begin there.
Blocks::Spot Blocks::spot(u64 offset, u64 bytes) const {
  const u64 data = memory_.places().data, end = memory_.file_bytes();
  require_block(offset >= data && offset <= end && bytes <= end - offset);
  Spot at{pages_.slice_of(offset), block_class(std::max(bytes, kMinBlockBytes)), 0, 1};
  const u64 within = offset - pages_.offset_of(at.slice);
  if (at.cls == kNone) {
    at.run = slices_for(pages_for(bytes));
    require_block(within == 0 && at.slice + at.run <= memory_.places().slice_count);
    return at;
  }
  const u32 size = static_cast<u32>(block_class_bytes(at.cls));
  at.block = static_cast<u32>(within) / size;
  require_block(u64{at.block} * size == within && within + size <= kSliceBytes);
  return at;
}

void Blocks::release(u64 offset, u64 bytes) {
  const auto [slice, cls, block, run] = spot(offset, bytes);
  Slice& entry = memory_.slice(slice);
  if (cls == kNone) {
    require_block(entry.state == SliceState::kRunHead && entry.run == run);
    for (u64 i = 0; i < run; ++i) become_free(slice + i);
    return;
  }
  require_block(entry.state == SliceState::kBlocks && entry.block_class == cls && is_set(memory_.bitmap(slice), block));
  memory_.bitmap(slice)[block / 64] &= ~(u64{1} << (block % 64));
  entry.hint = std::min(entry.hint, block / 64);
  if (++entry.free_blocks == 1) lists_.link(slice);
  if (entry.free_blocks == blocks_in(cls)) {
    lists_.unlink(slice);
    become_free(slice);
  }
}

// ------------------------------------------------------------------------------------------------------------ recovery

void Blocks::reset() {
  HeapHeader& heap = memory_.heap_header();
  std::memset(heap.partial, 0, sizeof heap.partial);
  for (u64 at = 0; at < heap.slice_high; ++at) {
    Slice& entry = memory_.slice(at);
    entry.state = SliceState::kFree;
    entry.prev = entry.next = entry.hint = entry.free_blocks = 0;
  }
}

void Blocks::mark(u64 offset, u64 bytes, BlockUse use) {
  const auto [slice, cls, block, run] = spot(offset, bytes);
  require_block(static_cast<u32>(use) < kBlockUses);
  pages_.cover_slice(slice + run - 1);  // the block's last slice: the store may end there
  if (cls == kNone) {
    for (u64 i = 0; i < run; ++i) require_block(memory_.slice(slice + i).state == SliceState::kFree);
    return set_run(slice, pages_for(bytes), use);
  }
  Slice& entry = memory_.slice(slice);
  if (entry.state == SliceState::kFree) cut_slice(slice, cls, use);
  const u64 size = block_class_bytes(cls);
  require_block(entry.state == SliceState::kBlocks && entry.use == use && entry.block_class == cls &&
                !is_set(memory_.bitmap(slice), block));
  memory_.bitmap(slice)[block / 64] |= u64{1} << (block % 64);
  --entry.free_blocks;
  const u64 first = block * size / kPageBytes;
  pages_.charge(slice, first, pages_for((block + 1) * size) - first);
}

void Blocks::relist() {
  HeapHeader& heap = memory_.heap_header();
  heap.free_low = 0;
  u64 bytes[kBlockUses] = {}, free = 0;
  for (u64 at = 0; at < heap.slice_high; ++at) {
    const Slice& entry = memory_.slice(at);
    const u64 here = pages_.present(at) * kPageBytes;
    if (entry.state == SliceState::kFree) {
      free += here;
      continue;
    }
    bytes[static_cast<u32>(entry.use)] += here;
    if (entry.state == SliceState::kBlocks && entry.free_blocks != 0) lists_.link(at);
  }
  heap.object_bytes.store(bytes[0]);
  heap.chunk_bytes.store(bytes[1]);
  heap.meta_bytes.store(bytes[2]);
  heap.free_bytes.store(free);
}

}  // namespace di
