#include "tier/object_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "os/crc32c.h"
#include "tier/log_format.h"

namespace di {
namespace {

constexpr u64 kPieceBytes = u64{1} << 20;

bool is_of(const LogRecord& record, const u8* id, u64 bytes) {
  return record.kind == LogKind::kObject && record.extra_bytes == 0 && record.bytes == bytes &&
         std::memcmp(record.id, id, sizeof record.id) == 0;
}

}  // namespace

Error ObjectReader::not_found() const {
  return Error(Code::kStoreError, "the file of an object is not there: was the folder " + folder_.path() + " emptied?")
      .told();
}

bool ObjectReader::read(const LogPlace& place, const u8* id, std::span<u8> to) {
  const std::string path = folder_.path() + "/" + log_name(place.file);
  const auto damaged = [&] {
    return Error(Code::kCorruptData, "an object that lay on disk is lost: its record in " + path + " at " +
                                         std::to_string(place.offset) + " is damaged; delete it, and put it again")
        .told();
  };
  const os::Blocking scope;
  os::File file;
  if (const int number = file.open(path, os::FileAccess::kRead, os::PageCache::kPast)) {
    if (number == ENOENT) return false;
    throw os::file_error("the file " + path + " cannot be read", number);
  }
  const u64 first = place.offset + sizeof(LogRecord), end = first + to.size();
  const os::SpareBuffers::Borrowed pages(
      memory_, std::min(pages_of(end) * kPageBytes - place.offset / kPageBytes * kPageBytes, kPieceBytes));
  LogRecord record;
  for (u64 at = place.offset / kPageBytes * kPageBytes; at < end; at += kPieceBytes) {
    const u64 wanted = std::min(pages_of(end) * kPageBytes - at, kPieceBytes);
    u64 got = 0;
    if (const int number = file.read(at, pages.data(), wanted, &got))
      throw os::file_error("the file " + path + " cannot be read", number);
    if (at + got < std::min(end, at + wanted)) throw damaged();
    // The record's 64 bytes lie in one page, because a page is a multiple of 64 bytes.
    if (at <= place.offset) {
      std::memcpy(&record, pages.data() + (place.offset - at), sizeof record);
      if (!LogSeal(folder_.uuid(), place.file).is_sound(record, place.offset) || !is_of(record, id, to.size()))
        throw damaged();
    }
    const u64 from = std::max(at, first), until = std::min(at + wanted, end);
    if (from < until) std::memcpy(to.data() + (from - first), pages.data() + (from - at), until - from);
    TierHeader& tier = heap_.memory.tier_header();
    tier.read_bytes.fetch_add(wanted, std::memory_order_relaxed);
    tier.read_calls.fetch_add(1, std::memory_order_relaxed);
  }
  if (crc32c(to.data(), to.size()) != record.body_crc) throw damaged();
  return true;
}

}  // namespace di
