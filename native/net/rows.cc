#include "net/rows.h"

#include <cstring>

namespace di::net {
namespace {

constexpr u64 kAlignment = 16;

template <class T>
T swapped(const u8* at) {  // big-endian
  T value = 0;
  for (u64 i = 0; i < sizeof value; ++i) value = static_cast<T>(value << 8 | at[i]);
  return value;
}

// Reads msgpack from the front of some bytes.
class Reader {
 public:
  explicit Reader(std::span<const u8> bytes) : left_(bytes) {}

  std::optional<u64> array() {  // of less than 16
    if (left_.empty() || left_[0] >> 4 != 9) return std::nullopt;
    const u64 count = left_[0] & 0xf;
    left_ = left_.subspan(1);
    return count;
  }
  bool array(u64 count) { return array() == count; }
  std::optional<u64> number() {
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
    const u64 found = size == 1   ? at[0]
                      : size == 2 ? swapped<u16>(at)
                      : size == 4 ? swapped<u32>(at)
                                  : swapped<u64>(at);
    left_ = left_.subspan(1 + size);
    return found;
  }
  std::optional<RowRun> run(const std::vector<std::string>& forms) {
    if (!array(8)) return std::nullopt;
    const auto seq = number();
    if (!seq) return std::nullopt;
    for (u64 form = 0; form < forms.size(); ++form) {
      if (!take(forms[form])) continue;
      const auto count = number();
      return count ? std::optional(RowRun{*seq, *count, form}) : std::nullopt;
    }
    return std::nullopt;
  }
  bool at_end() const { return left_.empty(); }

 private:
  bool take(const std::string& text) {
    if (left_.size() < text.size() || std::memcmp(left_.data(), text.data(), text.size()) != 0) return false;
    left_ = left_.subspan(text.size());
    return true;
  }

  std::span<const u8> left_;
};

void put(std::string* to, u64 value, u64 bytes) {
  for (u64 i = bytes; i-- > 0;) to->push_back(static_cast<char>(value >> (8 * i)));
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

template <class T>
void put_column(std::vector<u8>* to, std::span<const T> values) {
  const auto* const at = reinterpret_cast<const u8*>(values.data());
  to->insert(to->end(), at, at + values.size_bytes());
  to->resize((to->size() + kAlignment - 1) / kAlignment * kAlignment);
}

}  // namespace

std::optional<RowRuns> RowRuns::of(std::span<const u8> meta, const std::vector<std::string>& forms) {
  Reader reader(meta);
  if (!reader.array(3)) return std::nullopt;
  const auto epoch = reader.number(), acknowledged = epoch ? reader.number() : std::nullopt;
  if (!acknowledged) return std::nullopt;
  RowRuns found{*epoch, *acknowledged, {}};
  const auto count = reader.array();
  if (!count || *count == 0) return std::nullopt;
  for (u64 i = 0; i < *count; ++i) {
    const auto run = reader.run(forms);
    if (!run) return std::nullopt;
    found.runs.push_back(*run);
  }
  return reader.at_end() ? std::optional(std::move(found)) : std::nullopt;
}

RowAcknowledgement::RowAcknowledgement(u64 last, u64 epoch, u64 tables, std::span<const u32> counts,
                                       std::span<const u64> keys, std::span<const i32> lanes,
                                       std::span<const i64> starts) {
  put_array(&meta, 5);
  put_number(&meta, last);
  put_number(&meta, epoch);
  put_array(&meta, counts.size() / tables);
  for (u64 i = 0; i < counts.size(); ++i) {
    if (i % tables == 0) put_array(&meta, tables);
    put_number(&meta, counts[i]);
  }
  meta.append("\xc4\x00\x90", 3);  // no failure, no warnings
  if (keys.empty()) return;
  put_column(&body, keys);
  put_column(&body, lanes);
  put_column(&body, starts);
}

}  // namespace di::net
