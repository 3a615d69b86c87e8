#include "tier/log_reader.h"

#include <algorithm>
#include <cstring>

#include "os/crc32c.h"

namespace di {
namespace {

constexpr u64 kWindow = u64{4} << 20;

}  // namespace

LogState LogReader::open(const std::string& path, const Uuid& uuid, u32 number) {
  path_ = path;
  if (const int failed = file_.open(path, os::FileAccess::kRead, os::PageCache::kThrough))
    throw os::file_error("the file " + path + " cannot be read", failed);
  file_.expect_one_pass();
  bytes_ = file_.bytes();
  seal_ = LogSeal(uuid, number);
  window_bytes_ = 0;
  LogHeader header;
  if (!fetch(0, sizeof header)) return LogState::kSound;  // too short for a record too
  std::memcpy(&header, window_at(0), sizeof header);
  if (!is_intact(header)) return LogState::kSound;
  if (header.uuid != uuid) return LogState::kForeign;
  return header.version == kLogVersion ? LogState::kSound : LogState::kOtherVersion;
}

bool LogReader::fetch(u64 offset, u64 bytes) {
  if (offset > bytes_ || bytes > bytes_ - offset) return false;
  if (offset >= window_start_ && offset + bytes <= window_start_ + window_bytes_) return true;
  window_.resize(std::max(kWindow, bytes));
  const u64 wanted = std::min<u64>(window_.size(), bytes_ - offset);
  if (window_bytes_ != 0) file_.drop_cache(window_start_, window_bytes_);
  window_start_ = offset;
  window_bytes_ = 0;
  u64 got = 0;
  if (const int number = file_.read(offset, window_.data(), wanted, &got))
    throw os::file_error("the file " + path_ + " cannot be read", number);
  window_bytes_ = got;
  return got >= bytes;
}

bool LogReader::read_record(u64 offset, LogRecord* record) {
  if (!fetch(offset, sizeof *record)) return false;
  std::memcpy(record, window_at(offset), sizeof *record);
  if (!seal_.is_sound(*record, offset)) return false;
  const u64 left = bytes_ - offset - sizeof *record;
  return record->extra_bytes <= left && record->bytes <= left - record->extra_bytes;
}

u64 LogReader::next_sound(u64 from) {
  LogRecord record;
  for (u64 at = from; fetch(at, sizeof record); at += kLogUnit)
    if (read_record(at, &record)) return at;
  return 0;
}

LogWalk LogReader::walk(const Each& each) {
  LogWalk walk;
  SoundRecord found;
  found.reader_ = this;
  for (u64 at = kLogUnit;;) {
    if (!read_record(at, &found.record_)) {
      at = next_sound(at + kLogUnit);
      if (at == 0) return walk;
      ++walk.damaged;
      continue;
    }
    found.offset_ = at;
    ++walk.records;
    at += log_record_bytes(found.record_.extra_bytes, found.record_.bytes);
    walk.end = at;
    each(found);
  }
}

LogReader::SoundRecord LogReader::at(u64 offset) {
  SoundRecord found;
  found.reader_ = this;
  found.offset_ = offset;
  if (!read_record(offset, &found.record_))
    throw Error(Code::kCorruptData, "the file " + path_ + " has changed while it was read").told();
  return found;
}

bool LogReader::SoundRecord::extra(WeightsExtra* extra, std::string* name) const {
  const u64 bytes = record_.extra_bytes, at = offset_ + sizeof record_;
  if (bytes <= sizeof *extra || bytes > sizeof *extra + kNameBytes || !reader_->fetch(at, bytes)) return false;
  std::memcpy(extra, reader_->window_at(at), sizeof *extra);
  name->assign(reinterpret_cast<const char*>(reader_->window_at(at)) + sizeof *extra, bytes - sizeof *extra);
  return true;
}

// A small object is read through the window, a large one directly to its place.
bool LogReader::SoundRecord::copy_to(u8* to) const {
  const u64 at = offset_ + sizeof record_, extra = record_.extra_bytes, bytes = record_.bytes;
  if (extra + bytes <= kWindow) {
    if (!reader_->fetch(at, extra + bytes)) return false;
    const u8* const from = reader_->window_at(at);
    if (crc32c(from, extra + bytes) != record_.body_crc) return false;
    std::memcpy(to, from + extra, bytes);
    return true;
  }
  if (!reader_->fetch(at, extra)) return false;
  const u32 before = crc32c(reader_->window_at(at), extra);
  u64 got = 0;
  if (const int number = reader_->file_.read(at + extra, to, bytes, &got))
    throw os::file_error("the file " + reader_->path_ + " cannot be read", number);
  reader_->file_.drop_cache(at + extra, bytes);
  return got == bytes && crc32c(to, bytes, before) == record_.body_crc;
}

}  // namespace di
