// Finds the descriptor of an object by its id: a hash table in a meta block, chained through the descriptors. Derived;
// under the heap's lock.
#pragma once

#include "heap/descriptors.h"

namespace di {

using Id = u8[20];

u64 hash_id(const u8* id);  // its low bits are well mixed, whatever pattern ids have

class IdIndex {
 public:
  IdIndex(Memory& memory, const Descriptors& descriptors) : memory_(memory), descriptors_(descriptors) {}

  u32 find(const Id& id) const;  // kNone: there is none
  void insert(u32 descriptor);   // needs an index: see HeapCore::grow_index
  void erase(u32 descriptor);

  bool exists() const { return memory_.heap_header().index_buckets != 0; }
  bool is_full() const { return memory_.heap_header().live_objects >= memory_.heap_header().index_buckets; }
  static u64 bytes(u64 buckets) { return buckets * sizeof(u32); }
  // Moves the index to this zeroed meta block. Returns the block that it was in before, which the caller frees (kNone:
  // there was none).
  u32 move_to(u32 descriptor, u64 buckets);
  void clear();  // rebuild: no object is in it

 private:
  u32* chain_of(const Id& id) const;
  u32* block(u32 descriptor, u64 buckets) const;  // throws kCorruptData unless it has that many
  // Follows a chain to the link that names the first descriptor for which `found` is true. If there is none, the link
  // is 0.
  template <class Found>
  u32* follow(u32* link, Found found) const {
    for (Steps steps(descriptors_.count(), "a chain of the index of ids"); *link != 0 && !found(*link - 1);) {
      steps.count_one();
      link = &descriptors_[*link - 1].name.hash_next;
    }
    return link;
  }

  Memory& memory_;
  const Descriptors& descriptors_;
};

}  // namespace di
