// An object log: a file of records of durable objects, one after the other. docs/object_log.md draws the same map with
// offsets. All numbers are little-endian.
//
//   0        LogHeader
//   64 …     records: LogRecord, extra bytes, the object's bytes; each begins at a multiple of 64
//
// The checksums of a record begin with folder, file and place, so a record that was written elsewhere does not count.
// They hold without the LogHeader, which only says to whom the file belongs.
#pragma once

#include <bit>
#include <string>
#include <vector>

#include "tier/segment_format.h"

namespace di {

constexpr u64 kLogMagic = 0x3130474c4f49443a;  // ":DIOLG01"
constexpr u32 kLogRecordMagic = 0x424f444e;    // "NDOB"
constexpr u32 kLogVersion = 1;

struct LogHeader {
  u64 magic = kLogMagic;
  u32 version = kLogVersion;
  u32 number = 0;  // of the file
  Uuid uuid{};     // of the folder
  u64 epoch = 0;   // of the folder
  u64 zeros[2] = {};
  u32 zero = 0;
  u32 crc = 0;  // checksum of all fields in front of it
};
static_assert(sizeof(LogHeader) == kLogUnit && offsetof(LogHeader, crc) == 60);

enum class LogKind : u8 { kObject = 1, kWeights = 2 };

struct LogRecord {
  u32 magic = kLogRecordMagic;
  LogKind kind = LogKind::kObject;
  u8 zero = 0;
  u16 extra_bytes = 0;  // of weights: the size of WeightsExtra and name
  u64 number = 0;       // the higher of two records with one id counts; a copy has the number of its original
  u64 bytes = 0;        // of the object
  u64 expires_ns = 0;   // by the wall clock; 0: never
  u8 id[20] = {};       // of weights: zeros
  u32 body_crc = 0;     // of extra and object
  u32 crc = 0;          // checksum of all fields in front of it
  u32 mark = 0;         // kMark…, or the nearest one. Any process may write it later
};
static_assert(sizeof(LogRecord) == kLogUnit && offsetof(LogRecord, mark) == 60);

struct WeightsExtra {
  i64 version = 0;
  i64 oldest = 0;  // the oldest version still readable when this one is the newest
};
static_assert(sizeof(WeightsExtra) == 16);
std::vector<u8> extra_of(const WeightsExtra& weights, const std::string& name);

constexpr u32 kMarkCounts = 0;
constexpr u32 kMarkDeleted = ~u32{0};  // the object was deleted: records with this number or a lower one don't count
constexpr u32 kMarkVoid = 0xffff;      // nobody could ever read the object: treat the record as absent
// A single flipped bit never turns one mark into another.
inline u32 mark_of(const LogRecord& record) {
  const auto off = [&](u32 mark) { return std::popcount(record.mark ^ mark); };
  if (off(kMarkCounts) < 8) return kMarkCounts;
  return off(kMarkDeleted) < 8 ? kMarkDeleted : kMarkVoid;
}
inline bool counts(const LogRecord& record) { return mark_of(record) == kMarkCounts; }
inline u64 log_record_bytes(u64 extra, u64 bytes) {
  return (sizeof(LogRecord) + extra + bytes + kLogUnit - 1) / kLogUnit * kLogUnit;
}

void set_crc(LogHeader* header);
bool is_intact(const LogHeader& header);  // for headers of any version

// The checksums of records of one file.
class LogSeal {
 public:
  LogSeal(const Uuid& uuid, u32 file);
  u32 of(const LogRecord& record, u64 offset) const;
  // Whether these bytes were written as a record at this offset. Nothing else in them may be used before.
  bool is_sound(const LogRecord& record, u64 offset) const;

 private:
  u32 start_;
};

}  // namespace di
