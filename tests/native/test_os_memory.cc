// The memory budget: a real cgroup of 200 MiB where this user may make one, and the files of other machines (v2,
// hybrid, containers) laid out in a folder.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>

#include "check.h"
#include "child.h"
#include "os/memory.h"
#include "os/os.h"
#include "os/syscalls.h"

using namespace di;

// A forked child cannot join its parent's threads, and ends without.
extern "C" __attribute__((visibility("default"), used)) const char* __tsan_default_options() {
  return "report_thread_leaks=0";
}

namespace {

constexpr u64 kMiB = u64{1} << 20;
constexpr u64 kUnlimited = ~u64{0};

bool write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.flush();
  return file.good();
}

// One machine as files below a folder of its own.
class Machine {
 public:
  explicit Machine(const std::string& root) : root_(root) { make("/proc/self"); }
  void make(const std::string& folder) { CHECK(std::system(("mkdir -p '" + root_ + folder + "'").c_str()) == 0); }
  void write(const std::string& path, const std::string& text) {
    make(path.substr(0, path.rfind('/')));
    CHECK(write_text(root_ + path, text));
  }
  void v2(const std::string& folder, const std::string& limit, u64 used, u64 files, const std::string& high = "max") {
    write(folder + "/memory.max", limit + "\n");
    write(folder + "/memory.high", high + "\n");
    write(folder + "/memory.current", std::to_string(used) + "\n");
    write(folder + "/memory.stat", "anon 5\nfile 999999999999\ninactive_anon 7\ninactive_file " +
                                       std::to_string(files) + "\nactive_file 0\nunevictable 9\n");
  }
  void v1(const std::string& folder, const std::string& limit, u64 used, u64 files, const std::string& above) {
    write(folder + "/memory.limit_in_bytes", limit + "\n");
    write(folder + "/memory.usage_in_bytes", std::to_string(used) + "\n");
    write(folder + "/memory.stat", "inactive_file 1\nactive_file 1\nhierarchical_memory_limit " + above +
                                       "\ntotal_inactive_file 0\ntotal_active_file " + std::to_string(files) + "\n");
  }
  std::vector<std::string> folders() const {
    std::vector<std::string> names;
    for (const os::MemoryLevel& level : os::find_memory_levels(root_)) {
      names.push_back(level.folder.substr(root_.size()));
    }
    return names;
  }
  u64 headroom() const {
    u64 least = kUnlimited;
    for (os::MemoryLevel level : os::find_memory_levels(root_)) {
      least = std::min(least, os::level_room(level, least).for_store);
    }
    return least;
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

using Names = std::vector<std::string>;

void test_v2(const std::string& base) {
  Machine machine(base + "/v2");
  machine.write("/proc/self/mountinfo",
                "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
                "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n");
  machine.write("/proc/self/cgroup", "0::/user.slice/job one\n");
  machine.write("/sys/fs/cgroup/cgroup.procs", "1\n");  // the root has no memory files
  machine.v2("/sys/fs/cgroup/user.slice", std::to_string(8192 * kMiB), 1024 * kMiB, 0);
  machine.v2("/sys/fs/cgroup/user.slice/job one", "max", 512 * kMiB, 100 * kMiB);
  CHECK((machine.folders() == Names{"/sys/fs/cgroup/user.slice/job one", "/sys/fs/cgroup/user.slice"}));
  CHECK(machine.headroom() == 8192 * kMiB - 8192 * kMiB / 50 - 1024 * kMiB);  // the margin of a large limit: 2 %
  machine.v2("/sys/fs/cgroup/user.slice/job one", std::to_string(1000 * kMiB), 512 * kMiB, 100 * kMiB);
  CHECK(machine.headroom() == (1000 - 64 - 512 + 100) * kMiB);  // of a small one: 64 MiB; files count as free
  machine.v2("/sys/fs/cgroup/user.slice/job one", "max", 512 * kMiB, 0, std::to_string(600 * kMiB));
  CHECK(machine.headroom() == (600 - 64 - 512) * kMiB);
  machine.v2("/sys/fs/cgroup/user.slice/job one", std::to_string(40 * kMiB), 512 * kMiB, 1 * kMiB);
  CHECK(machine.headroom() == 0);
  // The controller is off in the innermost group: its memory is charged one level up.
  machine.write("/proc/self/cgroup", "0::/user.slice/job one/inner\n");
  machine.make("/sys/fs/cgroup/user.slice/job one/inner");
  CHECK(machine.folders().size() == 2);
  machine.write("/proc/self/cgroup", "0::/gone\n");  // it was removed under us: nothing is known, nothing breaks
  CHECK(machine.folders().empty() && machine.headroom() == kUnlimited);
}

void test_v1_and_hybrid(const std::string& base) {
  Machine machine(base + "/v1");
  machine.write("/proc/self/mountinfo",
                "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
                "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  machine.write("/proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/job:one/a\n3:cpuset:/\n0::/\n");
  const std::string none = "9223372036854771712", mount = "/sys/fs/cgroup/memory";
  machine.make("/sys/fs/cgroup/unified");
  machine.v1(mount, none, 9000 * kMiB, 0, none);
  machine.v1(mount + "/job:one", std::to_string(1000 * kMiB), 700 * kMiB, 50 * kMiB, std::to_string(1000 * kMiB));
  machine.v1(mount + "/job:one/a", none, 100 * kMiB, 0, std::to_string(1000 * kMiB));
  CHECK((machine.folders() == Names{mount + "/job:one/a", mount + "/job:one", mount}));
  CHECK(machine.headroom() == (1000 - 64 - 700 + 50) * kMiB);
  CHECK(os::level_limit(os::find_memory_levels(machine.root())[0]) == kUnlimited);
}

void test_containers(const std::string& base) {
  // No cgroup namespace: paths of the host, and the mount shows the container's part only (v1). A limit further up is
  // known from memory.stat alone.
  Machine plain(base + "/plain");
  plain.write("/proc/self/mountinfo",
              "35 31 0:32 /docker/ab\\040c /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  plain.write("/proc/self/cgroup", "4:memory:/docker/ab c/deep\n");
  const std::string none = "9223372036854771712", mount = "/sys/fs/cgroup/memory";
  plain.v1(mount, none, 100 * kMiB, 0, std::to_string(300 * kMiB));
  plain.v1(mount + "/deep", none, 50 * kMiB, 0, std::to_string(300 * kMiB));
  CHECK((plain.folders() == Names{mount + "/deep", mount}));
  CHECK(plain.headroom() == (300 - 64 - 100) * kMiB);

  // A cgroup namespace with its own mount: the usual container on v2.
  Machine own(base + "/own");
  own.write("/proc/self/mountinfo", "30 22 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  own.write("/proc/self/cgroup", "0::/\n");
  own.v2("/sys/fs/cgroup", std::to_string(500 * kMiB), 100 * kMiB, 0);
  CHECK((own.folders() == Names{"/sys/fs/cgroup"}) && own.headroom() == (500 - 64 - 100) * kMiB);

  // A cgroup namespace with the host's mount: the way down is found by looking for ourselves.
  Machine mixed(base + "/mixed");
  mixed.write("/proc/self/mountinfo", "30 22 0:26 /../.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  mixed.write("/proc/self/cgroup", "0::/in\n");
  const std::string self = std::to_string(getpid());
  for (const std::string name : {"a/b", "a/c", "d/e"}) {
    mixed.v2("/sys/fs/cgroup/" + name + "/in", "max", 1, 0);
    mixed.write("/sys/fs/cgroup/" + name + "/in/cgroup.procs", name == "a/c" ? "1\n" + self + "\n9\n" : "1\n");
  }
  mixed.v2("/sys/fs/cgroup/a/c", std::to_string(200 * kMiB), 100 * kMiB, 0);
  CHECK((mixed.folders() == Names{"/sys/fs/cgroup/a/c/in", "/sys/fs/cgroup/a/c"}));
  CHECK(mixed.headroom() == (200 - 64 - 100) * kMiB);

  Machine nothing(base + "/nothing");
  CHECK(nothing.folders().empty());
  CHECK(os::machine_room(nothing.root()).for_store == kUnlimited);
  nothing.write("/proc/meminfo", "MemTotal: 10485760 kB\nMemFree: 1 kB\nMemAvailable: 1048576 kB\n");
  CHECK(os::machine_room(nothing.root()).for_store == 1024 * kMiB - 10240 * kMiB / 50);
}

// memory.stat stands still while a full group pays for what we commit with its file pages.
void test_file_credit(const std::string& base) {
  Machine machine(base + "/stale");
  machine.write("/proc/self/mountinfo", "30 22 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  machine.write("/proc/self/cgroup", "0::/\n");
  const std::string group = "/sys/fs/cgroup";
  const auto used = [&](u64 bytes) { machine.write(group + "/memory.current", std::to_string(bytes) + "\n"); };
  machine.v2(group, std::to_string(500 * kMiB), 300 * kMiB, 120 * kMiB);
  os::MemoryLevel level = os::find_memory_levels(machine.root())[0];
  const u64 start = 10'000'000'000u, step = 1'000'000u;
  const auto room = [&](i64 grown, u64 after) {
    return os::level_room(level, kUnlimited, grown, start + after).for_store;
  };
  CHECK(room(0, 0) == (436 - 300 + 120) * kMiB);
  used(400 * kMiB);  // somebody freed 50 MiB while we took 150; nothing had to be dropped
  CHECK(room(150 * kMiB, step) == (436 - 400 + 120) * kMiB);
  used(500 * kMiB);  // full: of the next 130 MiB, 30 were file pages
  CHECK(room(130 * kMiB, 2 * step) == (436 - 500 + 120 - 30) * kMiB);
  for (u64 i = 1; i <= 13; ++i) CHECK(room(2 * kMiB, (2 + i) * step) == (26 - 2 * i) * kMiB);
  CHECK(room(2 * kMiB, 16 * step) == 0);
  CHECK(room(0, 2'000'000'000u) == 0);          // it may still be the old number
  CHECK(room(0, 4'000'000'000u) == 56 * kMiB);  // by now it is a new one
  machine.v2(group, std::to_string(500 * kMiB), 500 * kMiB, 70 * kMiB);
  CHECK(room(2 * kMiB, 4'001'000'000u) == 6 * kMiB);  // a smaller number is believed at once
}

u64 commit_all(int fd) {
  u64 done = 0;
  while (os::memory_headroom() >= kSliceBytes && done < 512 * kMiB) {
    CHECK(os::commit(fd, done, kSliceBytes) == 0);
    done += kSliceBytes;
  }
  return done;
}

// Runs inside the 200 MiB group. A wrong answer ends in an OOM kill, which the parent sees.
int fill_group(const std::string& inner, const std::string& file, u64 outside_hash) {
  CHECK(write_text(inner + "/cgroup.procs", std::to_string(getpid())));
  CHECK(os::memory_total() == 200 * kMiB);
  const u64 hash = os::cgroup_hash();
  CHECK(hash != outside_hash);
  // File pages charged to the group: the kernel drops them for us, so they are no reason to refuse.
  const int out = open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  const std::string block(kMiB, 'x');
  for (u32 i = 0; i < 120; ++i) CHECK(write(out, block.data(), kMiB) == static_cast<i64>(kMiB));
  CHECK(fsync(out) == 0 && close(out) == 0);
  u64 before = os::memory_headroom();
  const u64 deadline = os::now_ns() + 30'000'000'000u;
  while (before <= 90 * kMiB && os::now_ns() < deadline) before = os::memory_headroom();  // memory.stat may lag by 2 s
  CHECK(before > 90 * kMiB && before <= 136 * kMiB);

  // In a cgroup namespace of its own the paths are other ones, the answers the same.
  Child spaced([&] {
    if (unshare(CLONE_NEWCGROUP) != 0) return 0;
    CHECK(os::cgroup_hash() == hash && os::memory_total() == 200 * kMiB);
    return 0;
  });
  CHECK(spaced.wait() == 0);

  const int fd = os::create_memfd(os::memfd_name("memory", "0"), 512 * kMiB);
  const u64 first = commit_all(fd);
  CHECK(first > 90 * kMiB && first <= 136 * kMiB);
  Child other([&] { return os::memory_headroom() < 4 * kMiB ? 0 : 1; });  // the group's, not the process's
  CHECK(other.wait() == 0);
  CHECK(os::punch(fd, 0, first / 2 / kSliceBytes * kSliceBytes) == 0);
  os::sleep_ns(5'000'000);  // past the millisecond that an answer may be old
  const u64 again = os::memory_headroom();
  CHECK(again > 35 * kMiB && again <= 136 * kMiB);
  os::close_fd(fd);
  return 0;
}

// Threads look and commit at once, and children are forked in the middle: every one gets an answer.
void test_many_at_once() {
  const int fd = os::create_memfd(os::memfd_name("many", "0"), 64 * kMiB);
  std::vector<std::thread> threads;
  for (u64 number = 0; number < 4; ++number) {
    threads.emplace_back([fd, number] {
      for (u64 round = 0; round < 200; ++round) {
        CHECK(os::memory_headroom() > 0 && os::memory_headroom() < kUnlimited && os::cgroup_hash() != 0);
        CHECK(os::commit(fd, (number * 16 + round % 16) * kMiB, 64 * kPageBytes) == 0);
      }
    });
  }
  for (u32 round = 0; round < 20; ++round) {
    Child child([] { return os::memory_headroom() < kUnlimited && os::cgroup_hash() != 0 ? 0 : 1; });
    CHECK(child.wait() == 0);
  }
  for (std::thread& thread : threads) thread.join();
  os::close_fd(fd);
}

void test_real_group(const std::string& base) {
  const std::vector<os::MemoryLevel> levels = os::find_memory_levels();
  CHECK(os::memory_total() > 0 && os::memory_total() < kUnlimited && os::memory_headroom() < kUnlimited);
  CHECK(os::memory_headroom() < os::memory_total());
  const std::string outer = levels.empty() ? "" : levels.back().folder + "/di-store-test-" + std::to_string(getpid());
  const std::string inner = outer + "/inner";
  const bool v1 = !levels.empty() && levels.back().v1;
  if (levels.empty() || mkdir(outer.c_str(), 0755) != 0) {
    std::puts("no right to make a cgroup here: only the laid-out machines were tested");
    return;
  }
  // v2 hands a controller down only where it is told to.
  if (!v1) write_text(outer + "/cgroup.subtree_control", "+memory");
  CHECK(mkdir(inner.c_str(), 0755) == 0);
  const std::string limit = outer + (v1 ? "/memory.limit_in_bytes" : "/memory.max");
  int result = 0;
  if (write_text(limit, std::to_string(200 * kMiB))) {
    const u64 hash = os::cgroup_hash();
    Child child([&] { return fill_group(inner, base + "/file", hash); });
    result = child.wait();
    CHECK(os::cgroup_hash() == hash);
  } else {
    std::puts("no memory controller for a new cgroup: only the laid-out machines were tested");
  }
  CHECK(rmdir(inner.c_str()) == 0 && rmdir(outer.c_str()) == 0);
  CHECK(result == 0);
}

}  // namespace

int main() {
  std::string base = "/tmp/di-store-test-XXXXXX";
  CHECK(mkdtemp(base.data()) != nullptr);
  test_v2(base);
  test_v1_and_hybrid(base);
  test_containers(base);
  test_file_credit(base);

  test_many_at_once();
  test_real_group(base);
  CHECK(std::system(("rm -rf " + base).c_str()) == 0);
  std::puts("ok");
  return 0;
}
