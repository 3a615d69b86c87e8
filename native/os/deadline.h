// When a call gives up waiting: one absolute time, made where a public call enters the core and carried down to every
// lock and every sleep of it.
#pragma once

#include <algorithm>

#include "os/os.h"

namespace di {

class Deadline {
 public:
  // As os::now_ns(); 0: only tries; ~0: none.
  Deadline(u64 at_ns) : at_ns_(at_ns) {}  // NOLINT(google-explicit-constructor)
  static Deadline none() { return {~u64{0}}; }
  static Deadline only_try() { return {0}; }
  // Negative, infinite, or beyond what the clock can tell (some 290 years): none. Never early; long ones up to kTickNs
  // late, since most calls never look at theirs, and the exact clock costs them 17 ns more.
  static Deadline after(double seconds) {
    constexpr double kMostSeconds = 9e9;
    if (!(seconds >= 0) || seconds > kMostSeconds) return none();
    const u64 now = seconds < 1 ? os::now_ns() : os::coarse_ns() + kTickNs;
    return {now + static_cast<u64>(seconds * 1e9)};
  }
  static Deadline in(u64 span_ns) { return {os::now_ns() + span_ns}; }
  // Of calls that Python repeats until their own timeout is over: nothing has happened by then.
  static Deadline slice() { return {os::coarse_ns() + 250'000'000}; }
  // Of what is left to do when a call has had its effect, and of what a call does for others on its way: it may be left
  // to the next call, so that it is not worth a long wait.
  static Deadline brief() { return {os::now_ns() + 20'000'000}; }

  bool tries_only() const { return at_ns_ == 0; }
  bool over() const { return at_ns_ != ~u64{0} && os::now_ns() >= at_ns_; }
  Deadline at_most(u64 span_ns) const { return {std::min(at_ns_, os::now_ns() + span_ns)}; }
  u64 at_ns() const { return at_ns_; }
  operator u64() const { return at_ns_; }  // NOLINT(google-explicit-constructor)

 private:
  static constexpr u64 kTickNs = 10'000'000;  // what os::coarse_ns() may be behind, at 100 ticks a second
  u64 at_ns_;
};

}  // namespace di
