// Threads and processes that do everything at once for a while; processes are killed at random moments.
#pragma once

#include <thread>

#include <sys/prctl.h>

#include "kill_fixture.h"
#include "table_fixture.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DI_UNDER_TSAN 1
#endif
#endif

namespace di {

#ifdef DI_UNDER_TSAN
constexpr bool kWithProcesses = false;  // the sanitizer sees threads only, and slows a forked child down beyond use
#else
constexpr bool kWithProcesses = true;
#endif

struct StressPlan {
  u32 threads = 4, processes = 3;
  std::function<void(u64 seed, const std::atomic<bool>& stop)> work;  // until told to stop, or killed
  std::function<void(u64 seed)> after_kill;  // in the parent, when the process of that seed is gone
  std::function<void()> now_and_then;        // in the parent
};

// Returns how many processes were killed.
inline u64 run_stress(const StressPlan& plan, double seconds) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (u32 i = 0; i < plan.threads; ++i) threads.emplace_back([&plan, &stop, i] { plan.work(i + 1, stop); });
  const u64 end = os::now_ns() + static_cast<u64>(seconds * 1e9);
  Random random{42};
  u64 kills = 0, seed = 1000;
  struct Running {
    std::unique_ptr<Child> child;
    u64 seed, until;
  };
  std::vector<Running> running;
  while (os::now_ns() < end) {
    while (kWithProcesses && running.size() < plan.processes) {
      ++seed;
      auto child = std::make_unique<Child>([&plan, seed] {
        // Else a check that fails here leaves it at work, and ctest waits for its output.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        std::atomic<bool> never{false};
        plan.work(seed, never);
        return 0;
      });
      running.push_back({std::move(child), seed, os::now_ns() + 1'000'000 + random.below(60'000'000)});
    }
    for (std::size_t i = 0; i < running.size(); ++i) {
      if (os::now_ns() < running[i].until) continue;
      CHECK(running[i].child->end(SIGKILL) == -SIGKILL);
      ++kills;
      plan.after_kill(running[i].seed);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i--));
    }
    plan.now_and_then();
    os::sleep_ns(1'000'000);
  }
  for (Running& one : running) {
    CHECK(one.child->end(SIGKILL) == -SIGKILL);
    plan.after_kill(one.seed);
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  return kills;
}

// The same on tables that are checked now and then, and at the end.
inline u64 stress_tables(const std::shared_ptr<Arena>& arena, const decltype(StressPlan::work)& work) {
  u64 turn = 0;
  StressPlan plan;
  plan.work = work;
  plan.after_kill = [&](u64) { reap_patiently(arena); };
  plan.now_and_then = [&] {
    if (++turn % 40 == 0) check_tables(arena);
  };
  const u64 kills = run_stress(plan, full_scale() ? 60 : 4);
  check_tables(arena);
  return kills;
}

}  // namespace di
