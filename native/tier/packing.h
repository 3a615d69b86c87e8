// Packs the body of a chunk: its parts are cut into blocks of rows, and each block is compressed on its own.
//
// A part is what lies together in a body: the records, one wide column, the heap of variable-length values. The stored
// form is the blocks of all parts, one after the other, without the gaps between parts. Where each block ends is kept
// beside it, in the chunk's head. A block that is stored in as many bytes as it has is stored as it is; a shorter one
// is a zstd frame. So the rows [a, b) of a column cost reading and unpacking their blocks only. docs/packing.md has the
// format.
//
// No function here touches shared state: each works on the memory it is given. Those that unpack accept any bytes: they
// write the block that was asked for or throw kCorruptData, and stay within both buffers. They don't notice every
// damage, so checksums are for the caller to verify. Each thread keeps a zstd context of its own: 0.6 MB when it has
// packed, 0.1 MB and the largest block when it has unpacked.
#pragma once

#include <span>
#include <vector>

#include "base/chunk_layout.h"

namespace di {

// How many rows a block should have where an item spans `item_rows` rows: an item costs about two blocks, and a block
// has 64 KiB or more, below which zstd finds less (docs/packing.md). At least 1.
u64 block_rows(u64 row_bytes, u64 item_rows);

// How a body is cut into blocks. Blocks are numbered through all parts.
class PackPlan {
 public:
  // Parts in the order of their offsets, without overlap. Throws kCorruptData if they don't fit into the body, or are
  // 4 GiB together.
  PackPlan(std::vector<PackPart> parts, u64 body_bytes);

  struct Block {
    u64 offset, bytes;  // in the body
  };
  u32 blocks() const { return first_.back(); }
  Block block(u32 part, u32 number) const;
  u32 block_of(u32 part, u64 row) const { return first_[part] + static_cast<u32>(row / parts_[part].block_rows); }
  u32 first_block(u32 part) const { return first_[part]; }  // part == parts().size(): blocks()
  u32 part_of(u32 number) const;                            // the part that a block is of

  struct Blocks {
    u32 first, last;
  };
  // The blocks that hold bytes [from, from + bytes) of the body, but for what of them lies between parts. Throws
  // kCorruptData when no block holds any.
  Blocks blocks_of(u64 from, u64 bytes) const;

  const std::vector<PackPart>& parts() const { return parts_; }
  u64 body_bytes() const { return body_bytes_; }
  u64 part_bytes() const { return part_bytes_; }           // of all parts: the body without its gaps
  u64 most_packed() const { return part_bytes_ / 3 * 2; }  // a body that would need more is not worth it
  u64 room() const;                                        // bytes that pack() may write

 private:
  std::vector<PackPart> parts_;
  std::vector<u32> first_;  // the first block of each part, and the number of blocks
  u64 body_bytes_, part_bytes_ = 0, largest_ = 0;
};

// Packs a body into `to`, plan.room() bytes, and fills ends[plan.blocks()]: the offset in `to` at which each block ends.
// Returns the bytes written, or 0 if the body should stay as it is: it does not become plan.most_packed() or smaller.
// Then `to` and `ends` have any content. Random bytes are recognised by a sample, in a few microseconds.
u64 pack(const u8* body, const PackPlan& plan, std::span<u8> to, u32* ends);

// A packed body, or a range of its bytes: all that is asked for must lie in the range. The plan and the memory stay the
// caller's.
class PackedBody {
 public:
  // `bytes` are those from `offset` of the packed body on. ends[plan.blocks()] may have any values.
  PackedBody(const PackPlan& plan, const u32* ends, std::span<const u8> bytes, u64 offset = 0)
      : plan_(plan), ends_(ends), bytes_(bytes), offset_(offset) {}

  struct Range {
    u64 begin, end;  // offsets in the packed body
  };
  // Where the blocks of these rows lie. count > 0.
  static Range range(const PackPlan& plan, const u32* ends, u32 part, u64 row, u64 count);

  void rows(u32 part, u64 row, u64 count, u8* to) const;     // count * row_bytes
  void block(u32 part, u32 number, std::span<u8> to) const;  // all of the block
  void body(u8* to) const;                                   // body_bytes(); zeros between the parts

 private:
  const PackPlan& plan_;
  const u32* ends_;
  std::span<const u8> bytes_;
  u64 offset_;
};

}  // namespace di
