// Reads an object log from front to back, and trusts nothing in it: it skips a damaged record and looks for the next
// sound one. The log ends after the last sound record; a kill or a power cut may leave other bytes there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "os/file.h"
#include "tier/log_format.h"

namespace di {

enum class LogState {
  kSound,
  kForeign,       // of another folder
  kOtherVersion,  // written by another version of Di-store
};

struct LogWalk {
  u64 records = 0;
  u64 damaged = 0;  // gaps between sound records, and records with changed bytes
  u64 end = 0;      // offset after the last sound record
};

class LogReader {
 public:
  // Throws what file_error() makes, if the file cannot be read. A file with a damaged header is still read.
  LogState open(const std::string& path, const Uuid& uuid, u32 number);

  // A sound record. Its bytes are checked when they are copied.
  class SoundRecord {
   public:
    const LogRecord& record() const { return record_; }
    u64 offset() const { return offset_; }
    // For weights only. False: damaged.
    bool extra(WeightsExtra* extra, std::string* name) const;
    bool copy_to(u8* to) const;  // all of the object's bytes; false: they are damaged
   private:
    friend class LogReader;
    LogReader* reader_ = nullptr;
    LogRecord record_;
    u64 offset_ = 0;
  };
  using Each = std::function<void(const SoundRecord&)>;
  LogWalk walk(const Each& each);
  SoundRecord at(u64 offset);  // a record that walk() found. Throws kCorruptData if it is no longer sound

 private:
  bool fetch(u64 offset, u64 bytes);  // into the window; false: the file is shorter
  const u8* window_at(u64 offset) const { return window_.data() + (offset - window_start_); }
  u64 next_sound(u64 from);  // the offset of a sound record; 0: there is none
  bool read_record(u64 offset, LogRecord* record);

  std::string path_;
  os::File file_;
  LogSeal seal_{{}, 0};
  u64 bytes_ = 0;
  std::vector<u8> window_;
  u64 window_start_ = 0, window_bytes_ = 0;
};

}  // namespace di
