// Errors of the core. Their codes are a closed set; which class of Python each becomes, and what an error without a text
// of its own says, is told in one place: src/di_store/base/errors.py.
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
  kColumnMissing,  // of `column`: a step gives no value for it
  kColumnDiffers,  // of `column` and `lane`: not the value that was stored for this row before
};

class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& text, std::string culprit = "")
      : std::runtime_error(text), code_(code), culprit_(std::move(culprit)) {}
  // Numbers of a writer's columns; the bindings know their names.
  static Error column_missing(u32 column) { return {Code::kColumnMissing, column, kUnknown}; }
  static Error column_differs(u32 column, u32 lane) { return {Code::kColumnDiffers, column, lane}; }
  // The text says itself what helps: its class adds no remedy.
  Error& told() {
    told_ = true;
    return *this;
  }
  // The wait that failed was a short one, as other locks were held meanwhile: patiently() lets them go and waits for
  // this lock (a LockWord; nullptr: for a moment) with none of them held.
  Error& while_holding(void* lock, std::string name) {
    again_ = true;
    lock_ = lock;
    lock_name_ = std::move(name);
    return *this;
  }
  // The client slot that holds the lock which could not be had, or writes the object.
  Error& held_by(u32 slot) {
    holder_ = slot;
    return *this;
  }

  static constexpr u32 kUnknown = ~u32{0};
  Code code() const { return code_; }
  const std::string& culprit() const { return culprit_; }  // who holds up what timed out
  bool is_told() const { return told_; }
  u32 holder() const { return holder_; }  // kUnknown: nobody in particular
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

// Counts the links that somebody follows in shared memory: damage may have bent them into a circle.
class Steps {
 public:
  Steps(u64 most, const char* what) : left_(most), what_(what) {}  // at most as many as there can be
  void take() {
    // mutant: chains-without-an-end
    if (left_-- == 0) [[unlikely]]
      throw Error(Code::kCorruptData, std::string(what_) + " has no end");
  }

 private:
  u64 left_;
  const char* what_;
};

// Inside a handler: throws again what a later try would meet too. Not so: a lock that is held up, memory that is short.
inline void rethrow_lasting() {
  try {
    throw;
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace di
