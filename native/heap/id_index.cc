#include "heap/id_index.h"

#include <cstring>

#include "heap/meta_places.h"

namespace di {

// The last steps are those of splitmix64 (Steele, Lea, Flood 2014): its low bits depend on all bits of the id.
u64 hash_id(const u8* id) {
  u64 a, b;
  std::memcpy(&a, id, 8);
  std::memcpy(&b, id + 8, 8);
  u32 c;
  std::memcpy(&c, id + 16, 4);
  u64 h = a ^ (b * 0x9e3779b97f4a7c15u) ^ (c * 0xd6e8feb86659fd93u);
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

u32* IdIndex::block(u32 descriptor, u64 buckets) const {
  const std::span<u8> found = descriptors_.meta(descriptor, kOwnerIndex, 0);
  // A mask finds the bucket: unless their number is a power of two, objects would not be found, or lie outside.
  if (buckets == 0 || (buckets & (buckets - 1)) != 0 || found.size() / sizeof(u32) != buckets) [[unlikely]]
    throw Error(Code::kCorruptData, "the index of ids is damaged");
  return reinterpret_cast<u32*>(found.data());
}

// Where the chain with an id's object begins. There must be an index.
u32* IdIndex::chain_of(const Id& id) const {
  const HeapHeader& heap = memory_.heap_header();
  const u64 buckets = heap.index_buckets;
  return block(heap.index_block - 1, buckets) + (hash_id(id) & (buckets - 1));
}

u32 IdIndex::find(const Id& id) const {
  if (!exists()) return kNone;
  return *follow(chain_of(id), [&](u32 at) { return std::memcmp(descriptors_[at].name.id, id, sizeof(Id)) == 0; }) - 1;
}

// The place of the index is checked before a change. A lookup does not check it: it compares the id of the object
// found.
void IdIndex::insert(u32 index) {
  require_meta_place(memory_, descriptors_, memory_.heap_header().index_block - 1);
  Descriptor& entry = descriptors_[index];
  u32& head = *chain_of(entry.name.id);
  entry.name.hash_next = head;
  head = index + 1;
}

void IdIndex::erase(u32 index) {
  require_meta_place(memory_, descriptors_, memory_.heap_header().index_block - 1);
  u32* link = follow(chain_of(descriptors_[index].name.id), [index](u32 at) { return at == index; });
  if (*link != 0) *link = descriptors_[index].name.hash_next;
}

u32 IdIndex::move_to(u32 index, u64 buckets) {
  HeapHeader& heap = memory_.heap_header();
  u32* fresh = block(index, buckets);
  const u32 old = heap.index_block - 1;
  if (old != kNone) {
    const u64 had = heap.index_buckets;
    const u32* from = block(old, had);
    Steps steps(descriptors_.count(), "a chain of the index of ids");
    for (u64 bucket = 0; bucket < had; ++bucket)
      for (u32 at = from[bucket]; at != 0;) {
        steps.count_one();
        Descriptor& moved = descriptors_[at - 1];
        const u32 next = moved.name.hash_next;
        u32& head = fresh[hash_id(moved.name.id) & (buckets - 1)];
        moved.name.hash_next = head;
        head = at;
        at = next;
      }
  }
  heap.index_block = index + 1;
  heap.index_buckets = buckets;
  DI_FAULT("heap.index_grown");
  return old;
}

void IdIndex::clear() {
  HeapHeader& heap = memory_.heap_header();
  require_meta_place(memory_, descriptors_, heap.index_block - 1);
  const u64 buckets = descriptors_[heap.index_block - 1].bytes / sizeof(u32);
  std::memset(block(heap.index_block - 1, buckets), 0, bytes(buckets));
  heap.index_buckets = buckets;
}

}  // namespace di
