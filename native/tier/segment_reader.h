// Reads segments when a folder is opened: lists their records, and reads whole bodies. It trusts only bytes that the
// checksums confirm. For one thread at a time.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "os/file.h"
#include "tier/segment_format.h"

namespace di {

enum class SegmentState {
  kSound,
  kDamaged,       // not a segment, or cut off within its header
  kOtherVersion,  // of the format
  kForeign,       // of another store
};

struct FoundRecord {
  RecordHeader header;
  std::span<const u8> head;  // valid until the callback returns
};

struct Walk {
  u64 records = 0;
  u64 skipped = 0;      // records whose head image is damaged or cannot be read
  bool sealed = false;  // records come from the footer; else from the records, up to the first unsound header
  u64 end_page = 1;     // page after the last record
};

class SegmentReader {
 public:
  // Throws kAccessDenied or kStoreError when the file cannot be opened or read.
  SegmentState open(const std::string& path, const Uuid& uuid);
  const SegmentHeader& header() const { return header_; }  // of a sound segment
  // Visits all records, by page. A sealed segment costs two sequential reads of 0.2 % of it; any other costs one read
  // per record. Throws what `each` throws.
  Walk walk(const std::function<void(const FoundRecord&)>& each);
  // Reads the body of a record from walk(), as it lies on disk. False: damaged. Throws kStoreError when it cannot be
  // read.
  bool read_body(const RecordHeader& record, std::span<u8> to);

 private:
  using Each = std::function<void(const FoundRecord&)>;
  // False: part of it is missing, or it cannot be read (number_).
  bool fetch(u64 page, u64 bytes, os::AlignedBuffer* into);
  bool walk_footer(const Each& each, Walk* walk);
  bool is_footer_sound(const SegmentTrailer& trailer) const;
  void walk_records(const Each& each, Walk* walk);

  std::string path_;
  SegmentHeader header_;
  os::File file_;
  os::AlignedBuffer memory_, body_;  // two, because a callback of walk() may read bodies
  u64 pages_ = 0;                    // pages in the file, at most as many as the header names
  int number_ = 0;                   // errno of the last fetch()
};

}  // namespace di
