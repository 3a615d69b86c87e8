// A segment: a file of the disk tier that one process fills with records, front to back. docs/segment_format.md draws
// the same map with offsets. All numbers are little-endian.
//
//   page 0               SegmentHeader, zeros
//   page 1 …             records, no gaps: RecordHeader, head image, zeros to the next page; body, zeros to the next
//   footer_page …        once sealed: of every record its RecordHeader and head image, each at a multiple of 8 bytes
//   the last page        once sealed: SegmentTrailer, zeros
//
// Every checksum but a body's continues from the SegmentHeader's. So bytes that were written for another store, epoch,
// segment or incarnation of this file do not count: files are reused without being cleared.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string>

#include "base/layout.h"

namespace di {

static_assert(std::endian::native == std::endian::little, "segments are written as they lie in memory");

constexpr u64 kSegmentMagic = 0x313047455349443a;  // ":DISEG01"
constexpr u64 kTrailerMagic = 0x3130444e4549443a;  // ":DIEND01"
constexpr u32 kRecordMagic = 0x4352443a;           // ":DRC"
constexpr u32 kSegmentVersion = 1;
// The most that a reader allocates for a size that a file claims. The head of a body of 64 GB fits.
constexpr u64 kMostHeadBytes = u64{64} << 20;
constexpr u64 kMostFooterBytes = u64{256} << 20;

using Uuid = std::array<u8, 16>;

struct SegmentHeader {
  u64 magic = kSegmentMagic;
  u32 version = kSegmentVersion;
  u32 page_bytes = kPageBytes;
  Uuid uuid{};          // of the store
  u64 epoch = 0;        // of the store: how often its folder was opened
  u64 incarnation = 0;  // differs for any two uses of segments of a store
  u64 bytes = 0;        // of the file, a multiple of page_bytes
  u32 number = 0;       // of the segment: its file's name
  u32 writer = 0;       // client slot of the process that writes it
  u32 zero = 0;
  u32 crc = 0;  // checksum of all fields in front of it
};
static_assert(sizeof(SegmentHeader) == 72 && offsetof(SegmentHeader, crc) == 68);

enum class RecordKind : u8 { kChunk = 1, kObject = 2 };

struct RecordHeader {
  u32 magic = kRecordMagic;
  RecordKind kind = RecordKind::kChunk;
  u8 codec = 0;   // how the body is packed; 0: it is not, and stored_bytes == raw_bytes
  u16 flags = 0;  // defined by the writer of the record
  u64 uid = 0;    // differs for any two chunks or objects of a store
  u64 incarnation = 0;
  u64 stored_bytes = 0;  // of the body as it lies here
  u64 raw_bytes = 0;     // of the body unpacked
  u32 page = 0;          // of the segment, where this header lies
  u32 head_bytes = 0;    // of the head image
  u32 body_crc = 0;      // of stored_bytes bytes
  u32 head_crc = 0;      // of the head image
  u32 zero = 0;
  u32 crc = 0;  // checksum of all fields in front of it
};
static_assert(sizeof(RecordHeader) == 64 && offsetof(RecordHeader, crc) == 60);

struct SegmentTrailer {
  u64 magic = kTrailerMagic;
  u32 version = kSegmentVersion;
  u32 records = 0;
  u64 incarnation = 0;
  u64 footer_bytes = 0;
  u32 footer_page = 0;
  u32 footer_crc = 0;
  u8 zeros[20] = {};
  u32 crc = 0;  // checksum of all fields in front of it
};
static_assert(sizeof(SegmentTrailer) == 64 && offsetof(SegmentTrailer, crc) == 60);

inline Uuid uuid_of(const TierHeader& store) {
  Uuid uuid;
  std::copy_n(store.uuid, uuid.size(), uuid.begin());
  return uuid;
}
constexpr u64 pages_of(u64 bytes) { return bytes / kPageBytes + (bytes % kPageBytes != 0); }
constexpr u64 head_pages(u64 head_bytes) { return pages_of(sizeof(RecordHeader) + head_bytes); }
constexpr u64 record_pages(u64 head_bytes, u64 body_bytes) { return head_pages(head_bytes) + pages_of(body_bytes); }
constexpr u64 footer_entry_bytes(u64 head_bytes) { return sizeof(RecordHeader) + (head_bytes + 7) / 8 * 8; }
inline u64 body_page(const RecordHeader& record) { return record.page + head_pages(record.head_bytes); }
inline u64 end_page(const RecordHeader& record) { return body_page(record) + pages_of(record.stored_bytes); }

// The page checksums (CRC-32C) in a chunk's head, for a body of `stored_bytes` on disk. Empty: they do not fit into the
// head.
inline std::span<u32> page_checksums(std::span<u8> head, const ChunkTier& tier, u64 stored_bytes) {
  const u64 pages = pages_of(stored_bytes), at = tier.crcs_offset;
  if (at % sizeof(u32) != 0 || at > head.size() || pages > (head.size() - at) / sizeof(u32)) return {};
  return {reinterpret_cast<u32*>(head.data() + at), pages};
}

// Size of a store's files: a 64th of what it may have on disk, between 4 and 64 MiB.
u64 usual_file_bytes(u64 disk_capacity);
// Size of its segments: a 16th more than that, so that as many chunks of 1 MiB fit with their records, each with its
// head twice.
u64 segment_bytes(u64 disk_capacity);
// Size of a segment that holds just one record.
u64 segment_bytes_for(u64 head_bytes, u64 body_bytes);

// Names of files of the folder: "segment-0000002a", "objects-0000002a".
std::string numbered_name(const char* kind, u32 number);
bool parse_numbered_name(const char* kind, const std::string& name, u32* number);  // false: it is no such name
inline std::string segment_name(u32 number) { return numbered_name("segment", number); }
inline std::string log_name(u32 number) { return numbered_name("objects", number); }
void set_crc(SegmentHeader* header);
void set_crc(RecordHeader* record, const SegmentHeader& segment);
void set_crc(SegmentTrailer* trailer, const SegmentHeader& segment);
// Whether these bytes were written as such a struct, for this segment, and no number in them leads out of a file of
// `pages` pages. Nothing else in them may be used before.
bool is_intact(const SegmentHeader& header);  // for headers of any version
bool is_sound(const SegmentHeader& header);
bool is_sound(const RecordHeader& record, const SegmentHeader& segment, u64 pages);
bool is_sound(const SegmentTrailer& trailer, const SegmentHeader& segment, u64 pages);

}  // namespace di
