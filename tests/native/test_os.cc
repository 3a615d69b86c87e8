// Time, processes, memory files, record locks, futexes, blocking, copies: against the real kernel.
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "base/status.h"
#include "check.h"
#include "child.h"
#include "os/copy.h"
#include "os/cpu.h"
#include "os/os.h"
#include "os/syscalls.h"
#include "refusals.h"

using namespace di;

namespace {

constexpr u64 kMiB = u64{1} << 20;

void test_processes() {
  CHECK(os::pid() == static_cast<u32>(getpid()));
  const u64 own = os::own_start_time();
  CHECK(own > 0 && own == os::own_start_time());
  CHECK(os::look_at(os::pid()).state == 'R');
  CHECK(os::pid_namespace() != 0);
  const u64 coarse = os::coarse_ns(), now = os::now_ns();
  CHECK(coarse > 0 && coarse <= now && now <= os::boot_ns());

  Child child([] {
    prctl(PR_SET_NAME, "a) S 1 (b c)");  // brackets and blanks in the name must not shift the fields
    Child::ready();
    Child::wait_go();
    return 7;
  });
  CHECK(child.wait_ready());
  const u32 pid = static_cast<u32>(child.pid());
  CHECK(os::look_at(pid).start_time >= own);
  CHECK(std::strchr("RSD", os::look_at(pid).state) != nullptr);
  kill(child.pid(), SIGSTOP);
  int status = 0;
  CHECK(waitpid(child.pid(), &status, WUNTRACED) == child.pid() && WIFSTOPPED(status));
  CHECK(os::look_at(pid).state == 'T');
  kill(child.pid(), SIGCONT);
  child.go();
  siginfo_t info{};
  CHECK(waitid(P_PID, pid, &info, WEXITED | WNOWAIT) == 0);  // it has ended, but nobody reaped it
  CHECK(os::look_at(pid).state == 'Z' && os::look_at(pid).known && !os::look_at(pid).lives);
  CHECK(child.wait() == 7);
  CHECK(os::look_at(pid).state == 0 && os::look_at(pid).known && !os::look_at(pid).lives);
}

bool maps_flag(const u8* at, const std::string& flag) {
  std::string text;
  CHECK(os::read_text("/proc/self/smaps", &text));
  char key[32];
  std::snprintf(key, sizeof key, "%lx-", reinterpret_cast<unsigned long>(at));
  const u64 area = text.find(key);
  CHECK(area != std::string::npos);
  const u64 flags = text.find("VmFlags:", area);
  return text.substr(flags, text.find('\n', flags) - flags).find(" " + flag) != std::string::npos;
}

void test_memfd() {
  const u64 bytes = 64 * kMiB;
  const int fd = os::create_memfd(os::memfd_name("test", "00ff"), bytes);
  struct stat info{};
  CHECK(fstat(fd, &info) == 0 && (info.st_mode & 07777) == 0600);
  CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(os::file_bytes(fd) == bytes && os::file_blocks_bytes(fd) == 0);
  CHECK(ftruncate(fd, static_cast<off_t>(bytes / 2)) != 0 && errno == EPERM);
  CHECK(ftruncate(fd, static_cast<off_t>(bytes * 2)) != 0 && errno == EPERM);
  CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0 && errno == EPERM);
  CHECK(os::file_id(fd).inode != 0 && os::file_id(999) == os::FileId{});

  u8* const at = os::map(fd, bytes, true);
  CHECK(at != nullptr && reinterpret_cast<u64>(at) % kSliceBytes == 0);
  CHECK(is_emulated() || maps_flag(at, "dd"));  // qemu-user keeps MADV_DONTDUMP to itself
  u8* const reader = os::map(fd, bytes, false);
  CHECK(reader != nullptr && reader != at && (is_emulated() || maps_flag(reader, "dd")));

  CHECK(os::commit(fd, kSliceBytes, kSliceBytes) == 0);
  CHECK(os::file_blocks_bytes(fd) == kSliceBytes);
  at[kSliceBytes + 5] = 42;
  CHECK(reader[kSliceBytes + 5] == 42);
  const int collapsed = os::collapse(at + kSliceBytes, kSliceBytes);
  CHECK(collapsed == 0 || collapsed == EINVAL || collapsed == ENOMEM || collapsed == EAGAIN || collapsed == EBUSY);
  CHECK(reader[kSliceBytes + 5] == 42);
  CHECK(os::punch(fd, kSliceBytes, kSliceBytes) == 0 && os::file_blocks_bytes(fd) == 0);
  CHECK(reader[kSliceBytes + 5] == 0);  // a fresh page, and no SIGBUS
  CHECK(os::commit(999, 0, 4096) == EBADF);
  os::unmap(at, bytes);
  os::unmap(reader, bytes);
  os::close_fd(fd);
}

void on_alarm(int) {}

// A signal undoes what fallocate has done so far; a profiler's timer must not stop a large commit for ever.
void test_commit_under_signals() {
  const int fd = os::create_memfd(os::memfd_name("test", "00"), 256 * kMiB);
  struct sigaction action{}, before{};
  action.sa_handler = on_alarm;
  sigaction(SIGALRM, &action, &before);
  const itimerval fast{{0, 500}, {0, 500}}, off{};
  setitimer(ITIMER_REAL, &fast, nullptr);
  const int result = os::commit(fd, 0, 64 * kMiB);
  setitimer(ITIMER_REAL, &off, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  CHECK(result == 0 && os::file_blocks_bytes(fd) == 64 * kMiB);
  os::close_fd(fd);
}

void test_limits() {
  CHECK(os::address_space_limit() > 0);
  Child child([] {
    const rlimit file{64 * kMiB, 64 * kMiB};
    setrlimit(RLIMIT_FSIZE, &file);
    CHECK(os::address_space_limit() == 64 * kMiB);
    CHECK(code_of([] { os::create_memfd(os::memfd_name("test", "00"), 65 * kMiB); }) == Code::kCapacity);
    const int fd = os::create_memfd(os::memfd_name("test", "00"), 64 * kMiB);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they hold terabytes of address space
    const rlimit space{32 * kMiB, 32 * kMiB};
    setrlimit(RLIMIT_AS, &space);
    if (!is_emulated()) {  // qemu-user limits nothing: it would limit itself
      CHECK(os::address_space_limit() == 32 * kMiB);
      CHECK(os::map(fd, 64 * kMiB, true) == nullptr && errno == ENOMEM);
    }
#endif
    os::close_fd(fd);
    return 0;
  });
  CHECK(child.wait() == 0);
}

void test_record_locks() {
  const int fd = os::create_memfd(os::memfd_name("test", "00"), kMiB);
  const u64 first = kClientLockBase, last = kClientLockBase + kMaxClients - 1;
  CHECK(os::lock_byte(fd, first));
  Child child([&] {
    CHECK(os::byte_is_locked(fd, first));  // not inherited: it is the parent's
    CHECK(!os::lock_byte(fd, first));
    CHECK(!os::byte_is_locked(fd, first + 1));
    CHECK(os::lock_byte(fd, last) && os::lock_byte(fd, first + 1));
    os::unlock_byte(fd, first + 1);
    Child::ready();
    Child::wait_go();
    return 0;
  });
  CHECK(child.wait_ready());
  CHECK(os::byte_is_locked(fd, last) && !os::byte_is_locked(fd, last - 1));
  CHECK(!os::byte_is_locked(fd, first + 1));
  CHECK(!os::lock_byte(fd, last));
  CHECK(child.end(SIGKILL) == -SIGKILL);
  CHECK(!os::byte_is_locked(fd, last) && os::lock_byte(fd, last));
  CHECK(os::byte_is_locked(999, first));  // no answer is no proof of death

  // The trap that open_holder is built around, so that a kernel without it would be noticed too.
  const int again = open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC);
  CHECK(again >= 0);
  os::close_fd(again);
  Child other([&] { return os::byte_is_locked(fd, first) ? 1 : 0; });
  CHECK(other.wait() == 0);
  os::close_fd(fd);
}

void test_wiped_on_fork() {
  u8* const page = os::map_wiped_on_fork();
  page[0] = 7;
  Child child([&] { return page[0]; });
  CHECK(child.wait() == 0 && page[0] == 7);
  os::unmap(page, kPageBytes);
}

void test_futex() {
  const int fd = os::create_memfd(os::memfd_name("test", "00"), kMiB);
  auto* words = reinterpret_cast<std::atomic<u32>*>(os::map(fd, kMiB, true));
  CHECK(words != nullptr);
  Child child([&] {
    // Another address of the same page: only a shared futex meets there.
    auto* mine = reinterpret_cast<std::atomic<u32>*>(os::map(fd, kMiB, true));
    Child::ready();
    const u64 begin = os::now_ns();
    while (mine[0].load() == 0) os::futex_wait(mine[0], 0, 20'000'000'000u);
    if (os::now_ns() - begin > 15'000'000'000u) return 1;  // nobody woke it
    mine[1].store(mine[0].load());
    os::futex_wake(mine[1], 1);
    return 0;
  });
  CHECK(child.wait_ready());
  while (os::look_at(static_cast<u32>(child.pid())).state != 'S') {
  }
  words[0].store(5);
  os::futex_wake(words[0], ~0u);
  CHECK(child.wait() == 0 && words[1].load() == 5);
  const u64 begin = os::now_ns();
  os::futex_wait(words[1], 4, ~u64{0});  // the word differs: returns at once
  while (os::now_ns() - begin < 2'000'000) os::futex_wait(words[1], 5, 1'000'000);
  os::unmap(reinterpret_cast<u8*>(words), kMiB);
  os::close_fd(fd);
}

int g_left = 0, g_entered = 0;
bool g_interrupt = false;
void* leave() { return ++g_left, &g_left; }
void enter(void* token) {
  CHECK(token == &g_left);
  ++g_entered;
  if (g_interrupt) throw Error(Code::kEndOfData, "interrupted");
}

void enter_quietly(void* token) {
  CHECK(token == &g_left);
  ++g_entered;
}

void test_blocking() {
  {
    const os::Blocking scope;
  }  // without hooks: nothing
  os::set_block_hooks({nullptr, leave, enter, enter_quietly});
  {
    const os::Blocking outer;
    {
      const os::Blocking inner;
      CHECK(g_left == 1);
    }
    CHECK(g_entered == 0);
  }
  CHECK(g_left == 1 && g_entered == 1);
  g_interrupt = true;
  bool seen = false;
  try {
    const os::Blocking scope;
  } catch (const Error& error) {
    seen = error.code() == Code::kEndOfData;
  }
  CHECK(seen && g_entered == 2);
  CHECK(code_of([] {
          const os::Blocking scope;
          throw Error(Code::kStoreFull, "full");  // the interrupt on the way must not end the process
        }) == Code::kStoreFull);
  CHECK(g_entered == 3);
  {
    const os::Quiet destructor;
    const os::Blocking scope;
  }
  CHECK(g_left == 4 && g_entered == 4);
  ++os::t_in_hand.locks;  // a shared lock is held: the sleep neither lets go nor asks
  {
    const os::Blocking scope;
  }
  --os::t_in_hand.locks;
  CHECK(g_left == 4 && g_entered == 4);
  g_interrupt = false;
  {
    const os::Blocking scope;
  }
  CHECK(g_left == 5 && g_entered == 5);
  os::set_block_hooks({});
}

std::mutex g_gil;
std::atomic<bool> g_left_gil{false}, g_wants_gil{false};

// Whoever waits for the GIL has no mutex of the process in hand: others may want that first.
void test_aside() {
  const auto leave_it = []() -> void* {
    g_gil.unlock();
    g_left_gil.store(true);
    return nullptr;
  };
  const auto take_it = [](void*) {
    g_wants_gil.store(true);
    g_gil.lock();
  };
  os::set_block_hooks({nullptr, leave_it, nullptr, take_it});
  std::mutex local;
  local.lock();
  std::thread other([&local] {
    g_gil.lock();
    {
      const os::LocalGuard<std::mutex> guard(local);
    }
    g_gil.unlock();
  });
  while (!g_left_gil.load()) sched_yield();
  g_gil.lock();
  local.unlock();
  while (!g_wants_gil.load()) sched_yield();
  CHECK(local.try_lock());
  local.unlock();
  g_gil.unlock();
  other.join();
  os::set_block_hooks({});
}

void test_copies() {
  std::mt19937_64 random(1);
  std::vector<u8> from(2 * kMiB), to(2 * kMiB + 64);
  os::random_bytes(from.data(), from.size());
  CHECK(from[0] != from[1] || from[1] != from[2] || from[2] != from[3] || from[3] != from[4]);
  const std::vector<u64> sizes = {0, 1, 63, 64, 255, 256, 4095, 4096, 4097, 28'224, 65'536, 262'143, 262'144, 300'001};
  for (const u64 base : sizes) {
    for (u32 round = 0; round < 20; ++round) {
      const u64 bytes = base + random() % 3, source = random() % 200, target = 8 + random() % 200;
      for (const auto function : {os::copy, os::copy_streaming}) {
        std::fill(to.begin(), to.end(), u8{0xee});
        function(to.data() + target, from.data() + source, bytes);
        CHECK(std::memcmp(to.data() + target, from.data() + source, bytes) == 0);
        CHECK(to[target - 1] == 0xee && to[target + bytes] == 0xee);
      }
    }
  }
  // Up to the last byte of a mapping: reading ahead must not reach beyond it.
  u8* const pages =
      static_cast<u8*>(mmap(nullptr, 65 * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(munmap(pages + 64 * kPageBytes, kPageBytes) == 0);
  std::memcpy(pages, from.data(), 64 * kPageBytes);
  u8* const aligned = to.data() + (64 - reinterpret_cast<u64>(to.data()) % 64) % 64;
#if defined(__x86_64__)
  CHECK(!os::stream_functions().empty());
  const os::Cpu cpu;
  CHECK(cpu.avx2 == (__builtin_cpu_supports("avx2") != 0));
  CHECK(cpu.avx512 == (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")));
#endif
  for (const os::StreamFunction stream : os::stream_functions()) {  // also those that this processor would not choose
    std::fill(to.begin(), to.end(), u8{0xee});
    stream(aligned, pages, 64 * kPageBytes);
    CHECK(std::memcmp(aligned, from.data(), 64 * kPageBytes) == 0 && aligned[64 * kPageBytes] == 0xee);
  }
  munmap(pages, 64 * kPageBytes);
}

}  // namespace

int main() {
  test_processes();
  test_memfd();
  test_commit_under_signals();
  test_limits();
  test_record_locks();
  test_wiped_on_fork();
  test_futex();
  test_blocking();
  test_aside();
  test_copies();
  std::puts("ok");
  return 0;
}
