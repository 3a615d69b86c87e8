// Segments with random records, of which everything is known.
#pragma once

#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "tier/segment_reader.h"
#include "tier/segment_writer.h"

using Bytes = std::vector<di::u8>;

inline Bytes some_bytes(std::mt19937* random, di::u64 bytes) {
  Bytes made(bytes);
  for (di::u8& byte : made) byte = static_cast<di::u8>((*random)());
  return made;
}

struct KnownRecord {
  di::u64 uid = 0;
  Bytes head, body;
  di::u8 codec = 0;
  di::u64 raw_bytes = 0;
  di::RecordPlace place;
};

inline KnownRecord some_record(std::mt19937* random, di::u64 uid, di::u64 most_head, di::u64 most_body) {
  KnownRecord made;
  made.uid = uid;
  made.head = some_bytes(random, (*random)() % (most_head + 1));
  made.body = some_bytes(random, (*random)() % (most_body + 1));
  made.codec = static_cast<di::u8>((*random)() % 3);
  made.raw_bytes = made.codec == 0 ? made.body.size() : (*random)();
  return made;
}

inline void append(di::SegmentWriter* writer, KnownRecord* known) {
  di::Record record;
  record.kind = known->uid % 2 == 0 ? di::RecordKind::kChunk : di::RecordKind::kObject;
  record.uid = known->uid;
  record.head = known->head;
  record.body = known->body;
  record.raw_bytes = known->raw_bytes;
  record.codec = known->codec;
  record.flags = static_cast<di::u16>(known->uid * 3);
  known->place = writer->append(record);
}

// Whether a record that was found is this one, in every byte but those of the body.
inline bool is_same(const di::FoundRecord& found, const KnownRecord& known) {
  const di::RecordHeader& header = found.header;
  return header.uid == known.uid && header.page == known.place.record_page && header.codec == known.codec &&
         (header.kind == di::RecordKind::kChunk) == (known.uid % 2 == 0) && header.raw_bytes == known.raw_bytes &&
         header.flags == static_cast<di::u16>(known.uid * 3) && header.stored_bytes == known.body.size() &&
         di::body_page(header) == known.place.page && Bytes(found.head.begin(), found.head.end()) == known.head;
}

inline Bytes bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good());
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

inline void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  CHECK(file.good());
}
