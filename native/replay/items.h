// A table's items, by their addresses in this process, and their order of insertion. Every call needs the table's lock.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "heap/heap.h"
#include "replay/slot_sets.h"

namespace di {

class Items {
 public:
  Items(TableHeader& header, const std::string& table) : header_(header), table_(table) {}

  // Finds the segments that the header names; throws kCorruptData if they can't belong to the table of this index.
  void open(const Heap& heap, u32 table);

  u64 slots() const { return slots_; }
  Item& operator[](u32 slot) {
    if (slot >= slots_) [[unlikely]]
      bad_slot();
    const Segment* at = last_;
    while (slot < at->first) --at;  // the first segment begins with slot 0
    return at->items[slot - at->first];
  }
  // The item with this key, live or held; null: it is gone.
  Item* find(u64 key) {
    const u32 slot = key_slot(key);
    if (slot >= slots_ || key_shard(key) != 0) return nullptr;
    Item& item = (*this)[slot];
    return item.has_key(key) ? &item : nullptr;
  }
  void prefetch_key(u64 key) {
    if (key_slot(key) >= slots_) return;
    const Item& item = (*this)[key_slot(key)];
    __builtin_prefetch(&item.state);  // both ends, as below
    __builtin_prefetch(&item.span);
  }
  bool holds(u64 key) { return find(key) != nullptr; }
  void prefetch(u32 slot) {  // for a draw
    const Item& item = (*this)[slot];
    __builtin_prefetch(&item.state, 1);  // both ends: about half of the items lie in two cache lines
    __builtin_prefetch(&item.span, 1);
  }

  OrderList& order() { return *order_; }
  u32 first_live() const { return header_.first_live - 1; }  // kNone: no item is live
  u32 last_live() const { return header_.last_live - 1; }
  // Both update first_live and last_live: call joined() after an item became live, and leaving() before an item stops
  // being live.
  void joined(u32 slot);
  void leaving(u32 slot);

 private:
  struct Segment {
    u64 first;  // slot
    Item* items;
  };
  [[noreturn]] void bad_slot() const;

  TableHeader& header_;
  const std::string& table_;
  u64 slots_ = 0;
  std::vector<Segment> segments_;
  const Segment* last_ = nullptr;  // the last segment, which is the largest
  std::optional<OrderList> order_;
};

}  // namespace di
