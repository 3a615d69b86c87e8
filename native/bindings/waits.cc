// How the calls of this process sleep: a thread on the word that it waits for, and one thread on the words of all tasks.
#include <cmath>
#include <cstdint>
#include <vector>

#include "bindings/bindings.h"
#include "os/wait_any.h"

namespace di::py {
namespace {

u64 nanoseconds(double seconds) { return static_cast<u64>(std::max(0.0, seconds) * 1e9); }

void show(const Awaited& awaited, Wait& wait) { wait.record.is_for(awaited.kind, awaited.table, awaited.culprit); }

// In its scope, those who change the words wake this thread.
class Counted {
 public:
  explicit Counted(std::vector<const Awaited*> all) : all_(std::move(all)) {
    for (const Awaited* each : all_) each->waiters->fetch_add(1);
  }
  ~Counted() {
    for (const Awaited* each : all_) each->waiters->fetch_sub(1);
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::vector<const Awaited*> all_;
};

// Sleeps without the GIL until the number differs from `seen`, a wake-up comes, or `seconds` are over.
void sleep_on(const Awaited& awaited, Wait& wait, u32 seen, double seconds) {
  awaited.arena->enter();
  show(awaited, wait);
  const Counted counted({&awaited});
  os::Blocking blocking;
  os::futex_wait(*awaited.seq, seen, nanoseconds(seconds));
}

// The sleep of a thread that waits for everything that tasks of this process wait for.
class Sleeper {
 public:
  u32 calls() const { return calls_.load(); }
  void wake() {
    calls_.fetch_add(1);
    os::futex_wake(calls_, 1);
  }
  // Sleeps until a number differs from the one that was seen, `calls` included. `wait` shows the first.
  void sleep(const std::vector<const Awaited*>& all, const std::vector<u32>& seen, u32 calls, Wait& wait,
             double seconds) {
    show(*all.front(), wait);
    std::vector<os::ExpectedWord> words{{&calls_, calls}};
    for (std::size_t at = 0; at < all.size(); ++at) {
      all[at]->arena->enter();
      words.push_back({all[at]->seq, seen[at]});
    }
    const Counted counted(all);
    os::Blocking blocking;
    os::futex_wait_any(words, nanoseconds(seconds));
  }

 private:
  std::atomic<u32> calls_{0};
};

}  // namespace

void bind_waits(nb::module_& module) {
  nb::class_<Wait>(module, "Wait").def(nb::init<ArenaPointer>()).def("end", [](Wait& wait) { wait.record.end(); });
  nb::class_<Awaited>(module, "Awaited", "A number in the store that changes when what a call waits for may have come.")
      .def_prop_ro("seq", [](const Awaited& a) { return a.seq->load(); })
      .def_prop_ro(
          "address", [](const Awaited& a) { return reinterpret_cast<std::uintptr_t>(a.seq); }, "Names the number.")
      .def_prop_ro(
          "for_one", [](const Awaited& a) { return a.kind != WaitKind::kObject && a.kind != WaitKind::kWeights; },
          "Whether what has come is for one call alone.")
      .def("__call__", &sleep_on, nb::sig("def __call__(self, wait: Wait, seen: int, seconds: float, /) -> None"),
           "Sleep until the number differs from `seen`.");
  nb::class_<Sleeper>(module, "Sleeper", "The sleep of a thread on many numbers.")
      .def(nb::init<>())
      .def_prop_ro("calls", &Sleeper::calls, "How often `wake` was called.")
      .def("wake", &Sleeper::wake)
      .def("sleep", &Sleeper::sleep,
           nb::sig("def sleep(self, awaited: list[Awaited], seen: list[int], calls: int, wait: Wait, seconds: float, "
                   "/) -> None"),
           "Sleep until a number differs from what was seen of it.");
}

}  // namespace di::py
