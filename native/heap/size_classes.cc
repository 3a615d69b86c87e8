#include "heap/size_classes.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/status.h"

namespace di {
namespace {

struct ClassTable {
  std::array<u32, kBlockClasses> bytes{};
  u32 count = 0;
  constexpr ClassTable() {
    u32 size = kMinBlockBytes;
    while (size <= (1u << 20)) {
      bytes[count++] = size;
      const u32 power = std::bit_floor(size);
      size += power < 1024 ? std::max(64u, power / 4) : power / 8;
    }
  }
};
constexpr ClassTable kClasses;
static_assert(kClasses.count <= kBlockClasses && kClasses.bytes[kClasses.count - 1] == 1u << 20);

// The class is computed, not searched for, because every read of an object needs its block's size twice. Below 1 KiB a
// power of two is divided into 4 classes, from there on into 8.
constexpr u32 class_of(u64 bytes) {
  const u64 least = std::max(bytes, kMinBlockBytes);
  const u32 parts_bits = least < 1024 ? 2 : 3;
  const u32 step_bits = static_cast<u32>(std::bit_width(least)) - 1 - parts_bits;
  const u32 before = (step_bits - 7) << parts_bits;  // classes of the lower powers of two, less 4 or 8; may wrap
  return before + static_cast<u32>((least - 1) >> step_bits) + 1;
}

// Whether the computed classes agree with the table, at both ends of each class.
constexpr bool is_agreed() {
  for (u32 index = 0, least = 0; index < kClasses.count; least = kClasses.bytes[index++] + 1)
    if (class_of(least) != index || class_of(kClasses.bytes[index]) != index) return false;
  return true;
}
static_assert(is_agreed());

}  // namespace

u32 block_class(u64 bytes) { return bytes > (1u << 20) ? kNone : class_of(bytes); }

u64 block_class_bytes(u32 index) {
  if (index >= kClasses.count) [[unlikely]]
    throw Error(Code::kCorruptData, "damaged store: blocks of an unknown size");
  return kClasses.bytes[index];
}

}  // namespace di
