// Errors of the core. One closed set; bindings.cc maps each code to its Python class in one place.
#pragma once

#include <cstdint>
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
  Code code() const { return code_; }
  const std::string& culprit() const { return culprit_; }

 private:
  Code code_;
  std::string culprit_;
  bool told_ = false;
};

// Links in shared memory may have been damaged into a circle: whoever follows them takes a step for each, at most as
// many as there can be.
class Steps {
 public:
  Steps(std::uint64_t most, const char* what) : left_(most), what_(what) {}
  void take() {
    if (left_-- == 0) [[unlikely]]
      throw Error(Code::kCorruptData, std::string(what_) + " has no end");
  }

 private:
  std::uint64_t left_;
  const char* what_;
};

}  // namespace di
