// Copies of few bytes each. Many copies share one branch on the size; a call of memcpy would cost more than the copy.
#pragma once

#include <cstring>

#include "base/layout.h"

namespace di {

namespace small_copy {

struct Word16 {
  u64 low, high;
};

template <class T>
void move(u8* to, const u8* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  std::memcpy(to, &value, sizeof(T));
}

// From Least to 2 * Least bytes: whole words from both ends, which overlap in the middle.
template <class T, u32 Words>
void ends(u8* to, const u8* from, u32 bytes) {
  const u32 back = bytes - Words * sizeof(T);
  T head[Words], tail[Words];
  std::memcpy(head, from, sizeof head);
  std::memcpy(tail, from + back, sizeof tail);
  std::memcpy(to, head, sizeof head);
  std::memcpy(to + back, tail, sizeof tail);
}

// Calls each(copy) with the copy(to, from) that fits `bytes`.
template <class Each>
void with_size(u32 bytes, Each each) {
  if (bytes == 1) return each([](u8* to, const u8* from) { *to = *from; });
  if (bytes == 2) return each([](u8* to, const u8* from) { move<u16>(to, from); });
  if (bytes == 4) return each([](u8* to, const u8* from) { move<u32>(to, from); });
  if (bytes == 8) return each([](u8* to, const u8* from) { move<u64>(to, from); });
  if (bytes == 16) return each([](u8* to, const u8* from) { move<Word16>(to, from); });
  if (bytes < 4 || bytes > 128) return each([bytes](u8* to, const u8* from) { std::memcpy(to, from, bytes); });
  if (bytes < 8) return each([bytes](u8* to, const u8* from) { ends<u32, 1>(to, from, bytes); });
  if (bytes < 16) return each([bytes](u8* to, const u8* from) { ends<u64, 1>(to, from, bytes); });
  if (bytes <= 32) return each([bytes](u8* to, const u8* from) { ends<Word16, 1>(to, from, bytes); });
  if (bytes <= 64) return each([bytes](u8* to, const u8* from) { ends<Word16, 2>(to, from, bytes); });
  return each([bytes](u8* to, const u8* from) { ends<Word16, 4>(to, from, bytes); });
}

}  // namespace small_copy

// Packs the values at from[i] + offset, `bytes` each.
inline void copy_each(u8* to, const u8* const* from, u32 offset, u32 count, u32 bytes) {
  small_copy::with_size(bytes, [&](auto copy) {
    for (u32 i = 0; i < count; ++i) copy(to + u64{i} * bytes, from[i] + offset);
  });
}

// Packs `count` values that lie `stride` bytes apart.
inline void copy_strided(u8* to, const u8* from, u64 stride, u32 count, u32 bytes) {
  small_copy::with_size(bytes, [&](auto copy) {
    for (u32 i = 0; i < count; ++i) copy(to + u64{i} * bytes, from + i * stride);
  });
}

}  // namespace di
