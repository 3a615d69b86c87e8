// Errors of the core. Their codes are a closed set. One place, src/di_store/base/errors.py, says which Python class
// each code becomes, and what the message of an error without a text is.
#pragma once

#include <new>
#include <stdexcept>
#include <string>

#include "base/types.h"

namespace di {

enum class Code {
  kInvalid,  // ValueError: a bad argument
  kType,     // TypeError
  kStoreNotFound,
  kStoreClosed,
  kStoreFull,
  kCapacity,
  kLayoutMismatch,
  kCorruptData,
  kRowsLost,  // rows cannot be read from the disk: repeat the call once their items are removed
  kObjectNotFound,
  kObjectExists,
  kTableNotFound,
  kTableExists,
  kSchemaMismatch,
  kWriterClosed,
  kEndOfData,
  kAccessDenied,
  kTimeout,
  kStoreError,
  kColumnMissing,  // a step gives no value for `column`
  kColumnDiffers,  // the value of `column` in `lane` differs from the one stored before for this row
};

class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& text, std::string culprit = "")
      : std::runtime_error(text), code_(code), culprit_(std::move(culprit)) {}
  // The core knows columns by number; the bindings add the name.
  static Error column_missing(u32 column) { return {Code::kColumnMissing, column, kUnknown}; }
  static Error column_differs(u32 column, u32 lane) { return {Code::kColumnDiffers, column, lane}; }
  // The text already says what helps: the Python class adds no remedy.
  Error& told() {
    told_ = true;
    return *this;
  }
  // The failed wait was cut short because this thread held another lock. patiently() then waits for `lock` (a LockWord;
  // nullptr: for a moment) while holding none, and repeats the call.
  Error& while_holding(void* lock, std::string name) {
    again_ = true;
    lock_ = lock;
    lock_name_ = std::move(name);
    return *this;
  }
  // The client slot that holds the lock that was not available, or that still writes the object.
  Error& held_by(u32 slot) {
    holder_ = slot;
    return *this;
  }

  static constexpr u32 kUnknown = ~u32{0};
  Code code() const { return code_; }
  const std::string& culprit() const { return culprit_; }  // the process that the timed-out call waited for
  bool is_told() const { return told_; }
  u32 holder() const { return holder_; }  // kUnknown: no known process
  u32 column() const { return column_; }
  u32 lane() const { return lane_; }
  bool is_worth_repeating() const { return again_; }
  void* lock() const { return lock_; }
  const std::string& lock_name() const { return lock_name_; }

 private:
  Error(Code code, u32 column, u32 lane) : std::runtime_error(""), code_(code), column_(column), lane_(lane) {}

  Code code_;
  std::string culprit_;
  bool told_ = false;
  u32 holder_ = kUnknown, column_ = kUnknown, lane_ = kUnknown;
  bool again_ = false;
  void* lock_ = nullptr;
  std::string lock_name_;
};

// Bounds a walk along links in shared memory: damaged links may form a circle.
class Steps {
 public:
  Steps(u64 most, const char* what) : left_(most), what_(what) {}  // `most`: links that an undamaged list can have
  void count_one() {
    if (left_-- == 0) [[unlikely]]
      throw Error(Code::kCorruptData, std::string(what_) + " has no end");
  }

 private:
  u64 left_;
  const char* what_;
};

// Called in a catch block: throws the error again unless a later try may succeed (a lock was held up, or memory short).
inline void rethrow_lasting() {
  try {
    throw;
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace di
