// Errors of the core. One closed set; bindings.cc maps each code to its Python class in one place.
#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

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
  kInterrupted,  // a Python exception (KeyboardInterrupt) is already set
};

class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& text, std::string culprit = "")
      : std::runtime_error(text), code_(code), culprit_(std::move(culprit)) {}
  // The text says itself what helps: its class adds no remedy.
  Error& told() {
    told_ = true;
    return *this;
  }
  bool is_told() const { return told_; }
  // The wait that failed was a short one, as other locks were held meanwhile: patiently() lets them go and waits for
  // this lock (a LockWord; nullptr: for a moment) with none of them held.
  Error& while_holding(void* lock, std::string name) {
    again_ = true;
    lock_ = lock;
    lock_name_ = std::move(name);
    return *this;
  }
  // The client slot that holds the lock which could not be had.
  Error& held_by(std::uint32_t slot) {
    holder_ = slot;
    return *this;
  }
  std::uint32_t holder() const { return holder_; }  // ~0: nobody in particular
  bool is_worth_repeating() const { return again_; }
  void* lock() const { return lock_; }
  const std::string& lock_name() const { return lock_name_; }
  Code code() const { return code_; }
  const std::string& culprit() const { return culprit_; }

 private:
  Code code_;
  std::string culprit_;
  bool told_ = false;
  bool again_ = false;
  void* lock_ = nullptr;
  std::string lock_name_;
  std::uint32_t holder_ = ~std::uint32_t{0};
};

// Links in shared memory may have been damaged into a circle: whoever follows them takes a step for each, at most as
// many as there can be.
class Steps {
 public:
  Steps(std::uint64_t most, const char* what) : left_(most), what_(what) {}
  void take() {
    // mutant: chains-without-an-end
    if (left_-- == 0) [[unlikely]]
      throw Error(Code::kCorruptData, std::string(what_) + " has no end");
  }

 private:
  std::uint64_t left_;
  const char* what_;
};

// Inside a handler: throws on what will not pass by itself. What does: a lock that is held up, memory that is short.
inline void rethrow_lasting() {
  try {
    throw;
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace di
