#include "replay/groups.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "replay/item_rows.h"
#include "rows/chunks.h"

namespace di {
namespace {

constexpr u64 kAlign = 64;
constexpr u64 kSpread = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio

}  // namespace

u64 Groups::buckets(u64 slots) { return std::bit_ceil(std::max<u64>(slots / 2, 16)); }

u64 Groups::bytes(u64 slots) { return kAlign + slots * sizeof(AnswerLink) + buckets(slots) * sizeof(u32); }

void Groups::open(u8* block) {
  slots_ = items_.slots();
  u8* const at = block + (kAlign - reinterpret_cast<std::uintptr_t>(block) % kAlign) % kAlign;
  links_ = reinterpret_cast<AnswerLink*>(at);
  buckets_ = reinterpret_cast<u32*>(at + slots_ * sizeof(AnswerLink));
}

void Groups::clear() { std::memset(buckets_, 0, buckets(slots_) * sizeof(u32)); }

u32& Groups::bucket(u64 value) const {
  return buckets_[value * kSpread >> (64 - static_cast<u32>(std::bit_width(buckets(slots_) - 1)))];
}

u32 Groups::find(u64 value) const {
  Steps steps(slots_, "a table's groups");
  for (u32 at = bucket(value); at != 0; at = link(at - 1).hash) {
    steps.count_one();
    if (link(at - 1).value == value) return at - 1;
  }
  return kNone;
}

void Groups::begin(u32 leader, u64 value) {
  u32& first = bucket(value);
  link(leader) = AnswerLink{value, 0, leader + 1, 1, first};
  if (size() > 1) first = leader + 1;
}

void Groups::begin_complete(u32 leader) { link(leader) = AnswerLink{0, 0, leader + 1, 1, 0}; }

void Groups::join(u32 leader, u32 slot) {
  AnswerLink& group = link(leader);
  require_sound(group.count != 0 && group.count < size());
  link(slot) = AnswerLink{group.value, 0, 0, 0, 0};
  link(group.last - 1).next = slot + 1;
  group.last = slot + 1;
  if (++group.count == size() && items_[leader].is(ItemState::kWaiting)) take_out(leader);
}

void Groups::leave(u32 leader) {
  if (count(leader) < size()) take_out(leader);
}

void Groups::take_out(u32 leader) {
  Steps steps(slots_, "a table's groups");
  u32* at = &bucket(link(leader).value);
  while (*at != leader + 1) {
    require_sound(*at != 0);
    steps.count_one();
    at = &link(*at - 1).hash;
  }
  *at = link(leader).hash;
}

u64 group_value(const Arena& arena, u32 chunk, u32 row, u32 table) {
  const Heap& heap = arena.heap();
  const u32 position = attachment_of(heap, chunk, table);
  const HeadView header = head_at(heap, {chunk, row});
  const u32 column = position == kNone ? 0 : heap.chunk_memory.attachments(chunk)[position].group_column;
  if (column != 0) {
    const LayoutInfo layout = read_layout(arena, header.layout);
    if (column <= layout.columns.size()) {
      const ColumnLayout& where = layout.columns[column - 1];
      // A chunk of a table that groups keeps its records in the head.
      const std::span<const u8> around = heap.chunk_memory.head_bytes(chunk);
      const u64 at = header.records_offset + u64{row} * layout.record_bytes + where.offset;
      u64 value = 0;
      if (where.place == static_cast<u32>(ColumnPlace::kRecord) && where.row_bytes <= sizeof value &&
          (!arena.tiered() || header.records_in_head) && header.records_offset <= around.size() &&
          at + where.row_bytes <= around.size()) {
        std::memcpy(&value, around.data() + at, where.row_bytes);
        return value;
      }
    }
  }
  throw Error(Code::kCorruptData, "a row of a group lacks the column that groups it; run `di-store check`");
}

}  // namespace di
