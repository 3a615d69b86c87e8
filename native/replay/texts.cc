#include "replay/texts.h"

#include <cstring>

namespace di {
namespace {

u64 word_at(const void* at) { return __atomic_load_n(static_cast<const u64*>(at), __ATOMIC_ACQUIRE); }

}  // namespace

std::string read_name(const char (&name)[kNameBytes]) {
  char copy[kNameBytes + 1] = {};
  for (u32 i = 0; i < kNameBytes; i += 8) {
    const u64 word = word_at(name + i);
    std::memcpy(copy + i, &word, 8);
  }
  return copy;
}

void write_name(char (&name)[kNameBytes], const std::string& text) {
  char padded[kNameBytes] = {};
  std::strncpy(padded, text.c_str(), kNameBytes - 1);
  for (u32 i = 0; i < kNameBytes; i += 8) {
    u64 word;
    std::memcpy(&word, padded + i, 8);
    __atomic_store_n(reinterpret_cast<u64*>(name + i), word, __ATOMIC_RELAXED);
  }
}

void write_text(const Heap& heap, u32 block, const std::string& text) {
  u8* at = heap.block(block - 1);
  const u64 size = text.size();
  std::memcpy(at, &size, 8);
  std::memcpy(at + 8, text.data(), text.size());
}

// Reads without a lock, perhaps while the table is dropped and its block reused. Every address is checked to lie within
// the store, and the descriptor's size bounds the text's size. The caller uses the text only if the table is still the
// same afterwards. This is the one place where the thread sanitizer is switched off (docs/concurrency.md).
DI_NO_TSAN bool read_text(const Arena& arena, u32 block, std::string* out) {
  const Descriptor& entry = arena.heap().descriptor(block - 1);
  const u64 offset = __atomic_load_n(&entry.offset, __ATOMIC_ACQUIRE);
  const u64 bytes = __atomic_load_n(&entry.bytes, __ATOMIC_ACQUIRE);
  if (bytes < 8 || offset % 8 != 0 || offset > arena.file_bytes() || bytes > arena.file_bytes() - offset) return false;
  const u8* at = arena.at(offset, bytes);
  const u64 size = __atomic_load_n(reinterpret_cast<const u64*>(at), __ATOMIC_ACQUIRE);
  if (size > bytes - 8) return false;
  out->resize(size);
  for (u64 i = 0; i < size; ++i) (*out)[i] = static_cast<char>(__atomic_load_n(at + 8 + i, __ATOMIC_ACQUIRE));
  return true;
}

}  // namespace di
