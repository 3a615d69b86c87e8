// Packs the body of a chunk: each part is cut into blocks of rows, and each block is compressed on its own.
//
// A part is a region of the body whose bytes lie together: the records, one wide column, or the heap of variable-length
// values. The stored form is the blocks of all parts, one after the other, without the gaps between parts. The chunk's
// head keeps the end of each block. A block whose stored size equals its own size is stored as it is; a shorter one is
// a zstd frame. So rows [a, b) of a column cost the reading and unpacking of their blocks only. docs/packing.md has the
// format.
//
// No function here touches shared state: each works on the memory it is given. The unpacking functions accept any
// bytes: they write the requested block or throw kCorruptData, and stay within both buffers. They don't notice every
// damage, so the caller must verify checksums. Each thread keeps its own zstd context: 0.6 MB after it has packed, 0.1
// MB after it has unpacked.
#pragma once

#include <span>
#include <vector>

#include "base/chunk_layout.h"

namespace di {

// How many rows a block should have if an item spans `item_rows` rows. An item then costs about two blocks, and a block
// has at least 64 KiB: zstd compresses smaller ones worse (docs/packing.md). At least 1.
u64 block_rows(u64 row_bytes, u64 item_rows);

// How a body is cut into blocks. Blocks are numbered through all parts.
class PackPlan {
 public:
  // `parts`: in the order of their offsets, without overlap. Throws kCorruptData if they don't fit into the body, or
  // have 4 GiB or more together.
  PackPlan(std::vector<PackPart> parts, u64 body_bytes);

  struct Block {
    u64 offset, bytes;  // in the body
  };
  u32 blocks() const { return first_.back(); }
  Block block(u32 part, u32 number) const;
  u32 block_of(u32 part, u64 row) const { return first_[part] + static_cast<u32>(row / parts_[part].block_rows); }
  u32 first_block(u32 part) const { return first_[part]; }  // part == parts().size(): blocks()
  u32 part_of(u32 number) const;                            // the part that the block belongs to

  struct BlockRange {
    u32 first, last;
  };
  // The blocks that hold bytes [from, from + bytes) of the body, except bytes between parts. Throws kCorruptData when
  // no block holds any of them.
  BlockRange blocks_of(u64 from, u64 bytes) const;

  const std::vector<PackPart>& parts() const { return parts_; }
  u64 body_bytes() const { return body_bytes_; }
  u64 part_bytes() const { return part_bytes_; }           // of all parts: the body without its gaps
  u64 most_packed() const { return part_bytes_ / 3 * 2; }  // a body that needs more stays unpacked
  u64 room() const;                                        // bytes that pack() may write

 private:
  std::vector<PackPart> parts_;
  std::vector<u32> first_;  // the first block of each part, then the number of blocks
  u64 body_bytes_, part_bytes_ = 0, largest_ = 0;
};

// Packs a body into `to`, which has plan.room() bytes, and fills ends[plan.blocks()] with the offset in `to` at which
// each block ends. Returns the bytes written, or 0 if the body should stay as it is because it does not shrink to
// plan.most_packed(). After 0, `to` and `ends` may have any content. A sample recognises random bytes in a few
// microseconds.
u64 pack(const u8* body, const PackPlan& plan, std::span<u8> to, u32* ends);

// A packed body, or a range of its bytes. The range must hold all that is asked for. The plan and the memory stay the
// caller's.
class PackedBody {
 public:
  // `bytes` begin at `offset` of the packed body. ends[plan.blocks()] may have any values.
  PackedBody(const PackPlan& plan, const u32* ends, std::span<const u8> bytes, u64 offset = 0)
      : plan_(plan), ends_(ends), bytes_(bytes), offset_(offset) {}

  void block(u32 part, u32 number, std::span<u8> to) const;  // all of the block

 private:
  const PackPlan& plan_;
  const u32* ends_;
  std::span<const u8> bytes_;
  u64 offset_;
};

}  // namespace di
