// Fault points: real signals at the named point and count, refusals, and what has been reached.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/status.h"
#include "check.h"
#include "child.h"
#include "os/os.h"

using namespace di;

#ifdef DI_FAULTS

namespace {

bool reached(const std::string& point) {
  const std::vector<std::string> points = os::fault_points();
  return std::count(points.begin(), points.end(), point) == 1;
}

int pass(u32 times) {
  for (u32 i = 0; i < times; ++i) {
    DI_FAULT("test.other");
    DI_FAULT("test.here");
  }
  return 0;
}

bool refused(const std::string& spec) {
  try {
    os::arm_fault(spec);
  } catch (const Error& error) {
    return error.code() == Code::kInvalid;
  }
  return false;
}

}  // namespace

int main(int argc, char**) {
  if (argc > 1) return pass(5);  // started again below, with the variable set
  CHECK(!reached("test.here"));
  pass(3);
  DI_FAULT("test.here");  // the same text from another place counts as the same point
  CHECK(reached("test.here") && reached("test.other") && !reached("test.never"));

  const auto child_with = [](const std::string& spec, u32 times) {
    Child child([&] {
      os::arm_fault(spec);
      return pass(times);
    });
    return child.wait();
  };
  CHECK(child_with("test.here:3", 2) == 0);
  CHECK(child_with("test.here:3", 3) == -SIGKILL);
  CHECK(child_with("test.never:1", 9) == 0);
  CHECK(child_with("", 9) == 0);

  Child stopped([] {
    os::arm_fault("test.here:2:stop");
    return pass(4);
  });
  int status = 0;
  CHECK(waitpid(stopped.pid(), &status, WUNTRACED) == stopped.pid() && WIFSTOPPED(status));
  kill(stopped.pid(), SIGCONT);
  CHECK(stopped.wait() == 0);

  const int fd = os::create_memfd(os::memfd_name("fault", "0"), 1 << 20);
  os::arm_fault("os.commit:2:ENOSPC");
  CHECK(os::commit(fd, 0, 4096) == 0 && os::commit(fd, 0, 4096) == ENOSPC && os::commit(fd, 0, 4096) == 0);
  os::arm_fault("os.commit:1:EINTR");
  CHECK(os::commit(fd, 0, 8 * 4096) == 0 && os::file_blocks_bytes(fd) == 8 * 4096);
  os::arm_fault("");
  os::close_fd(fd);
  for (const char* bad : {"x", ":1", "x:", "x:0", "x:-1", "x:1:jump", "x:1y"}) CHECK(refused(bad));

  Child again([] {
    setenv("DI_STORE_FAULT", "test.here:5", 1);
    return execl("/proc/self/exe", "test_os_fault", "again", static_cast<char*>(nullptr));
  });
  CHECK(again.wait() == -SIGKILL);
  std::puts("ok");
  return 0;
}

#else

int main() {
  DI_FAULT("test.here");  // nothing, also with the variable set
  setenv("DI_STORE_FAULT", "test.here:1", 1);
  DI_FAULT("test.here");
  std::puts("ok (no fault points in this build)");
  return 0;
}

#endif
