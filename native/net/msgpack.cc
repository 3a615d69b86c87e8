#include "net/msgpack.h"

#include <cstring>

namespace di::net {
namespace {

template <class T>
T swapped(const u8* at) {  // big-endian
  T value = 0;
  for (u64 i = 0; i < sizeof value; ++i) value = static_cast<T>(value << 8 | at[i]);
  return value;
}

void put(std::string* to, u64 value, u64 bytes) {
  for (u64 i = bytes; i-- > 0;) to->push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

std::optional<u64> MsgpackReader::array() {
  if (left_.empty() || left_[0] >> 4 != 9) return std::nullopt;
  const u64 count = left_[0] & 0xf;
  left_ = left_.subspan(1);
  return count;
}

std::optional<u64> MsgpackReader::number() {
  if (left_.empty()) return std::nullopt;
  const u8 first = left_[0];
  if (first < 0x80) {
    left_ = left_.subspan(1);
    return first;
  }
  if (first < 0xcc || first > 0xcf) return std::nullopt;
  const u64 size = u64{1} << (first - 0xcc);
  if (left_.size() <= size) return std::nullopt;
  const u8* const at = left_.data() + 1;
  const u64 found = size == 1 ? at[0] : size == 2 ? swapped<u16>(at) : size == 4 ? swapped<u32>(at) : swapped<u64>(at);
  left_ = left_.subspan(1 + size);
  return found;
}

bool MsgpackReader::skip(const std::string& text) {
  if (left_.size() < text.size() || std::memcmp(left_.data(), text.data(), text.size()) != 0) return false;
  left_ = left_.subspan(text.size());
  return true;
}

void put_number(std::string* to, u64 value) {
  if (value < 0x80) return to->push_back(static_cast<char>(value));
  const u64 power = value < 0x100 ? 0 : value < 0x10000 ? 1 : value < 0x100000000 ? 2 : 3;
  to->push_back(static_cast<char>(0xcc + power));
  put(to, value, u64{1} << power);
}

void put_array(std::string* to, u64 count) {
  if (count < 16) return to->push_back(static_cast<char>(0x90 | count));
  to->push_back(static_cast<char>(0xdc));
  put(to, count, 2);
}

}  // namespace di::net
