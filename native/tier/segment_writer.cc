// See segment_writer.h.
#include "tier/segment_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "os/crc32c.h"
#include "os/filesystem.h"

namespace di {

namespace {

constexpr u64 kPieceBytes = SegmentWriter::kMemoryBytes;  // bytes written at once

template <class T>
std::span<const u8> bytes_of(const T& form) {
  return {reinterpret_cast<const u8*>(&form), sizeof form};
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------- begin
SegmentWriter::SegmentWriter(const std::string& folder, const SegmentOwner& owner)
    : folder_(folder), path_(folder + "/" + segment_name(owner.number)), pid_(os::pid()) {
  header_.uuid = owner.uuid;
  header_.epoch = owner.epoch;
  header_.incarnation = owner.incarnation;
  header_.number = owner.number;
  header_.writer = owner.writer;
}

SegmentWriter SegmentWriter::create(const std::string& folder, const SegmentOwner& owner, u64 bytes) {
  SegmentWriter writer(folder, owner);
  if (const int number = writer.file_.open(writer.path_, os::FileAccess::kCreate, os::PageCache::kPast))
    writer.fail("be made", number);
  try {
    writer.begin(bytes);
  } catch (...) {
    os::remove_file(writer.path_);
    throw;
  }
  return writer;
}

SegmentWriter SegmentWriter::recycle(const std::string& folder, const SegmentOwner& owner, u64 bytes) {
  SegmentWriter writer(folder, owner);
  if (const int number = writer.file_.open(writer.path_, os::FileAccess::kReadWrite, os::PageCache::kPast))
    writer.fail("be opened", number);
  writer.begin(std::max(bytes, writer.file_.bytes()));
  // Before any record: otherwise a power cut could leave the old header over new bodies, and its records would seem to
  // exist.
  writer.sync();
  return writer;
}

void SegmentWriter::begin(u64 bytes) {
  header_.bytes = std::max<u64>(pages_of(bytes), 3) * kPageBytes;
  if (header_.bytes / kPageBytes > u64{1} << 32) throw Error(Code::kInvalid, "a segment has at most 2^32 pages");
  if (const int number = file_.preallocate(header_.bytes)) fail("get its blocks", number);
  set_crc(&header_);
  write_padded(0, bytes_of(header_));
}

// ------------------------------------------------------------------------------------------------------- checking
void SegmentWriter::fail(const char* what, int number) {
  failed_ = true;
  throw os::file_error("the segment " + path_ + " cannot " + what, number);
}

void SegmentWriter::check_usable() const {
  if (pid_ != os::pid())
    throw Error(Code::kStoreError, "the segment " + path_ + " is written by the process that this one was forked from")
        .told();
  if (failed_)
    throw Error(Code::kStoreError, "the segment " + path_ + " accepts no more records, since a write has failed")
        .told();
}

bool SegmentWriter::has_room(u64 head_bytes, u64 body_bytes) const {
  const u64 pages = header_.bytes / kPageBytes;
  if (sealed_ || failed_ || head_bytes > kMostHeadBytes || body_bytes / kPageBytes >= pages) return false;
  const u64 footer = footer_.size() + footer_entry_bytes(head_bytes);
  return footer <= kMostFooterBytes &&
         next_page_ + record_pages(head_bytes, body_bytes) + pages_of(footer) + 1 <= pages;
}

// -------------------------------------------------------------------------------------------------------- writing
void SegmentWriter::make_room(u64 bytes) {
  if (memory_.bytes() >= bytes) return;
  memory_.clear();  // first, so that there are never two buffers
  memory_ = os::AlignedBuffer(bytes);
}

void SegmentWriter::write(u64 page, u64 bytes) {
  if (const int number = file_.write(page * kPageBytes, memory_.data(), bytes)) fail("be written", number);
  written_bytes_ += bytes;
}

u32 SegmentWriter::write_padded(u64 page, std::span<const u8> from) {
  u32 crc = 0;
  make_room(std::min(kPieceBytes, pages_of(from.size()) * kPageBytes));
  for (u64 done = 0; done < from.size(); done += kPieceBytes) {
    const u64 bytes = std::min(kPieceBytes, from.size() - done), padded = pages_of(bytes) * kPageBytes;
    std::memcpy(memory_.data(), from.data() + done, bytes);
    std::memset(memory_.data() + bytes, 0, padded - bytes);
    crc = crc32c(memory_.data(), bytes, crc);  // of the copy, so that the sum is of the bytes written
    write(page + done / kPageBytes, padded);
  }
  return crc;
}

u8* SegmentWriter::body_memory(u64 head_bytes, u64 body_bytes) {
  check_usable();
  if (!has_room(head_bytes, body_bytes) || record_pages(head_bytes, body_bytes) * kPageBytes > kPieceBytes)
    return nullptr;
  make_room(record_pages(head_bytes, body_bytes) * kPageBytes);
  return memory_.data() + head_pages(head_bytes) * kPageBytes;
}

void SegmentWriter::write_at_once(RecordHeader* header, const Record& record) {
  const u64 bytes = record_pages(record.head.size(), record.body.size()) * kPageBytes;
  const u64 head_end = sizeof *header + record.head.size(), body = head_pages(record.head.size()) * kPageBytes;
  const u8* const at = record.body.data();
  if (memory_.data() == nullptr || at < memory_.data() || at >= memory_.data() + memory_.bytes()) {
    make_room(bytes);
    if (!record.body.empty()) std::memcpy(memory_.data() + body, at, record.body.size());
  } else if (at != memory_.data() + body || bytes > memory_.bytes()) {
    throw Error(Code::kInvalid, "body_memory() was asked for another size");
  }
  header->body_crc = crc32c(memory_.data() + body, record.body.size());
  set_crc(header, header_);
  std::memcpy(memory_.data(), header, sizeof *header);
  if (!record.head.empty()) std::memcpy(memory_.data() + sizeof *header, record.head.data(), record.head.size());
  std::memset(memory_.data() + head_end, 0, body - head_end);
  std::memset(memory_.data() + body + record.body.size(), 0, bytes - body - record.body.size());
  write(header->page, bytes);
}

void SegmentWriter::write_in_pieces(RecordHeader* header, const Record& record) {
  header->body_crc = write_padded(body_page(*header), record.body);
  set_crc(header, header_);
  DI_FAULT("segment.body_written");
  std::vector<u8> front(sizeof *header + record.head.size());
  std::memcpy(front.data(), header, sizeof *header);
  if (!record.head.empty()) std::memcpy(front.data() + sizeof *header, record.head.data(), record.head.size());
  write_padded(header->page, front);
}

RecordPlace SegmentWriter::append(const Record& record) {
  check_usable();
  if (!has_room(record.head.size(), record.body.size()))
    throw Error(Code::kInvalid,
                "a record of " + std::to_string(record.body.size()) + " bytes does not fit into " + path_);
  RecordHeader header;
  header.kind = record.kind;
  header.codec = record.codec;
  header.flags = record.flags;
  header.uid = record.uid;
  header.incarnation = header_.incarnation;
  header.stored_bytes = record.body.size();
  header.raw_bytes = record.codec == 0 ? record.body.size() : record.raw_bytes;
  header.page = static_cast<u32>(next_page_);
  header.head_bytes = static_cast<u32>(record.head.size());
  header.head_crc = crc32c(record.head.data(), record.head.size(), header_.crc);
  const u64 pages = record_pages(record.head.size(), record.body.size());
  const u64 entry = footer_.size();
  footer_.resize(entry + footer_entry_bytes(record.head.size()),
                 0);  // first: bad_alloc must not follow a write
  try {
    DI_FAULT("segment.before_write");
    if (pages * kPageBytes <= kPieceBytes)
      write_at_once(&header, record);
    else
      write_in_pieces(&header, record);
  } catch (...) {
    footer_.resize(entry);
    throw;
  }
  DI_FAULT("segment.written");
  std::memcpy(footer_.data() + entry, &header, sizeof header);
  if (!record.head.empty()) std::memcpy(footer_.data() + entry + sizeof header, record.head.data(), record.head.size());
  next_page_ += pages;
  ++records_;
  return {header_.number, static_cast<u32>(body_page(header)), header.page, static_cast<u32>(pages)};
}

void SegmentWriter::sync() {
  check_usable();
  if (const int number = file_.sync()) fail("be synced", number);
  if (!named_) {
    if (const int number = os::sync_folder(folder_)) fail("be synced in its folder", number);
    named_ = true;
  }
}

void SegmentWriter::seal() {
  check_usable();
  if (sealed_) return;
  sealed_ = true;  // even on failure: a later record could overlap part of the footer
  SegmentTrailer trailer;
  trailer.records = records_;
  trailer.incarnation = header_.incarnation;
  trailer.footer_bytes = footer_.size();
  trailer.footer_page = static_cast<u32>(next_page_);
  trailer.footer_crc = crc32c(footer_.data(), footer_.size(), header_.crc);
  set_crc(&trailer, header_);
  write_padded(next_page_, footer_);
  DI_FAULT("segment.footer_written");
  write_padded(header_.bytes / kPageBytes - 1, bytes_of(trailer));
  footer_ = {};
}

}  // namespace di
