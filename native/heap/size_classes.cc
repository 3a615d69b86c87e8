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

}  // namespace

u32 block_class(u64 bytes) {
  if (bytes > (1u << 20)) return kNone;
  const auto* end = kClasses.bytes.data() + kClasses.count;
  return static_cast<u32>(std::lower_bound(kClasses.bytes.data(), end, static_cast<u32>(bytes)) -
                          kClasses.bytes.data());
}

u64 block_class_bytes(u32 index) {
  if (index >= kClasses.count) [[unlikely]]
    throw Error(Code::kCorruptData, "damaged store: blocks of no size");
  return kClasses.bytes[index];
}

}  // namespace di
