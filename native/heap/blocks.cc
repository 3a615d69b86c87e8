#include "heap/blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace di {
namespace {

constexpr u64 kAheadPages = 16;      // small blocks: pages charged at once
constexpr u64 kSliceTableStep = 32;  // slices whose tables are committed together

struct ClassTable {
  std::array<u32, kBlockClasses> bytes{};
  u32 count = 0;
  constexpr ClassTable() {
    u32 size = kMinBlockBytes;
    while (size <= (1u << 20)) {
      bytes[count++] = size;
      const u32 power = std::bit_floor(size);
      size += power < 1024 ? std::max(64u, power / 4) : power / 8;
    }
  }
};
constexpr ClassTable kClasses;
static_assert(kClasses.count <= kBlockClasses && kClasses.bytes[kClasses.count - 1] == 1u << 20);

}  // namespace

u32 block_class(u64 bytes) {
  if (bytes > (1u << 20)) return kNone;
  const auto* end = kClasses.bytes.data() + kClasses.count;
  return static_cast<u32>(std::lower_bound(kClasses.bytes.data(), end, static_cast<u32>(bytes)) -
                          kClasses.bytes.data());
}
u64 block_class_bytes(u32 index) { return kClasses.bytes[index]; }

u64 Blocks::block_bytes(u64 bytes) {
  const u32 cls = block_class(bytes);
  return cls == kNone ? pages_for(bytes) * kPageBytes : block_class_bytes(cls);
}

Shared<u64>& Blocks::counter(BlockUse use) {
  HeapHeader& heap = arena_.heap_header();
  return use == BlockUse::kObject ? heap.object_bytes : use == BlockUse::kChunk ? heap.chunk_bytes : heap.meta_bytes;
}

// ----------------------------------------------------------------------------------------------------- page accounts

u64 Blocks::present_pages(u64 slice) const {
  u64 pages = 0;
  for (u64 word : arena_.slice(slice).present) pages += static_cast<u64>(std::popcount(word));
  return pages;
}

u64 Blocks::missing_pages(u64 slice, u64 first, u64 count) const {
  const u64* present = arena_.slice(slice).present;
  u64 missing = 0;
  for (u64 page = first; page < first + count;) {
    const u64 bit = page % 64, take = std::min<u64>(64 - bit, first + count - page);
    const u64 mask = (take == 64 ? ~u64{0} : ((u64{1} << take) - 1)) << bit;
    missing += static_cast<u64>(std::popcount(mask & ~present[page / 64]));
    page += take;
  }
  return missing;
}

void Blocks::charge(u64 slice, u64 first, u64 count, bool value) {
  u64* present = arena_.slice(slice).present;
  for (u64 page = first; page < first + count;) {
    const u64 bit = page % 64, take = std::min<u64>(64 - bit, first + count - page);
    const u64 mask = (take == 64 ? ~u64{0} : ((u64{1} << take) - 1)) << bit;
    present[page / 64] = value ? present[page / 64] | mask : present[page / 64] & ~mask;
    page += take;
  }
}

u64 Blocks::table_bytes(u64 slices, u64 slice_count) {
  const auto step = [](u64 count) {
    return (pages_for(count * sizeof(Slice)) + pages_for(count * kBlockWords * sizeof(u64))) * kPageBytes;
  };
  const u64 steps = (slices + kSliceTableStep - 1) / kSliceTableStep;
  if (steps * kSliceTableStep <= slice_count) return steps * step(kSliceTableStep);
  return (steps - 1) * step(kSliceTableStep) + step(slice_count - (steps - 1) * kSliceTableStep);
}

// The slice table and the block bitmaps are sparse too: committed for 32 slices at a time as higher slices come in use.
// Who chose the slice has looked whether the machine has so much; where it refuses all the same, first touch makes them.
void Blocks::cover_slice_tables(u64 slice) {
  HeapHeader& heap = arena_.heap_header();
  const u64 slices = arena_.header().slice_count;
  arena_.slice(slice);  // throws when there is no such slice
  while (heap.slice_high <= slice) {
    const u64 first = heap.slice_high;
    const u64 count = std::min(kSliceTableStep, slices - first);
    const u64 table = arena_.header().slices.value + first * sizeof(Slice);
    const u64 maps = arena_.header().bitmaps.value + first * kBlockWords * sizeof(u64);
    os::commit(arena_.fd(), table / kPageBytes * kPageBytes, pages_for(count * sizeof(Slice)) * kPageBytes);
    os::commit(arena_.fd(), maps / kPageBytes * kPageBytes, pages_for(count * kBlockWords * sizeof(u64)) * kPageBytes);
    add_bytes(heap.fixed_bytes, table_bytes(first + count, slices) - table_bytes(first, slices));
    heap.slice_high += count;
  }
}

// ---------------------------------------------------------------------------------------------------- lists of slices

void Blocks::link(u64 slice) {
  Slice& entry = arena_.slice(slice);
  u32& head = arena_.heap_header().partial[static_cast<u32>(entry.use)][entry.block_class];
  entry.prev = 0;
  entry.next = head;
  if (head != 0) arena_.slice(head - 1).prev = static_cast<u32>(slice) + 1;
  head = static_cast<u32>(slice) + 1;
}

void Blocks::unlink(u64 slice) {
  Slice& entry = arena_.slice(slice);
  if (entry.prev != 0)
    arena_.slice(entry.prev - 1).next = entry.next;
  else
    arena_.heap_header().partial[static_cast<u32>(entry.use)][entry.block_class] = entry.next;
  if (entry.next != 0) arena_.slice(entry.next - 1).prev = entry.prev;
  entry.prev = entry.next = 0;
}

// The lowest run of `count` free slices: low addresses are the ones used before, so their pages tend to be there.
u64 Blocks::take_free_run(u64 count) {
  HeapHeader& heap = arena_.heap_header();
  const u64 total = arena_.header().slice_count;
  u64 run = 0;
  bool first_seen = false;
  for (u64 at = heap.free_low; at < total; ++at) {
    if (at < heap.slice_high && arena_.slice(at).state != SliceState::kFree) {
      run = 0;
      continue;
    }
    if (!first_seen) {
      heap.free_low = at;
      first_seen = true;
    }
    if (++run == count) return at + 1 - count;
    if (at >= heap.slice_high && at + count - run < total) {  // beyond the high mark all are free
      return at + 1 - run;
    }
  }
  return ~u64{0};
}

// ----------------------------------------------------------------------------------------------------------- choosing

Blocks::Choice Blocks::choose(u64 bytes, BlockUse use, bool ahead) {
  Choice choice;
  const u32 cls = block_class(std::max(bytes, kMinBlockBytes));
  choice.cls = cls;
  if (cls == kNone) {
    choice.pages = pages_for(bytes);
    choice.bytes = choice.pages * kPageBytes;
    choice.run = (choice.pages + kPagesPerSlice - 1) / kPagesPerSlice;
    choice.slice = take_free_run(choice.run);
    if (choice.slice == ~u64{0}) return choice;
    for (u64 i = 0; i < choice.run; ++i) {
      const u64 want = std::min(kPagesPerSlice, choice.pages - i * kPagesPerSlice);
      const bool known = choice.slice + i < arena_.heap_header().slice_high;
      const u64 missing = known ? missing_pages(choice.slice + i, 0, want) : want;
      choice.missing_bytes += missing * kPageBytes;
      const u64 present = known ? present_pages(choice.slice + i) : 0;
      choice.taken_bytes += (missing + present) * kPageBytes;
      choice.spare_bytes += (present + missing - want) * kPageBytes;
    }
  } else {
    choice.bytes = block_class_bytes(cls);
    const u32 head = arena_.heap_header().partial[static_cast<u32>(use)][cls];
    const bool fresh = head == 0;
    choice.slice = fresh ? take_free_run(1) : head - 1;
    if (choice.slice == ~u64{0}) return choice;
    if (!fresh) {
      Slice& entry = arena_.slice(choice.slice);
      const u64* map = arena_.bitmap(choice.slice);
      u32 word = entry.hint;
      while (word < kBlockWords && map[word] == ~u64{0}) ++word;
      if (word >= kBlockWords) throw Error(Code::kCorruptData, "a list of slices with room is damaged");
      entry.hint = word;
      choice.block = word * 64 + static_cast<u32>(std::countr_one(map[word]));
    }
    choice.first_page = choice.block * choice.bytes / kPageBytes;
    const u64 end = pages_for((choice.block + 1) * choice.bytes);
    choice.pages = end - choice.first_page;
    const bool known = choice.slice < arena_.heap_header().slice_high;
    u64 missing = known ? missing_pages(choice.slice, choice.first_page, choice.pages) : choice.pages;
    if (ahead && missing != 0 && choice.pages < kAheadPages) {
      choice.pages = std::min(kAheadPages, kPagesPerSlice - choice.first_page);
      missing = known ? missing_pages(choice.slice, choice.first_page, choice.pages) : choice.pages;
    }
    choice.missing_bytes = missing * kPageBytes;
    choice.taken_bytes = choice.missing_bytes;
    if (fresh && known) {
      const u64 present = present_pages(choice.slice);
      choice.taken_bytes += present * kPageBytes;
      choice.spare_bytes = (present + missing - choice.pages) * kPageBytes;
    }
  }
  const u64 high = arena_.heap_header().slice_high, top = choice.slice + std::max<u64>(choice.run, 1);
  if (top > high)
    choice.table_bytes = table_bytes(top, arena_.header().slice_count) - table_bytes(high, arena_.header().slice_count);
  choice.found = true;
  choice.offset =
      arena_.header().data.value + choice.slice * kSliceBytes + choice.block * (cls == kNone ? 0 : choice.bytes);
  return choice;
}

void Blocks::apply(const Choice& choice, BlockUse use) {
  HeapHeader& heap = arena_.heap_header();
  cover_slice_tables(choice.slice + std::max<u64>(choice.run, 1) - 1);
  add_bytes(counter(use), choice.taken_bytes);
  add_bytes(heap.free_bytes, choice.missing_bytes - choice.taken_bytes);  // wraps: pages of free slices that were taken
  if (choice.cls == kNone) {
    for (u64 i = 0; i < choice.run; ++i) {
      Slice& entry = arena_.slice(choice.slice + i);
      entry.state = i == 0 ? SliceState::kRunHead : SliceState::kRunBody;
      entry.use = use;
      entry.run = static_cast<u32>(choice.run);
      entry.hint = static_cast<u32>(std::min(kPagesPerSlice, choice.pages - i * kPagesPerSlice));  // pages in use
      charge(choice.slice + i, 0, entry.hint, true);
    }
    return;
  }
  Slice& entry = arena_.slice(choice.slice);
  if (entry.state == SliceState::kFree) {
    entry.state = SliceState::kBlocks;
    entry.use = use;
    entry.block_class = static_cast<u8>(choice.cls);
    entry.free_blocks = blocks_in(choice.cls);
    entry.hint = 0;
    const u32 count = entry.free_blocks;
    u64* map = arena_.bitmap(choice.slice);
    std::memset(map, 0, (count + 63) / 64 * 8);
    if (count % 64 != 0) map[count / 64] = ~u64{0} << (count % 64);  // bits past the last block are never free
    link(choice.slice);
  }
  charge(choice.slice, choice.first_page, choice.pages, true);
  arena_.bitmap(choice.slice)[choice.block / 64] |= u64{1} << (choice.block % 64);
  if (--entry.free_blocks == 0) unlink(choice.slice);
}

void Blocks::become_free(u64 slice) {
  HeapHeader& heap = arena_.heap_header();
  Slice& entry = arena_.slice(slice);
  const u64 bytes = present_pages(slice) * kPageBytes;
  add_bytes(counter(entry.use), ~bytes + 1);
  add_bytes(heap.free_bytes, bytes);
  entry.state = SliceState::kFree;
  heap.free_low = std::min(heap.free_low, slice);
}

void Blocks::release(u64 offset, u64 bytes, BlockUse use) {
  const u64 slice = (offset - arena_.header().data.value) / kSliceBytes;
  Slice& entry = arena_.slice(slice);
  const u32 cls = block_class(std::max(bytes, kMinBlockBytes));
  if (cls == kNone) {
    const u64 run = entry.run;
    for (u64 i = 0; i < run; ++i) become_free(slice + i);
    return;
  }
  const u32 block = static_cast<u32>((offset - arena_.header().data.value) % kSliceBytes / block_class_bytes(cls));
  arena_.bitmap(slice)[block / 64] &= ~(u64{1} << (block % 64));
  entry.hint = std::min(entry.hint, block / 64);
  if (++entry.free_blocks == 1) link(slice);
  if (entry.free_blocks == blocks_in(cls)) {
    unlink(slice);
    become_free(slice);
  }
  (void)use;
}

// ----------------------------------------------------------------------------------------------------------- rebuild

void Blocks::reset() {
  HeapHeader& heap = arena_.heap_header();
  std::memset(heap.partial, 0, sizeof heap.partial);
  for (u64 at = 0; at < heap.slice_high; ++at) {
    Slice& entry = arena_.slice(at);
    entry.state = SliceState::kFree;
    entry.prev = entry.next = entry.hint = entry.free_blocks = 0;
  }
}

void Blocks::mark(u64 offset, u64 bytes, BlockUse use) {
  const u64 slice = (offset - arena_.header().data.value) / kSliceBytes;
  const u32 cls = block_class(std::max(bytes, kMinBlockBytes));
  const u64 run = cls == kNone ? (bytes + kSliceBytes - 1) / kSliceBytes : 1;
  // mutant: the-last-slice-is-none
  cover_slice_tables(slice + run - 1);  // the last one it lies in: behind it the store may end
  if (cls == kNone) {
    for (u64 i = 0; i < run; ++i) {
      Slice& entry = arena_.slice(slice + i);
      entry.state = i == 0 ? SliceState::kRunHead : SliceState::kRunBody;
      entry.use = use;
      entry.run = static_cast<u32>(run);
      entry.hint = static_cast<u32>(std::min(kPagesPerSlice, pages_for(bytes) - i * kPagesPerSlice));
      charge(slice + i, 0, entry.hint, true);
    }
    return;
  }
  Slice& entry = arena_.slice(slice);
  u64* map = arena_.bitmap(slice);
  if (entry.state == SliceState::kFree) {
    entry.state = SliceState::kBlocks;
    entry.use = use;
    entry.block_class = static_cast<u8>(cls);
    entry.free_blocks = blocks_in(cls);
    std::memset(map, 0, (entry.free_blocks + 63) / 64 * 8);
    if (entry.free_blocks % 64 != 0) map[entry.free_blocks / 64] = ~u64{0} << (entry.free_blocks % 64);
  }
  const u64 size = block_class_bytes(cls);
  const u64 block = (offset - arena_.header().data.value) % kSliceBytes / size;
  map[block / 64] |= u64{1} << (block % 64);
  --entry.free_blocks;
  const u64 first = block * size / kPageBytes;
  charge(slice, first, pages_for((block + 1) * size) - first, true);
}

void Blocks::relist() {
  HeapHeader& heap = arena_.heap_header();
  heap.free_low = 0;
  u64 bytes[kBlockUses] = {}, free = 0;
  for (u64 at = 0; at < heap.slice_high; ++at) {
    Slice& entry = arena_.slice(at);
    const u64 here = present_pages(at) * kPageBytes;
    if (entry.state == SliceState::kFree) {
      free += here;
      continue;
    }
    bytes[static_cast<u32>(entry.use)] += here;
    if (entry.state == SliceState::kBlocks && entry.free_blocks != 0) link(at);
  }
  heap.object_bytes.store(bytes[0]);
  heap.chunk_bytes.store(bytes[1]);
  heap.meta_bytes.store(bytes[2]);
  heap.free_bytes.store(free);
}

u64 Blocks::charged_bytes() const {
  u64 pages = 0;
  for (u64 at = 0; at < arena_.heap_header().slice_high; ++at) pages += present_pages(at);
  return pages * kPageBytes;
}

}  // namespace di
