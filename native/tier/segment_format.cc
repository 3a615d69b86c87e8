// See segment_format.h.
#include "tier/segment_format.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "os/crc32c.h"

namespace di {

u64 usual_file_bytes(u64 disk_capacity) {
  return std::clamp<u64>(disk_capacity / 64, u64{4} << 20, u64{64} << 20) / kPageBytes * kPageBytes;
}

u64 segment_bytes(u64 disk_capacity) {
  const u64 chunks = usual_file_bytes(disk_capacity);
  return (chunks + chunks / 16) / kPageBytes * kPageBytes;
}

u64 segment_bytes_for(u64 head_bytes, u64 body_bytes) {
  return (2 + record_pages(head_bytes, body_bytes) + pages_of(footer_entry_bytes(head_bytes))) * kPageBytes;
}

std::string numbered_name(const char* kind, u32 number) {
  char name[20];
  std::snprintf(name, sizeof name, "%s-%08x", kind, number);
  return name;
}

bool parse_numbered_name(const char* kind, const std::string& name, u32* number) {
  const u64 digits = std::strlen(kind) + 1;
  unsigned value = 0;
  if (name.size() <= digits || std::sscanf(name.c_str() + digits, "%8x", &value) != 1) return false;
  if (name != numbered_name(kind, value)) return false;
  *number = value;
  return true;
}

namespace {

template <class T>
u32 crc_of(const T& form, u32 before) {
  return crc32c(&form, offsetof(T, crc), before);
}

}  // namespace

void set_crc(SegmentHeader* header) { header->crc = crc_of(*header, 0); }
void set_crc(RecordHeader* record, const SegmentHeader& segment) { record->crc = crc_of(*record, segment.crc); }
void set_crc(SegmentTrailer* trailer, const SegmentHeader& segment) { trailer->crc = crc_of(*trailer, segment.crc); }

bool is_intact(const SegmentHeader& header) { return header.magic == kSegmentMagic && header.crc == crc_of(header, 0); }

bool is_sound(const SegmentHeader& header) {
  return is_intact(header) && header.version == kSegmentVersion && header.page_bytes == kPageBytes &&
         header.bytes % kPageBytes == 0 && header.bytes >= 3 * kPageBytes && header.bytes / kPageBytes <= u64{1} << 32;
}

bool is_sound(const RecordHeader& record, const SegmentHeader& segment, u64 pages) {
  if (record.magic != kRecordMagic || record.crc != crc_of(record, segment.crc)) return false;
  if (record.incarnation != segment.incarnation || record.page == 0 || record.head_bytes > kMostHeadBytes) return false;
  if (record.codec == 0 && record.raw_bytes != record.stored_bytes) return false;
  // Compare with `pages` first: the sum may overflow.
  return pages_of(record.stored_bytes) <= pages && end_page(record) <= pages;
}

bool is_sound(const SegmentTrailer& trailer, const SegmentHeader& segment, u64 pages) {
  if (trailer.magic != kTrailerMagic || trailer.crc != crc_of(trailer, segment.crc)) return false;
  if (trailer.version != kSegmentVersion || trailer.incarnation != segment.incarnation) return false;
  if (trailer.footer_page == 0 || trailer.footer_bytes > kMostFooterBytes) return false;
  return trailer.footer_page + pages_of(trailer.footer_bytes) < pages;
}

}  // namespace di
