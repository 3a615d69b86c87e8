// Fault points: places where a test build kills or stops the process, or refuses a call, on request. Empty in other
// builds.
//
// fault() runs at every store that crash tests cover, also under locks, in forked children and in signal-interrupted
// code. So it takes no lock and allocates nothing: the points reached lie in a fixed table of pointers to the texts.
#ifdef DI_FAULTS

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include "base/status.h"
#include "os/os.h"

namespace di::os {

namespace {

enum class Action { kKill, kStop, kRefuse };

struct Armed {
  std::string name;
  std::atomic<i64> left{1};
  Action action = Action::kKill;
  int number = 0;        // errno of kRefuse
  bool lasting = false;  // from then on every call
  Armed* before = nullptr;
  bool with_before = false;  // those armed before stay armed
};

constexpr u32 kMaxPoints = 4096;
std::atomic<const char*> g_reached[kMaxPoints];
// Never freed: another thread may be reading the previous fault. An empty name is reached by nobody.
std::atomic<Armed*> g_armed{nullptr};

int errno_of(const std::string& text) {
  if (text == "ENOSPC") return ENOSPC;
  if (text == "ENOMEM") return ENOMEM;
  if (text == "EIO") return EIO;
  if (text == "EINTR") return EINTR;
  if (text == "EINVAL") return EINVAL;
  if (text == "EOPNOTSUPP") return EOPNOTSUPP;
  return 0;
}

void remember(const char* point) {
  u64 slot = (reinterpret_cast<u64>(point) * 0x9e3779b97f4a7c15u) >> 52;
  for (u32 tries = 0; tries < kMaxPoints; ++tries, slot = (slot + 1) % kMaxPoints) {
    // Relaxed: the texts are literals, there from the start of the program.
    const char* seen = g_reached[slot].load(std::memory_order_relaxed);
    if (seen == point) return;
    if (seen != nullptr) continue;
    if (g_reached[slot].compare_exchange_strong(seen, point, std::memory_order_relaxed) || seen == point) return;
  }
}

// The armed fault when this call is the one it waits for.
Armed* due(const char* point) {
  Armed* armed = g_armed.load(std::memory_order_acquire);  // pairs with the release in arm_fault
  while (armed != nullptr && armed->name != point) armed = armed->with_before ? armed->before : nullptr;
  if (armed == nullptr) return nullptr;
  const i64 left = armed->left.fetch_sub(1, std::memory_order_relaxed);
  return left == 1 || (left < 1 && armed->lasting) ? armed : nullptr;
}

struct FromEnvironment {
  FromEnvironment() {
    const char* spec = std::getenv("DI_STORE_FAULT");
    if (spec != nullptr && *spec != 0) arm_fault(spec);
  }
};
const FromEnvironment g_from_environment;

}  // namespace

void fault(const char* point) {
  remember(point);
  const Armed* armed = due(point);
  if (armed == nullptr || armed->action == Action::kRefuse) return;
  if (armed->action == Action::kKill) kill(getpid(), SIGKILL);
  // The signal goes to this thread: if another thread took it, this one would go on until the other runs.
  if (armed->action == Action::kStop) raise(SIGSTOP);
}

int fault_errno(const char* point) {
  remember(point);
  const Armed* armed = due(point);
  return armed != nullptr && armed->action == Action::kRefuse ? armed->number : 0;
}

std::vector<std::string> fault_points() {
  std::vector<std::string> points;
  for (const std::atomic<const char*>& entry : g_reached) {
    const char* point = entry.load(std::memory_order_relaxed);
    if (point == nullptr) continue;
    // One text may have several addresses, one per file that uses it.
    bool known = false;
    for (const std::string& other : points) known = known || other == point;
    if (!known) points.emplace_back(point);
  }
  return points;
}

void arm_fault(const std::string& given) {
  const bool with_before = given.starts_with('+');
  const std::string spec = given.substr(with_before ? 1 : 0);
  const u64 colon = spec.find(':');
  const u64 second = colon == std::string::npos ? colon : spec.find(':', colon + 1);
  const std::string name = spec.substr(0, colon);
  std::string count = "1", action;
  if (!spec.empty()) {
    const u64 end = second == std::string::npos ? spec.size() : second;
    count = colon == std::string::npos ? "" : spec.substr(colon + 1, end - colon - 1);
    if (second != std::string::npos) action = spec.substr(second + 1);
  }
  char* rest = nullptr;
  const long long left = std::strtoll(count.c_str(), &rest, 10);
  const bool lasting = action.ends_with('+');
  if (lasting) action.pop_back();
  const int number = errno_of(action);
  const bool known = second == std::string::npos || action == "stop" || number != 0;
  if ((name.empty() && !spec.empty()) || *rest != 0 || left < 1 || !known) {
    throw Error(
        Code::kInvalid,
        "DI_STORE_FAULT wants [+]name:count[:stop|:ENOSPC|:ENOMEM|:EIO|:EINTR|:EINVAL|:EOPNOTSUPP], the last ones "
        "perhaps with a + at the end, got '" +
            given + "'");
  }
  auto* armed = new Armed;
  armed->name = name;
  armed->left = left;
  armed->number = number;
  armed->lasting = lasting;
  armed->action = number != 0 ? Action::kRefuse : action == "stop" ? Action::kStop : Action::kKill;
  armed->with_before = with_before;
  armed->before = g_armed.load(std::memory_order_acquire);
  g_armed.store(armed, std::memory_order_release);  // pairs with the acquire in due()
}

}  // namespace di::os

#endif  // DI_FAULTS
