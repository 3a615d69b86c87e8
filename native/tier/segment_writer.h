// Fills one segment. For one thread at a time; in a forked child every call but the destructor throws.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "os/file.h"
#include "tier/segment_format.h"

namespace di {

// Whom a segment is written for. Set once by create() and recycle(), which also fill in its size.
struct SegmentOwner {
  Uuid uuid{};
  u64 epoch = 0;
  u64 incarnation = 0;
  u32 number = 0;
  u32 writer = 0;
};

struct Record {
  RecordKind kind = RecordKind::kChunk;
  u64 uid = 0;
  std::span<const u8> head;
  std::span<const u8> body;  // as it will lie on disk
  u64 raw_bytes = 0;         // unpacked; with codec 0 the size of the body
  u8 codec = 0;
  u16 flags = 0;
};

// Where a record lies.
struct RecordPlace {
  u32 segment = 0;
  u32 page = 0;         // of the body
  u32 record_page = 0;  // of its RecordHeader
  u32 pages = 0;        // of the whole record
};

class SegmentWriter {
 public:
  // Makes the file and allocates blocks for all of it. kStoreFull comes here; later only on filesystems that copy
  // overwritten blocks (btrfs, zfs). kStoreError when the file exists. After an error there is no file.
  static SegmentWriter create(const std::string& folder, const SegmentOwner& owner, u64 bytes);
  // Reuses a file whose records nobody needs. It keeps its size, or grows to `bytes`. After an error the file exists,
  // with its old content or none.
  static SegmentWriter recycle(const std::string& folder, const SegmentOwner& owner, u64 bytes);
  SegmentWriter(SegmentWriter&&) = default;
  SegmentWriter& operator=(SegmentWriter&&) = default;

  // Memory that bodies pass through. A writer takes what it needs: at most kMemoryBytes and the head of a large record.
  // A process that must be able to write while memory is short makes a buffer of that size ahead, and lends it to one
  // writer after the other.
  static constexpr u64 kMemoryBytes = u64{8} << 20;
  void lend_memory(os::AlignedBuffer memory) { memory_ = std::move(memory); }
  os::AlignedBuffer return_memory() { return std::move(memory_); }

  // Whether a record of this size fits, with room left for the footer.
  bool has_room(u64 head_bytes, u64 body_bytes) const;
  // Memory in which the caller can make the body of the next record, so that append() need not copy it: body_bytes at a
  // page boundary, valid until any other call. nullptr: the record is too large for that, or does not fit.
  u8* body_memory(u64 head_bytes, u64 body_bytes);
  // Writes the record, by one write if it has up to 8 MiB; a larger one gets its header and head last. On disk only
  // after sync(). kInvalid: it does not fit. After a failed write or sync the segment takes no more records.
  RecordPlace append(const Record& record);
  void sync();  // everything appended survives a power cut
  void seal();  // writes the footer; no more records after it. Not synced

  const SegmentHeader& header() const { return header_; }
  u64 used_bytes() const { return next_page_ * kPageBytes; }  // of header and records
  u64 written_bytes() const { return written_bytes_; }        // to the file, by this writer
  const std::string& path() const { return path_; }

 private:
  SegmentWriter(const std::string& folder, const SegmentOwner& owner);
  void begin(u64 bytes);
  void check_usable() const;
  void make_room(u64 bytes);                             // in memory_
  void write(u64 page, u64 bytes);                       // writes memory_
  u32 write_padded(u64 page, std::span<const u8> from);  // through memory_, in pieces; returns the checksum
  void write_at_once(RecordHeader* header, const Record& record);
  void write_in_pieces(RecordHeader* header, const Record& record);
  [[noreturn]] void fail(const char* what, int number);

  std::string folder_, path_;
  SegmentHeader header_;
  os::File file_;
  os::AlignedBuffer memory_;
  std::vector<u8> footer_;
  u64 next_page_ = 1, written_bytes_ = 0;
  u32 records_ = 0;
  u32 pid_;
  bool sealed_ = false, failed_ = false, named_ = false;  // named_: the folder's entry is synced
};

}  // namespace di
