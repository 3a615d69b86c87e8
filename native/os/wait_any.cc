#include "os/wait_any.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "os/os.h"
#include "os/syscalls.h"

namespace di::os {
namespace {

constexpr u64 kPollNs = 2'000'000;
constexpr u64 kMostWords = 128;  // the kernel's limit

// The kernel's call, which the C library has no name for yet. Returns 0 or an errno.
int wait_any_in_kernel(std::span<const ExpectedWord> words, u64 timeout_ns) {
  constexpr long kCall = 449;
  struct Entry {
    u64 expected, address;
    u32 flags, reserved;
  };
  constexpr u32 kOf32Bits = 2;  // and shared: the waiters are other processes with the same page at other addresses
  Entry entries[kMostWords];
  u32 count = 0;
  for (const ExpectedWord& each : words)
    entries[count++] = {each.expected, reinterpret_cast<u64>(each.word), kOf32Bits, 0};
  const u64 end_ns = now_ns() + timeout_ns;
  const timespec end{static_cast<time_t>(end_ns / 1'000'000'000u), static_cast<long>(end_ns % 1'000'000'000u)};
  if (const int number = refused("futex_waitv"); number != 0) return number;
  return syscall(kCall, entries, count, 0, &end, CLOCK_MONOTONIC) < 0 ? errno : 0;
}

bool all_as_expected(std::span<const ExpectedWord> words) {
  return std::all_of(words.begin(), words.end(), [](const ExpectedWord& each) {
    return each.word->load(std::memory_order_seq_cst) == each.expected;
  });
}

}  // namespace

void futex_wait_any(std::span<const ExpectedWord> words, u64 timeout_ns) {
  static std::atomic<bool> lacks{false};  // an older kernel, or a sandbox that forbids the call
  if (words.size() <= kMostWords && !lacks.load(std::memory_order_relaxed)) {
    const int number = wait_any_in_kernel(words, timeout_ns);
    if (number == 0 || number == EAGAIN || number == EINTR || number == ETIMEDOUT) return;
    lacks.store(true, std::memory_order_relaxed);
  }
  const u64 end = now_ns() + timeout_ns;
  for (u64 now = now_ns(); now < end && all_as_expected(words); now = now_ns())
    futex_wait(*words.front().word, words.front().expected, std::min(end - now, kPollNs));
}

}  // namespace di::os
