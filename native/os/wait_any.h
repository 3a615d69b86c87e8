// Waiting on many futex words at once.
#pragma once

#include <atomic>
#include <span>

#include "base/types.h"

namespace di::os {

struct ExpectedWord {
  std::atomic<u32>* word;
  u32 expected;
};
// Waits until one of them differs from its expected value. Up to 128 words with Linux 5.16 or later; otherwise it looks
// every 2 ms, and a change of the first word alone ends the wait at once.
void futex_wait_any(std::span<const ExpectedWord> words, u64 timeout_ns);

}  // namespace di::os
