// A file of a checkpoint: a segment (docs/segment_format.md) that holds chunks and objects of a store.
#pragma once

#include <optional>

#include "snapshot/snapshot.h"
#include "tier/segment_reader.h"
#include "tier/segment_writer.h"

namespace di {

// RecordHeader::flags of a chunk's record.
constexpr u16 kHeadApart = 1;  // the store has a disk tier: head and body are blocks of their own
constexpr u16 kHeadOnly = 2;   // the body is in another file

// Part of an object record: its head holds one SavedObject per object, and its body holds their bytes, one after the
// other.
struct SavedObject {
  u8 id[20];
  u32 flags;
  u64 bytes;
  u64 left_ns;  // of its ttl at the instant of the snapshot; 0: it has none
};
static_assert(sizeof(SavedObject) == 40);

class ChunkFile {
 public:
  static constexpr u32 kFull = kNone;

  ChunkFile(const std::string& folder, const SegmentOwner& owner, u64 bytes)
      : writer_(SegmentWriter::create(folder, owner, bytes)) {}

  // Returns the page of the record; kFull: the record no longer fits. Without `body` the record holds the head only.
  u32 add_chunk(const Snapshot& from, u32 number, bool body);
  u32 add_objects(const Snapshot& from, u64 first, u64 count);  // the same for objects
  void end();                                                   // syncs the whole file to disk

  // The bytes that records take in a file, and those that the file needs besides.
  static u64 bytes_of_chunk(const Snapshot& from, u32 number, bool body);
  static u64 bytes_of_objects(const Snapshot& from, u64 first, u64 count);
  static constexpr u64 kOwnBytes = 3 * kPageBytes;  // header, trailer, and the rounding of the footer

 private:
  u32 append(const Record& record);

  SegmentWriter writer_;
  std::vector<u8> body_;  // a copy of an open chunk's body, or of objects
  std::vector<u8> read_;  // an object that is not in memory
};

}  // namespace di
