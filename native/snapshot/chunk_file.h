// A file of a checkpoint: a segment (docs/segment_format.md) that holds chunks and objects of a store.
#pragma once

#include <optional>

#include "snapshot/snapshot.h"
#include "tier/segment_reader.h"
#include "tier/segment_writer.h"

namespace di {

// RecordHeader::flags of a chunk.
constexpr u16 kHeadApart = 1;  // of a store with a disk tier: head and body are blocks of their own
constexpr u16 kHeadOnly = 2;   // the body is in another file

// Of an object's record: its head holds one of these for each object, whose bytes lie in the body, one after the other.
struct SavedObject {
  u8 id[20];
  u32 flags;
  u64 bytes;
  u64 left_ns;  // of its ttl at the instant; 0: it has none
};
static_assert(sizeof(SavedObject) == 40);

class ChunkFile {
 public:
  static constexpr u32 kFull = kNone;

  ChunkFile(const std::string& folder, const SegmentOwner& owner, u64 bytes)
      : writer_(SegmentWriter::create(folder, owner, bytes)) {}

  // Page of the record; kFull: it does not fit any more. Without `body` its head only.
  u32 add_chunk(const Snapshot& from, u32 number, bool body);
  u32 add_objects(const Snapshot& from, u64 first, u64 count);  // likewise
  void end();                                                   // all of it is on disk

  // What records take of a file, and what it needs beside them.
  static u64 bytes_of_chunk(const Snapshot& from, u32 number, bool body);
  static u64 bytes_of_objects(const Snapshot& from, u64 first, u64 count);
  static constexpr u64 kOwnBytes = 3 * kPageBytes;  // header, trailer, and the rounding of the footer

 private:
  u32 append(const Record& record);

  SegmentWriter writer_;
  std::vector<u8> body_;  // of an open chunk, or of objects: a copy
  std::vector<u8> read_;  // an object that is not in memory
};

}  // namespace di
