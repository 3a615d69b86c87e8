// When a call gives up waiting: one absolute time, made where a public call enters the core and passed down to each of
// its locks and sleeps. One word, passed by value. Only the named functions make a deadline, so that "only try" and "no
// limit" are never bare numbers.
#pragma once

#include <algorithm>
#include <type_traits>

#include "os/clock.h"

namespace di {

class Deadline {
 public:
  static constexpr Deadline none() { return Deadline(kNever); }
  static constexpr Deadline only_try() { return Deadline(0); }  // no wait at all
  // Negative, infinite, or beyond what the clock can tell (some 290 years): none. A deadline is never early. A long one
  // is up to kTickNs late, because the exact clock costs each call 17 ns more and most calls never wait.
  static Deadline after(double seconds) {
    constexpr double kMostSeconds = 9e9;
    if (!(seconds >= 0) || seconds > kMostSeconds) return none();
    const u64 now = seconds < 1 ? os::now_ns() : os::coarse_ns() + kTickNs;
    return Deadline(now + static_cast<u64>(seconds * 1e9));
  }
  static Deadline in(u64 span_ns) { return Deadline(os::now_ns() + span_ns); }
  // For calls that Python repeats until their own timeout is over: when the slice ends, nothing has happened.
  static Deadline slice() { return Deadline(os::coarse_ns() + 250'000'000); }
  // For work that remains after a call's effect, and for work that a call does for others. The next call can do it too,
  // so it is not worth a long wait.
  static Deadline brief() { return Deadline(os::now_ns() + 20'000'000); }

  bool tries_only() const { return at_ns_ == 0; }
  bool over() const { return at_ns_ != kNever && os::now_ns() >= at_ns_; }
  // Over for `span_ns` already.
  bool over_since(u64 span_ns) const { return at_ns_ < kNever - span_ns && os::now_ns() >= at_ns_ + span_ns; }
  Deadline at_most(u64 span_ns) const { return Deadline(std::min(at_ns_, os::now_ns() + span_ns)); }
  // How long to sleep before looking again, at most `most_ns`.
  u64 left_ns(u64 most_ns) const {
    const u64 now = os::now_ns();
    return std::min(most_ns, at_ns_ - std::min(at_ns_, now));
  }
  // On the clock of os::now_ns(); 0: only tries; ~0: none. Only os/, which sleeps, uses this number; other code uses
  // the functions above.
  u64 at_ns() const { return at_ns_; }

 private:
  static constexpr u64 kNever = ~u64{0};
  static constexpr u64 kTickNs = 10'000'000;  // what os::coarse_ns() may be behind, at 100 ticks a second

  explicit constexpr Deadline(u64 at_ns) : at_ns_(at_ns) {}

  u64 at_ns_;
};

static_assert(sizeof(Deadline) == sizeof(u64) && std::is_trivially_copyable_v<Deadline>);

}  // namespace di
