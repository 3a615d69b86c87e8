// Finding stores: holders through /proc, opening them, the folder and its locks. With real processes of real users.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>

#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "base/status.h"
#include "check.h"
#include "child.h"
#include "os/os.h"

using namespace di;

namespace {

constexpr u64 kMiB = u64{1} << 20;
constexpr uid_t kNobody = 65534;
constexpr u64 kLocks = u64{1} << 62;

Deadline soon() { return Deadline::in(20'000'000'000); }

Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(Code::kEndOfData, "nothing thrown");
}

bool says(const Error& error, Code code, const std::string& text) {
  const bool good = error.code() == code && std::string(error.what()).find(text) != std::string::npos;
  if (!good) std::fprintf(stderr, "got %d: %s\n", static_cast<int>(error.code()), error.what());
  return good;
}

std::vector<os::Holder> holders_of(const std::string& name) {
  std::vector<os::Holder> mine;
  for (const os::Holder& holder : os::find_holders()) {
    if (holder.name == name) mine.push_back(holder);
  }
  return mine;
}

// Store names of this run: other runs may be going on.
std::string name_of(const char* what) { return std::string("test_os-") + what + "." + std::to_string(getpid()); }

void test_find() {
  const std::string name = name_of("find");
  CHECK(holders_of(name).empty());
  const auto body = [&] {
    os::create_memfd(os::memfd_name(name, "0123456789abcdef"), kMiB);
    os::create_memfd("di-store-other", kMiB);  // not ours
    os::create_memfd("di-store:no-uuid", kMiB);
    os::create_memfd("di-store:" + name + ":XYZ", kMiB);
    Child::ready();
    Child::wait_go();
    return 0;
  };
  Child one(body), two(body);
  CHECK(one.wait_ready() && two.wait_ready());
  std::set<u32> pids;
  for (const os::Holder& holder : holders_of(name)) {
    CHECK(holder.uuid == "0123456789abcdef" && holder.fd > 2);
    pids.insert(holder.pid);
  }
  CHECK(pids == (std::set<u32>{static_cast<u32>(one.pid()), static_cast<u32>(two.pid())}));
  CHECK(one.end(SIGKILL) == -SIGKILL);
  CHECK(holders_of(name).size() == 1);
  two.go();
  CHECK(two.wait() == 0 && holders_of(name).empty());
  const int own = os::create_memfd(os::memfd_name(name, "a"), kMiB);
  CHECK(holders_of(name).size() == 1 && holders_of(name)[0].pid == os::pid() && holders_of(name)[0].fd == own);
  os::close_fd(own);
}

// Processes come and go while others look.
void test_find_among_the_dying() {
  const std::string name = name_of("steady");
  const int own = os::create_memfd(os::memfd_name(name, "a"), kMiB);
  Child churn([&] {
    for (u32 round = 0; round < 300; ++round) {
      Child brief([&] { return os::create_memfd(os::memfd_name(name_of("brief"), "b"), kMiB) < 0; });
      CHECK(brief.wait() == 0);
    }
    return 0;
  });
  u32 looks = 0;
  while (waitpid(churn.pid(), nullptr, WNOHANG | WNOWAIT) == 0 || looks == 0) {
    bool found = false;
    for (const os::Holder& holder : holders_of(name)) found = found || holder.fd == own;
    CHECK(found);
    ++looks;
    siginfo_t info{};
    CHECK(waitid(P_PID, static_cast<id_t>(churn.pid()), &info, WEXITED | WNOHANG | WNOWAIT) == 0);
    if (info.si_pid != 0) break;
  }
  CHECK(churn.wait() == 0);
  os::close_fd(own);
}

void test_open_holder() {
  const std::string name = name_of("open");
  const auto never = [](os::FileId) { return false; };
  os::FileId id;
  Child child([&] {
    const int fd = os::create_memfd(os::memfd_name(name, "c0de"), kMiB);
    u8* const at = os::map(fd, kMiB, true);
    at[3] = 33;
    Child::ready();
    Child::wait_go();
    return at[4];
  });
  CHECK(child.wait_ready());
  const os::Holder holder = holders_of(name).at(0);
  os::Holder wrong = holder;
  wrong.uuid = "beef";  // the number names another file than the one that was found
  CHECK(os::open_holder(wrong, never, &id) == -1 && errno == ENOENT);
  wrong = holder;
  wrong.fd = 1000;
  CHECK(os::open_holder(wrong, never, &id) == -1 && errno == ENOENT);

  const int fd = os::open_holder(holder, never, &id);
  CHECK(fd >= 0 && id == os::file_id(fd) && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  u8* const at = os::map(fd, kMiB, true);
  CHECK(at[3] == 33);
  at[4] = 44;
  // The lock on a file we hold outlives every further look at it.
  CHECK(os::lock_byte(fd, kClientLockBase));
  os::FileId asked;
  const auto known = [&](os::FileId which) { return which == os::file_id(fd) ? (asked = which, true) : false; };
  CHECK(os::open_holder(holder, known, &asked) == -1 && errno == EEXIST && asked == id);
  CHECK(holders_of(name).size() == 2);
  Child probe([&] { return os::byte_is_locked(fd, kClientLockBase) ? 0 : 1; });
  CHECK(probe.wait() == 0);
  child.go();
  CHECK(child.wait() == 44);
  CHECK(os::open_holder(holder, never, &id) == -1 && errno == ENOENT);
  os::unmap(at, kMiB);
  os::close_fd(fd);
}

void become_nobody(gid_t group) {
  if (geteuid() != 0) return;
  CHECK(setgroups(0, nullptr) == 0 && setgid(group) == 0 && setuid(kNobody) == 0);
  prctl(PR_SET_DUMPABLE, 1);  // a change of uid takes it away
}

// Whether a process of uid nobody (as root; else of this uid) sees a holder that hides: 0 = hidden and reported.
int look_for_hidden(bool other_group) {
  Child looker([&] {
    const std::string name = name_of("hidden");
    Child holder([&] {
      become_nobody(other_group ? kNobody - 1 : kNobody);
      if (!other_group) prctl(PR_SET_DUMPABLE, 0);
      const int fd = os::create_memfd(os::memfd_name(name, "a"), kMiB);
      if (!os::lock_byte(fd, kLocks + 5)) return 1;
      Child::ready();
      Child::wait_go();
      return 0;
    });
    CHECK(holder.wait_ready());
    become_nobody(kNobody);
    CHECK(holders_of(name).empty());
    bool reported = false;
    for (const os::HiddenHolder& found : os::hidden_holders(kLocks, 6))
      reported = reported || (found.pid == static_cast<u32>(holder.pid()) && found.uid == kNobody);
    for (const os::HiddenHolder& found : os::hidden_holders(kLocks, 5))
      CHECK(found.pid != static_cast<u32>(holder.pid()));
    os::FileId id;
    CHECK(os::open_holder({static_cast<u32>(holder.pid()), 3, name, "a"}, [](os::FileId) { return false; }, &id) == -1);
    CHECK(errno == EACCES || errno == EPERM);
    holder.go();
    return reported && holder.wait() == 0 ? 0 : 1;
  });
  return looker.wait();
}

void test_hidden() {
  CHECK(look_for_hidden(false) == 0);
  if (geteuid() == 0) CHECK(look_for_hidden(true) == 0);
  // Stores of other users do not show, whatever this process may do.
  if (geteuid() != 0) return;
  const std::string name = name_of("foreign");
  Child foreign([&] {
    become_nobody(kNobody);
    os::create_memfd(os::memfd_name(name, "a"), kMiB);
    Child::ready();
    Child::wait_go();
    return 0;
  });
  CHECK(foreign.wait_ready() && holders_of(name).empty());
}

void test_folder(const std::string& base) {
  const auto refused = [&](const std::string& folder, const std::string& text) {
    setenv("DI_STORE_DIR", folder.c_str(), 1);
    const Error error = error_of([] { os::store_folder(); });
    return says(error, Code::kAccessDenied, text) && says(error, Code::kAccessDenied, "DI_STORE_DIR");
  };
  const std::string good = base + "/good";
  setenv("DI_STORE_DIR", good.c_str(), 1);
  CHECK(os::store_folder() == good && os::store_folder() == good);
  struct stat info{};
  CHECK(stat(good.c_str(), &info) == 0 && (info.st_mode & 07777) == 0700);
  CHECK(chmod(good.c_str(), 0750) == 0 && refused(good, "chmod 700") && chmod(good.c_str(), 0700) == 0);
  CHECK(symlink(good.c_str(), (base + "/link").c_str()) == 0 && refused(base + "/link", "symbolic link"));
  const int file = open((base + "/file").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  close(file);
  CHECK(refused(base + "/file", "not a folder"));
  CHECK(refused(base + "/none/there", "cannot be made"));
  CHECK(refused("here", "relative"));
  if (geteuid() == 0) {
    CHECK(mkdir((base + "/theirs").c_str(), 0700) == 0 && chown((base + "/theirs").c_str(), kNobody, kNobody) == 0);
    CHECK(refused(base + "/theirs", "belongs to uid 65534"));
  }
  Child poor([&] {  // root may write anywhere
    const std::string folder = geteuid() == 0 ? base + "/theirs" : good;
    CHECK(chmod(folder.c_str(), 0500) == 0);
    become_nobody(kNobody);
    return refused(folder, "may not write") ? 0 : 1;
  });
  CHECK(poor.wait() == 0 && chmod(good.c_str(), 0700) == 0);
  unsetenv("DI_STORE_DIR");
  CHECK(os::store_folder() == "/tmp/di-store-" + std::to_string(geteuid()));
  setenv("DI_STORE_DIR", good.c_str(), 1);
  os::hold_store_folder();
}

// Whoever lets the last store go removes the folder; another one needs it just then.
void test_folder_comes_and_goes(const std::string& base) {
  constexpr u32 kTimes = 20'000;
  const std::string folder = base + "/moving";
  setenv("DI_STORE_DIR", folder.c_str(), 1);
  Child cleaner([&] {
    Child::ready();
    for (;;) rmdir(folder.c_str());
    return 0;
  });
  CHECK(cleaner.wait_ready());
  for (u32 i = 0; i < kTimes; ++i) CHECK(os::store_folder() == folder);
}

void test_lock_waits(const std::string& folder) {
  const std::string path = folder + "/one.lock";
  Child holder([] {
    const os::FolderLock lock("one", soon());
    Child::ready();
    Child::wait_go();
    return 0;
  });
  CHECK(holder.wait_ready());
  CHECK(access(path.c_str(), F_OK) == 0);
  const Error late = error_of([] { const os::FolderLock lock("one", Deadline::in(30'000'000)); });
  CHECK(says(late, Code::kTimeout, path) && late.culprit() == "pid " + std::to_string(holder.pid()));
  const Error at_once = error_of([] { const os::FolderLock lock("one", Deadline::only_try()); });
  CHECK(says(at_once, Code::kTimeout, path));
  {
    const os::FolderLock other("two", soon());
  }  // names do not wait for each other
  CHECK(holder.end(SIGKILL) == -SIGKILL);
  std::optional<Child> sharer;
  {
    const os::FolderLock lock("one", soon());
    // A child forked meanwhile shares the open file; the lock must still go when we let go.
    sharer.emplace([] {
      Child::ready();
      Child::wait_go();
      return 0;
    });
    CHECK(sharer->wait_ready());
  }
  {
    const os::FolderLock lock("one", soon());
  }
  sharer->go();
  CHECK(sharer->wait() == 0);
  CHECK(access(path.c_str(), F_OK) != 0);  // nothing stays behind
}

// The file that `pid` has open and waits for is the one at `path` now, not one that was removed.
bool has_open(pid_t pid, const std::string& path) {
  for (u32 fd = 0; fd < 64; ++fd) {
    char link[256];
    const ssize_t got = readlink(("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd)).c_str(), link, 255);
    if (got > 0 && std::string(link, static_cast<u64>(got)) == path) return true;
  }
  return false;
}

// A waiter holds the old file open when the lock is given back and taken anew by somebody else: it must move over to
// the new file, not lock the removed one.
void test_lock_moves_on(const std::string& folder) {
  Child waiter([] {  // forked before the lock is taken, or it would have the file open from the start
    Child::wait_go();
    const os::FolderLock mine("moving", soon());
    Child::ready();
    return 0;
  });
  std::optional<os::FolderLock> lock;
  lock.emplace("moving", soon());
  waiter.go();
  while (!has_open(waiter.pid(), folder + "/moving.lock")) CHECK(kill(waiter.pid(), 0) == 0);
  kill(waiter.pid(), SIGSTOP);  // so that it cannot get in between
  int status = 0;
  CHECK(waitpid(waiter.pid(), &status, WUNTRACED) == waiter.pid() && WIFSTOPPED(status));
  lock.reset();
  lock.emplace("moving", soon());
  kill(waiter.pid(), SIGCONT);
  siginfo_t info{};
  while (!has_open(waiter.pid(), folder + "/moving.lock")) {
    CHECK(waitid(P_PID, static_cast<id_t>(waiter.pid()), &info, WEXITED | WNOHANG | WNOWAIT) == 0);
    CHECK(info.si_pid == 0);  // it got in beside us, and has ended
  }
  lock.reset();
  CHECK(waiter.wait_ready() && waiter.wait() == 0);
}

// Many processes, one name, again and again, each removing the file at its end: never two inside.
void test_lock_excludes() {
  constexpr u64 kRounds = 500;
  auto* counters =
      static_cast<volatile u64*>(mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const auto body = [&] {
    for (u64 round = 0; round < kRounds; ++round) {
      const os::FolderLock lock("busy", Deadline::in(60'000'000'000));
      const u64 before = counters[0];
      counters[1] = counters[1] + 1;
      counters[0] = before + 1;
    }
    return 0;
  };
  Child a(body), b(body), c(body);
  CHECK(a.wait() == 0 && b.wait() == 0 && c.wait() == 0);
  CHECK(counters[0] == 3 * kRounds && counters[1] == 3 * kRounds);
}

}  // namespace

int main() {
  std::string base = "/tmp/di-store-test-XXXXXX";
  CHECK(mkdtemp(base.data()) != nullptr);
  CHECK(chmod(base.c_str(), 0711) == 0);
  test_find();
  test_find_among_the_dying();
  test_open_holder();
  test_hidden();
  test_folder_comes_and_goes(base);
  test_folder(base);
  test_lock_waits(base + "/good");
  test_lock_moves_on(base + "/good");
  test_lock_excludes();
  CHECK(std::system(("rm -rf " + base).c_str()) == 0);
  std::puts("ok");
  return 0;
}
