// The descriptors of a store's blocks: one for each object, chunk and meta block, in segments that double and are never
// freed. A descriptor is addressed by its index. A process that holds it (by a pin, an item, or an own entry of its
// ledger) may read it without a lock.
//
// Truth: each descriptor's word, offset and bytes, and the segments. Derived, under the heap's lock: the list of free
// ones.
#pragma once

#include <bit>
#include <span>

#include "process/memory.h"

namespace di {

inline ObjectState word_state(u64 word) { return static_cast<ObjectState>(word >> 56); }
inline ObjectKind word_kind(u64 word) { return static_cast<ObjectKind>(word >> 48 & 0xff); }
inline u32 word_generation(u64 word) { return static_cast<u32>(word >> 32 & 0xffff); }
inline u32 word_pins(u64 word) { return static_cast<u32>(word); }
inline u64 make_word(ObjectState state, ObjectKind kind, u32 generation) {
  return u64{static_cast<u8>(state)} << 56 | u64{static_cast<u8>(kind)} << 48 | u64{generation & 0xffff} << 32;
}
inline bool is_of_chunk(ObjectKind kind) { return kind == ObjectKind::kChunk || kind == ObjectKind::kBody; }
inline BlockUse use_of(ObjectKind kind) { return is_of_chunk(kind) ? BlockUse::kChunk : static_cast<BlockUse>(kind); }
constexpr u64 kSealStep = u64{1} << 56;  // creating -> sealed, sealed -> doomed

constexpr u64 kBlockAlign = 64;  // every size class is a multiple of it

class Descriptors {
 public:
  explicit Descriptors(Memory& memory) : memory_(memory) {}

  Descriptor& operator[](u32 index) const {
    const u64 unit = u64{index} / kFirstDescriptorSegment + 1;
    const u32 segment = static_cast<u32>(63 - std::countl_zero(unit));
    const u64 first = ((u64{1} << segment) - 1) * kFirstDescriptorSegment;
    if (segment >= kDescriptorSegments) [[unlikely]]
      bad(index);
    const u64 base = memory_.heap_header().segments[segment].value;
    // An offset below one slice wraps to a number above any file size. The sum can't wrap for the other offsets.
    if (base - kSliceBytes >= memory_.file_bytes() || base % kBlockAlign != 0) [[unlikely]]
      bad(index);
    return *reinterpret_cast<Descriptor*>(memory_.at(base + (index - first) * sizeof(Descriptor), sizeof(Descriptor)));
  }
  // The bytes of an object, or of a meta block that this process has just made. For a chunk ask ChunkMemory.
  u8* block(u32 index) const {
    const Descriptor& entry = (*this)[index];
    if (entry.offset % kBlockAlign != 0) [[unlikely]]
      bad(index);
    return memory_.at(entry.offset, entry.bytes);
  }
  // The bytes of a meta block that shared memory names by number. Throws kCorruptData unless the block belongs to this
  // owner and has at least `bytes` bytes: with a damaged number a caller would overwrite another owner's block.
  std::span<u8> meta(u32 index, u32 owner, u64 bytes) const {
    const Descriptor& entry = (*this)[index];
    const u64 word = entry.word.load(std::memory_order_relaxed);
    if (word_kind(word) != ObjectKind::kMeta || word_state(word) == ObjectState::kFree || entry.owner != owner ||
        entry.bytes < bytes || entry.offset % kBlockAlign != 0) [[unlikely]]
      bad(index);
    return {memory_.at(entry.offset, entry.bytes), entry.bytes};
  }
  u32 count() const;  // of all segments; also without the lock

  // Under the heap's lock.
  u32 pop_free();  // kNone: there is none
  void push_free(u32 index);
  u64 next_segment_bytes() const;             // 0: no more segments can be made
  u64 segments_bytes(u64 descriptors) const;  // of the segments to add for so many free descriptors
  void add_segment(u64 offset);               // a zeroed block of next_segment_bytes()

 private:
  [[noreturn]] static void bad(u32 index);

  Memory& memory_;
};

}  // namespace di
