#include "objects/ids.h"

#include <cstring>

#include "base/status.h"
#include "os/os.h"

namespace di {

std::string id_text(const Id& id) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (const u8 byte : id) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

void make_fresh_id(const Memory& memory, Id& id) {
  constexpr u64 kCounterBytes = 6, kLast = (u64{1} << (8 * kCounterBytes)) - 1;
  struct Fresh {
    u64 counter;
    u8 prefix[8];
  };
  static_assert(kHomeBytes + sizeof(Fresh::prefix) + kCounterBytes == sizeof(Id));
  // This page reads 0 in a forked child, so the child draws a prefix of its own. Callers hold the GIL.
  static auto* const fresh = reinterpret_cast<Fresh*>(os::map_wiped_on_fork());
  if (fresh == nullptr) throw Error(Code::kCapacity, "the kernel gives no page that is wiped in a forked child");
  if (fresh->counter == 0) os::random_bytes(fresh->prefix, sizeof fresh->prefix);
  const u64 number = ++fresh->counter;
  if (number == kLast) fresh->counter = 0;  // the next id has another prefix
  std::memcpy(id, home_of(memory), kHomeBytes);
  std::memcpy(id + kHomeBytes, fresh->prefix, sizeof fresh->prefix);
  std::memcpy(id + kHomeBytes + sizeof fresh->prefix, &number, kCounterBytes);  // little-endian: its low bytes
}

}  // namespace di
