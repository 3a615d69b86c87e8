// The part of msgpack that messages of rows use: whole numbers and arrays. Everything else is read and written by the
// Python package.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/types.h"

namespace di::net {

// Reads from the front of some bytes. nullopt or false: something else stands there.
class MsgpackReader {
 public:
  explicit MsgpackReader(std::span<const u8> bytes) : left_(bytes) {}

  std::optional<u64> array();  // the number of its elements, below 16
  bool array(u64 count) { return array() == count; }
  std::optional<u64> number();
  bool skip(const std::string& text);  // exactly these bytes
  bool at_end() const { return left_.empty(); }

 private:
  std::span<const u8> left_;
};

void put_number(std::string* to, u64 value);
void put_array(std::string* to, u64 count);  // then its elements follow; count < 65,536

}  // namespace di::net
