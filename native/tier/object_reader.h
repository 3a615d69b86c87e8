// Reads objects that are not in memory. Each is read from its record in an object log, past the page cache.
#pragma once

#include <span>

#include "tier/body_reader.h"
#include "tier/folder.h"

namespace di {

class ObjectReader {
 public:
  ObjectReader(const Heap& heap, const TierFolder& folder) : heap_(heap), folder_(folder) {}

  // Fills `to` with all bytes of the object whose record is at `place`. Takes no shared lock; releases the GIL. False:
  // the file was removed, so the record lies elsewhere by now, or the object is gone. Throws kCorruptData when the
  // record is damaged, and what file_error() makes.
  bool read(const LogPlace& place, const u8* id, std::span<u8> to);
  static constexpr int kMostMoves = 16;  // of a record, during one search for it
  Error not_found() const;               // the record moved more often than that

 private:
  const Heap& heap_;
  const TierFolder& folder_;
  os::SpareBuffers memory_;
};

}  // namespace di
