#include "tier/log_format.h"

#include <cstring>

#include "os/crc32c.h"

namespace di {

std::vector<u8> extra_of(const WeightsExtra& weights, const std::string& name) {
  std::vector<u8> extra(sizeof weights + name.size());
  std::memcpy(extra.data(), &weights, sizeof weights);
  std::memcpy(extra.data() + sizeof weights, name.data(), name.size());
  return extra;
}

void set_crc(LogHeader* header) { header->crc = crc32c(header, offsetof(LogHeader, crc)); }

bool is_intact(const LogHeader& header) {
  return header.magic == kLogMagic && header.crc == crc32c(&header, offsetof(LogHeader, crc));
}

LogSeal::LogSeal(const Uuid& uuid, u32 file) : start_(crc32c(&file, sizeof file, crc32c(uuid.data(), uuid.size()))) {}

u32 LogSeal::of(const LogRecord& record, u64 offset) const {
  return crc32c(&record, offsetof(LogRecord, crc), crc32c(&offset, sizeof offset, start_));
}

bool LogSeal::is_sound(const LogRecord& record, u64 offset) const {
  return record.magic == kLogRecordMagic && record.crc == of(record, offset);
}

}  // namespace di
