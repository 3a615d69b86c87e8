// A checkpoint file, open for reading: finds its records. Damage raises kCorruptData.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "tier/segment_reader.h"

namespace di {

class SavedFile {
 public:
  SavedFile(const std::string& path, const Uuid& uuid);
  // The head of the record at this page, and its header in *header.
  const std::vector<u8>& head(u32 page, RecordHeader* header) const;
  std::span<const u8> body(const RecordHeader& header);  // as stored; valid until the next call
  RecordHeader with_body_at(u32 page) const;             // the record whose body begins there
  const std::string& path() const { return path_; }
  u64 bytes() const { return reader_.header().bytes; }
  u64 filled_bytes() const { return filled_bytes_; }  // bytes of records in the file

 private:
  struct SavedRecord {
    RecordHeader header;
    std::vector<u8> head;
  };
  [[noreturn]] void damaged(const std::string& what) const;

  std::string path_;
  SegmentReader reader_;
  std::map<u32, SavedRecord> records_;  // by page
  std::map<u32, u32> by_body_page_;
  std::vector<u8> body_;  // reused, because fresh pages cost as much as a read from a drive
  u64 filled_bytes_ = 0;
};

}  // namespace di
