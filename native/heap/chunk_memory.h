// Where a chunk's bytes are, by its descriptor: whoever reads or writes a chunk asks here for its address.
//
// A chunk has a head and a body. The head (ChunkHeader with the attachments) is in memory for as long as the chunk
// exists. The body is the rest: row marks, records, columns, values of variable length. Today both lie in one block:
// the body begins with the head, and the header's offsets count from there.
//
// The caller holds the chunk (by an item, a draw, a read, a pin or an own entry of its ledger) or the heap's lock, so that
// it stays where it is.
#pragma once

#include <span>

#include "heap/descriptors.h"

namespace di {

class ChunkMemory {
 public:
  ChunkMemory(const Memory& memory, const Descriptors& descriptors) : memory_(memory), descriptors_(descriptors) {}

  ChunkHeader& head(u32 chunk) const { return *reinterpret_cast<ChunkHeader*>(body(chunk).data()); }
  std::span<u8> body(u32 chunk) const {
    const Descriptor& entry = descriptors_[chunk];
    return {memory_.at(entry.offset, entry.bytes), entry.bytes};
  }

  // The tables that a chunk was written for. A damaged number of them would reach behind the chunk.
  bool has_attachments(u32 chunk) const;
  std::span<Attachment> attachments(u32 chunk) const;  // throws kCorruptData
  // How often one of these tables uses the chunk: by its position among them, or by the table's index (null: it is none of
  // them). The first table's count lies in the descriptor, beside what else a draw reads.
  Uses& uses_at(u32 chunk, u32 position) const {
    return position == 0 ? descriptors_[chunk].summary.first_uses : head(chunk).attachment[position].uses;
  }
  Uses* uses_of(u32 chunk, u32 table) const {
    ChunkSummary& summary = descriptors_[chunk].summary;
    if (summary.first_table == table) return &summary.first_uses;
    return uses_behind_first(chunk, table);
  }

 private:
  Uses* uses_behind_first(u32 chunk, u32 table) const;

  const Memory& memory_;
  const Descriptors& descriptors_;
};

}  // namespace di
