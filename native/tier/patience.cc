#include "tier/patience.h"

#include <algorithm>

#include "process/clients.h"

namespace di {
namespace {

constexpr u64 kBusyFactor = 10;
constexpr u64 kLookNs = 100'000'000;  // a look at 200 processes takes about 4 ms

}  // namespace

bool Patience::any_stopped(u64 now) {
  if (looked_ns_ != 0 && now - looked_ns_ < kLookNs) return stopped_;
  looked_ns_ = now;
  stopped_ = false;
  for (u32 slot = 0; slot < kMaxClients && !stopped_; ++slot)
    stopped_ =
        memory_.client(slot).state.load() == static_cast<u32>(ClientState::kLive) && may_be_stopped(memory_, slot);
  return stopped_;
}

bool Patience::is_too_long(u64 now, u64 since_ns, u64 limit_ns) {
  const u64 waited = now - std::min(now, since_ns);
  return waited > limit_ns && (waited > kBusyFactor * limit_ns || any_stopped(now));
}

bool Patience::is_over_since(u64 since_ns, u64 limit_ns) { return is_too_long(os::now_ns(), since_ns, limit_ns); }

bool Patience::is_over(u64 limit_ns, u64 progress_ns) {
  const u64 now = os::now_ns();
  const bool rested = ended_ns_ != 0 && now - ended_ns_ > rest_ns_;
  const bool new_wait = ended_ns_ == 0 && now - asked_ns_ > limit_ns;  // whoever waits asks far more often
  asked_ns_ = now;
  if (since_ns_ == 0 || rested || new_wait) {
    since_ns_ = now;
    ended_ns_ = 0;
  }
  const bool over = is_too_long(now, std::max(since_ns_, progress_ns), limit_ns);
  if (over && ended_ns_ == 0) ended_ns_ = now;
  return over;
}

}  // namespace di
