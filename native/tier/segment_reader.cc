// See segment_reader.h.
#include "tier/segment_reader.h"

#include <algorithm>
#include <cstring>

#include "os/crc32c.h"

namespace di {

namespace {

constexpr u64 kPieceBytes = u64{1} << 20;

template <class T>
T form_at(const u8* at) {
  T form;
  std::memcpy(&form, at, sizeof form);
  return form;
}

}  // namespace

bool SegmentReader::fetch(u64 page, u64 bytes, os::AlignedBuffer* into) {
  const u64 padded = pages_of(bytes) * kPageBytes;
  if (into->bytes() < padded) {
    into->clear();  // first, so that there are never two buffers
    *into = os::AlignedBuffer(padded);
  }
  u64 got = 0;
  number_ = file_.read(page * kPageBytes, into->data(), padded, &got);
  return number_ == 0 && got >= bytes;
}

SegmentState SegmentReader::open(const std::string& path, const Uuid& uuid) {
  path_ = path;
  number_ = file_.open(path, os::FileAccess::kRead, os::PageCache::kPast);
  const bool there = number_ == 0 && fetch(0, sizeof header_, &memory_);
  if (number_ != 0) throw os::file_error("the segment " + path + " cannot be read", number_);
  if (!there) return SegmentState::kDamaged;
  header_ = form_at<SegmentHeader>(memory_.data());
  if (!is_intact(header_)) return SegmentState::kDamaged;
  if (header_.version != kSegmentVersion) return SegmentState::kOtherVersion;
  if (!is_sound(header_)) return SegmentState::kDamaged;
  if (header_.uuid != uuid) return SegmentState::kForeign;
  pages_ = std::min(header_.bytes, file_.bytes()) / kPageBytes;
  return SegmentState::kSound;
}

Walk SegmentReader::walk(const Each& each) {
  Walk walk;
  if (!walk_footer(each, &walk)) walk_records(each, &walk);
  return walk;
}

// --------------------------------------------------------------------------------------------------------- footer
bool SegmentReader::walk_footer(const Each& each, Walk* walk) {
  const u64 last = header_.bytes / kPageBytes - 1;
  if (pages_ <= last || !fetch(last, sizeof(SegmentTrailer), &memory_)) return false;
  const SegmentTrailer trailer = form_at<SegmentTrailer>(memory_.data());
  if (!is_sound(trailer, header_, pages_)) return false;
  if (!fetch(trailer.footer_page, trailer.footer_bytes, &memory_) || !is_footer_sound(trailer)) return false;
  walk->sealed = true;
  walk->end_page = trailer.footer_page;
  for (u64 at = 0; at < trailer.footer_bytes;) {
    const FoundRecord record{form_at<RecordHeader>(memory_.data() + at), {}};
    const u8* const head = memory_.data() + at + sizeof(RecordHeader);
    at += footer_entry_bytes(record.header.head_bytes);
    ++walk->records;
    each({record.header, {head, record.header.head_bytes}});
  }
  return true;
}

// Whether the footer in memory_ can be trusted: all its entries are sound and lie as a writer puts them.
bool SegmentReader::is_footer_sound(const SegmentTrailer& trailer) const {
  const u8* const footer = memory_.data();
  const u64 bytes = trailer.footer_bytes;
  if (crc32c(footer, bytes, header_.crc) != trailer.footer_crc) return false;
  u64 page = 1, records = 0;
  for (u64 at = 0; at < bytes; ++records) {
    if (bytes - at < sizeof(RecordHeader)) return false;
    const RecordHeader record = form_at<RecordHeader>(footer + at);
    if (!is_sound(record, header_, trailer.footer_page) || record.page != page) return false;
    if (bytes - at < footer_entry_bytes(record.head_bytes)) return false;
    if (crc32c(footer + at + sizeof record, record.head_bytes, header_.crc) != record.head_crc) return false;
    page = end_page(record);
    at += footer_entry_bytes(record.head_bytes);
  }
  return page == trailer.footer_page && records == trailer.records;
}

// -------------------------------------------------------------------------------------------------------- records
void SegmentReader::walk_records(const Each& each, Walk* walk) {
  while (walk->end_page < pages_ && fetch(walk->end_page, kPageBytes, &memory_)) {
    const RecordHeader record = form_at<RecordHeader>(memory_.data());
    if (!is_sound(record, header_, pages_) || record.page != walk->end_page) return;
    walk->end_page = end_page(record);
    const u64 bytes = sizeof record + record.head_bytes;
    // The page of the header is read again here and may differ now: only `record` is used.
    const bool there = bytes <= kPageBytes || fetch(record.page, bytes, &memory_);
    const std::span<const u8> head{memory_.data() + sizeof record, there ? record.head_bytes : 0u};
    if (!there || crc32c(head.data(), head.size(), header_.crc) != record.head_crc) {
      ++walk->skipped;
      continue;
    }
    ++walk->records;
    each({record, head});
  }
}

bool SegmentReader::read_body(const RecordHeader& record, std::span<u8> to) {
  if (to.size() != record.stored_bytes) throw Error(Code::kInvalid, "memory for a body of another size");
  u32 crc = 0;
  for (u64 done = 0; done < to.size();) {
    const u64 bytes = std::min(kPieceBytes, to.size() - done);
    const bool there = fetch(body_page(record) + done / kPageBytes, bytes, &body_);
    if (number_ != 0) throw os::file_error("the segment " + path_ + " cannot be read", number_);
    if (!there) return false;
    std::memcpy(to.data() + done, body_.data(), bytes);
    crc = crc32c(to.data() + done, bytes, crc);
    done += bytes;
  }
  return crc == record.body_crc;
}

}  // namespace di
