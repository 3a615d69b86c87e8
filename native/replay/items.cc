#include "replay/items.h"

#include "heap/meta_places.h"

namespace di {

void Items::open(const Heap& heap, u32 table) {
  const u64 slots = header_.slots;
  std::vector<Segment> segments;
  u64 first = 0;
  for (u32 i = 0; i < kTableSegments && header_.segment_block[i] != 0; ++i) {
    if (header_.segment_slots[i] > kSlotMask) throw Error(Code::kCorruptData, "a table's slots are damaged");
    const u64 more = header_.segment_slots[i];
    u8* const block = heap.meta(header_.segment_block[i] - 1, table, more * sizeof(Item));
    require_meta_place(heap.memory, heap.descriptors, header_.segment_block[i] - 1);
    segments.push_back({first, reinterpret_cast<Item*>(block)});
    first += more;
  }
  if (first < slots || segments.empty()) throw Error(Code::kCorruptData, "item segments are missing");
  slots_ = slots;
  segments_ = std::move(segments);
  last_ = &segments_.back();
  order_.emplace(heap.block(header_.links_block - 1), slots, &header_);
}

void Items::bad_slot() const { throw Error(Code::kCorruptData, "a list of table '" + table_ + "' is damaged"); }

void Items::joined(u32 slot) {
  const u64 number = (*this)[slot].number;
  if (header_.first_live == 0 || number < (*this)[header_.first_live - 1].number) header_.first_live = slot + 1;
  if (header_.last_live == 0 || number > (*this)[header_.last_live - 1].number) header_.last_live = slot + 1;
}

void Items::leaving(u32 slot) {
  Steps steps(2 * slots_, "a table's order");
  const auto is_live = [this, &steps](u32 at) {
    steps.count_one();
    return (*this)[at].is(ItemState::kLive);
  };
  if (header_.first_live == slot + 1) {
    u32 at = order_->next(slot);
    while (at != kNone && !is_live(at)) at = order_->next(at);
    header_.first_live = at + 1;
  }
  if (header_.last_live == slot + 1) {
    u32 at = order_->previous(slot);
    while (at != kNone && !is_live(at)) at = order_->previous(at);
    header_.last_live = at + 1;
  }
}

}  // namespace di
