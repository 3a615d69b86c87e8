// Numbers by their width, and words that several processes read and write.
#pragma once

#include <atomic>
#include <cstdint>

namespace di {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
template <class T>
using Shared = std::atomic<T>;
static_assert(Shared<u32>::is_always_lock_free && Shared<u64>::is_always_lock_free);
static_assert(sizeof(Shared<u64>) == 8 && sizeof(Shared<u32>) == 4);

}  // namespace di
