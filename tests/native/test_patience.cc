// How long calls wait while nothing goes on: longer while every process of the store runs.
#include "store_fixture.h"
#include "tier/patience.h"

using namespace di;

namespace {

constexpr u64 kLimitNs = 200'000'000, kRestNs = 50'000'000, kLooksNs = 150'000'000;

u64 ago(u64 ns) { return os::now_ns() - ns; }

// The store is asked only now and then whether a process is stopped.
bool is_soon_over(Patience* patience, u64 waited_ns) {
  os::sleep_ns(kLooksNs);
  return patience->is_over_since(ago(waited_ns), kLimitNs);
}

void a_stopped_process_ends_it_early() {
  const auto arena = make_store("patience", 16 * kMiB);
  Patience patience(arena->heap().memory, kRestNs);
  CHECK(!patience.is_over_since(ago(kLimitNs / 2), kLimitNs));
  Child child([&] {
    Child::ready();
    Child::wait_go();
    return 0;
  });
  CHECK(child.wait_ready());
  CHECK(!is_soon_over(&patience, 5 * kLimitNs));
  CHECK(is_soon_over(&patience, 11 * kLimitNs));
  CHECK(::kill(child.pid(), SIGSTOP) == 0);
  wait_stopped(child);
  CHECK(is_soon_over(&patience, 5 * kLimitNs));
  CHECK(!patience.is_over_since(ago(kLimitNs / 2), kLimitNs));
  CHECK(::kill(child.pid(), SIGCONT) == 0);
  child.go();
  while (os::look_at(static_cast<u32>(child.pid())).lives) os::sleep_ns(1'000'000);
  CHECK(!is_soon_over(&patience, 5 * kLimitNs));  // a dead one is no stopped one, before it is reaped too
  CHECK(child.wait() == 0);
  reap(arena, soon());
  CHECK(!is_soon_over(&patience, 5 * kLimitNs));
}

// It counts from its first call, or from the progress of another process; once over it stays so until it has rested.
void it_begins_anew() {
  const auto arena = make_store("anew", 16 * kMiB);
  Patience patience(arena->heap().memory, kRestNs);
  CHECK(!patience.is_over(0));
  os::sleep_ns(1'000'000);
  CHECK(!patience.is_over(1'000'000'000'000));
  const u64 began = os::now_ns();
  while (!patience.is_over(20'000'000)) os::sleep_ns(1'000'000);
  CHECK(os::now_ns() - began < 10'000'000'000);
  CHECK(!patience.is_over(1'000'000, os::now_ns() + 60'000'000'000));
  os::sleep_ns(2 * kRestNs);
  CHECK(!patience.is_over(1'000'000));
  patience.renew();
  CHECK(!patience.is_over(0));
}

// A wait that ended because others made room is not counted with the next one.
void a_pause_begins_a_wait() {
  const auto arena = make_store("pause", 16 * kMiB);
  Patience patience(arena->heap().memory, kRestNs);
  CHECK(!patience.is_over(1'000'000));
  os::sleep_ns(30'000'000);
  CHECK(!patience.is_over(1'000'000));
}

}  // namespace

int main() {
  a_stopped_process_ends_it_early();
  it_begins_anew();
  a_pause_begins_a_wait();
  std::puts("patience ok");
}
