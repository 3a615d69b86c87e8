// Memory files, record locks, futexes, blocking. Other parts of os.h: clock.cc (time), process.cc (looking at
// processes), memory.cc (budget), find.cc (finding stores), fault.cc (fault points), copy.cc (bulk copies).
#include "os/os.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/memfd.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "base/status.h"
#include "os/memory.h"
#include "os/syscalls.h"

// Newer than the headers of the oldest systems we build on.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace di::os {

static_assert(sizeof(off_t) == 8, "record locks lie near 2^62");

// --------------------------------------------------------------------------------------------------- small files
ScopedFd::~ScopedFd() {
  if (fd_ >= 0) close(fd_);
}

i64 read_start(const char* path, char* buffer, u64 capacity) {
  const ScopedFd file(open(path, O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return -1;
  u64 have = 0;
  while (have + 1 < capacity) {
    const ssize_t got = read(file.get(), buffer + have, capacity - 1 - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    have += static_cast<u64>(got);
  }
  buffer[have] = 0;
  return static_cast<i64>(have);
}

bool read_text(const std::string& path, std::string* text) {
  for (u64 capacity = 8192;; capacity *= 4) {
    text->resize(capacity);
    const i64 got = read_start(path.c_str(), text->data(), capacity);
    if (got < 0) return false;
    if (static_cast<u64>(got) + 1 < capacity) {
      text->resize(static_cast<u64>(got));
      return true;
    }
  }
}

std::string errno_text(int number) {
  char buffer[128];
  // The GNU strerror_r: it may answer with a constant text and leave the buffer alone.
  const char* text = strerror_r(number, buffer, sizeof buffer);
  return std::string(text) + " (" + std::to_string(number) + ")";
}

bool starved(int number) { return number == EMFILE || number == ENFILE || number == ENOMEM; }

void cannot_tell(const std::string& what, int number) {
  std::string remedy;
  if (number == EMFILE) remedy = "; close files, or raise the limit of open files (ulimit -n)";
  if (number == ENFILE) remedy = "; the machine is out of open files: raise fs.file-max (sysctl)";
  if (number == ENOMEM) remedy = "; free memory";
  throw Error(Code::kStoreError, "cannot find out " + what + ": " + errno_text(number) + remedy).told();
}

void cannot_tell_if_starved(const std::string& what) {
  if (starved(errno)) cannot_tell(what, errno);
}

// -------------------------------------------------------------------------------------------------- memory files
int create_memfd(const std::string& name, u64 bytes) {
  rlimit limit{};
  // Past RLIMIT_FSIZE the kernel does not only refuse, it kills with SIGXFSZ.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    throw Error(Code::kCapacity, "the store's address range of " + std::to_string(bytes) +
                                     " bytes exceeds the file size limit of this process; raise it (ulimit -f) or "
                                     "open the store with less memory=");
  }
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = memfd_create(name.c_str(), flags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name.c_str(), flags);  // before Linux 6.3
  if (fd < 0) throw Error(Code::kStoreError, "no memory file for the store: " + errno_text(errno));
  ScopedFd file(fd);
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (fchmod(fd, 0600) != 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 || fcntl(fd, F_ADD_SEALS, seals) != 0) {
    throw Error(Code::kStoreError, "the store's memory file of " + std::to_string(bytes) +
                                       " bytes cannot be set up: " + errno_text(errno));
  }
  return file.release();
}

FileId file_id(int fd) {
  struct stat info{};
  if (fstat(fd, &info) != 0) return {};
  return {static_cast<u64>(info.st_dev), static_cast<u64>(info.st_ino)};
}

u64 file_bytes(int fd) {
  struct stat info{};
  return fstat(fd, &info) == 0 ? static_cast<u64>(info.st_size) : 0;
}

u64 file_blocks_bytes(int fd) {
  struct stat info{};
  return fstat(fd, &info) == 0 ? static_cast<u64>(info.st_blocks) * 512 : 0;
}

u8* map(int fd, u64 bytes, bool writable) {
  // Huge pages need addresses that are congruent to their file offsets, and the kernel aligns memfds only where
  // shmem_enabled says so: reserve one slice more, and lay the file over the aligned part.
  const u64 reserved = bytes + kSliceBytes;
  void* reserve = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserve == MAP_FAILED) return nullptr;
  u8* const begin = static_cast<u8*>(reserve);
  const u64 skip = (kSliceBytes - reinterpret_cast<u64>(begin) % kSliceBytes) % kSliceBytes;
  u8* const at = begin + skip;
  const int access = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  if (mmap(at, bytes, access, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
    const int number = errno;
    munmap(begin, reserved);
    errno = number;
    return nullptr;
  }
  if (skip > 0) munmap(begin, skip);
  const u64 mapped = (bytes + kPageBytes - 1) & ~(kPageBytes - 1);
  if (skip + mapped < reserved) munmap(at + mapped, reserved - skip - mapped);
  madvise(at, mapped, MADV_DONTDUMP);
  return at;
}

void unmap(u8* at, u64 bytes) { munmap(at, bytes); }

int commit(int fd, u64 offset, u64 bytes) {
  // On many kernels any signal makes fallocate give back what it had allocated so far, so under a profiler's timer a
  // whole slice might never get through: after each EINTR the pieces get smaller.
  const u64 end = offset + bytes;
  u64 piece = bytes;
  while (offset < end) {
    const u64 now = std::min(piece, end - offset);
    int number = 0;
#ifdef DI_FAULTS
    number = fault_errno("os.commit");
#endif
    if (number == 0 && fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(now)) != 0) number = errno;
    if (number == 0) {
      offset += now;
      note_commit(fd, now);
    } else if (number == EINTR) {
      piece = std::max(now / 2 & ~(kPageBytes - 1), kPageBytes);
    } else {
      return number;
    }
  }
  return 0;
}

int punch(int fd, u64 offset, u64 bytes) {
  while (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

void resident(u8* at, u64 pages, u8* there) {
  // If the kernel has no memory to answer, the page counts as present and stays charged until the next question.
  if (mincore(at, pages * kPageBytes, there) != 0) std::memset(there, errno == EAGAIN ? 1 : 0, pages);
  for (u64 i = 0; i < pages; ++i) there[i] &= 1;
}

int collapse(u8* at, u64 bytes) { return madvise(at, bytes, MADV_COLLAPSE) == 0 ? 0 : errno; }

u8* map_private(u64 bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  if (bytes >= kSliceBytes) madvise(at, bytes, MADV_HUGEPAGE);  // may fail: then pages are small
  return static_cast<u8*>(at);
}

void use_small_pages(u8* at, u64 bytes) { madvise(at, bytes, MADV_NOHUGEPAGE); }

void touch_private(u8* at, u64 bytes) {
  if (madvise(at, bytes, MADV_POPULATE_WRITE) != 0) __builtin_memset(at, 0, bytes);
  note_private(static_cast<i64>(bytes));
}

void unmap_private(u8* at, u64 bytes, u64 touched) {
  unmap(at, bytes);
  note_private(-static_cast<i64>(touched));
}

u8* map_copy(int fd, u64 bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  madvise(at, bytes, MADV_DONTDUMP);
  return static_cast<u8*>(at);
}

u64 write_at(int fd, u64 offset, const void* from, u64 bytes) {
  u64 done = 0;
  while (done < bytes) {
    const ssize_t put =
        pwrite(fd, static_cast<const u8*>(from) + done, bytes - done, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) break;
    done += static_cast<u64>(put);
  }
  return done;
}

bool read_at(int fd, u64 offset, void* to, u64 bytes) {
  return pread(fd, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

void close_fd(int fd) { close(fd); }

u8* map_wiped_on_fork() {
  void* at = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw Error(Code::kStoreError, "no page of memory: " + errno_text(errno));
  if (madvise(at, kPageBytes, MADV_WIPEONFORK) != 0) {
    const int number = errno;
    munmap(at, kPageBytes);
    throw Error(Code::kStoreError, "MADV_WIPEONFORK (Linux 4.14) is refused: " + errno_text(number));
  }
  return static_cast<u8*>(at);
}

// -------------------------------------------------------------------------------------------------- record locks
namespace {

struct flock one_byte(u64 offset, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = 1;
  return lock;
}

}  // namespace

bool lock_byte(int fd, u64 offset) {
  struct flock lock = one_byte(offset, F_WRLCK);
  int result;
  do {
    result = fcntl(fd, F_SETLK, &lock);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EACCES && errno != EAGAIN) {
    throw Error(
        Code::kStoreError,
        "the kernel gives no record lock, and without one other processes cannot see that this process lives: " +
            errno_text(errno));
  }
  return result == 0;
}

void unlock_byte(int fd, u64 offset) {
  struct flock lock = one_byte(offset, F_UNLCK);
  fcntl(fd, F_SETLK, &lock);
}

bool byte_is_locked(int fd, u64 offset) {
  struct flock lock = one_byte(offset, F_WRLCK);
  // A descriptor that no longer answers proves nothing about anybody's death, so the answer is "held".
  return fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

u32 byte_locker(int fd, u64 offset) {
  struct flock lock = one_byte(offset, F_WRLCK);
  if (fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK) return 0;
  return lock.l_pid > 0 ? static_cast<u32>(lock.l_pid) : kUnknownPid;
}

// --------------------------------------------------------------------------------------------------------- futex
void futex_wait(std::atomic<u32>& word, u32 expected, u64 timeout_ns) {
  timespec span{};
  span.tv_sec = static_cast<time_t>(std::min<u64>(timeout_ns / 1'000'000'000u, 1u << 30));
  span.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000u);
  // Shared, not private: the waiters are other processes with the same page at other addresses.
  syscall(SYS_futex, reinterpret_cast<u32*>(&word), FUTEX_WAIT, expected, timeout_ns == ~u64{0} ? nullptr : &span,
          nullptr, 0);
}

void futex_wake(std::atomic<u32>& word, u32 count) {
  syscall(SYS_futex, reinterpret_cast<u32*>(&word), FUTEX_WAKE, std::min<u32>(count, 0x7fffffffu), nullptr, nullptr, 0);
}

// ------------------------------------------------------------------------------------------------------ blocking
namespace {

BlockHooks g_hooks;
// Only a thread's outermost scope releases the GIL, because a lock wait may run inside a wait that has already released
// it.
thread_local u32 t_blocking_depth = 0;
thread_local u32 t_quiet_depth = 0;
}  // namespace

constinit thread_local InHand t_in_hand;

#ifdef DI_FAULTS
void require_empty_hands(const char* what) {
  if (!t_in_hand.any()) return;
  std::fprintf(stderr, "di-store: a thread %s with %u shared locks and %u mutexes in hand\n", what, t_in_hand.locks,
               t_in_hand.mutexes);
  std::abort();
}
#endif

bool LongWait::is_due() const {
  constexpr u64 kEveryNs = 1'000'000'000;
  return now_ns() - told_ns_ >= kEveryNs && !t_in_hand.any() && g_hooks.waited != nullptr;
}

void LongWait::tell(const std::string& what) {
  const u64 now = now_ns();
  g_hooks.waited(told_ns_ - began_ns_, now - began_ns_, what);
  told_ns_ = now;
}

void set_block_hooks(BlockHooks hooks) { g_hooks = hooks; }
bool ending() { return g_hooks.ending != nullptr && g_hooks.ending(); }

Quiet::Quiet() { ++t_quiet_depth; }
Quiet::~Quiet() { --t_quiet_depth; }

Aside::Aside() {
  if (g_hooks.leave != nullptr) token_ = g_hooks.leave();
}
Aside::~Aside() {
  if (g_hooks.enter_quietly != nullptr) g_hooks.enter_quietly(token_);
}

Blocking::Blocking() : unwinding_(std::uncaught_exceptions()) {
  left_ = t_blocking_depth++ == 0 && !t_in_hand.any() && g_hooks.leave != nullptr;
  if (left_) token_ = g_hooks.leave();
#ifdef DI_FAULTS
  // Others wait for the mutex, perhaps with the GIL: a thread that sleeps with a mutex holds it by a LongGuard.
  if (t_in_hand.mutexes != 0 && g_hooks.inside != nullptr && g_hooks.inside())
    require_empty_hands("sleeps with the interpreter's lock");
#endif
}

Blocking::~Blocking() noexcept(false) {
  --t_blocking_depth;
  if (!left_) return;
  // An error is on its way already, or this is a destructor: an interrupt would end the process. It stays pending in
  // Python.
  if (t_quiet_depth != 0 || std::uncaught_exceptions() != unwinding_)
    g_hooks.enter_quietly(token_);
  else
    g_hooks.enter(token_);
}

void sleep_ns(u64 span_ns) {
  timespec span{};
  span.tv_sec = static_cast<time_t>(span_ns / 1'000'000'000u);
  span.tv_nsec = static_cast<long>(span_ns % 1'000'000'000u);
  nanosleep(&span, nullptr);
}

void random_bytes(void* to, u64 bytes) {
  u8* at = static_cast<u8*>(to);
  while (bytes > 0) {
    const ssize_t got = getrandom(at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(Code::kStoreError, "no random bytes: " + errno_text(errno));
    at += got;
    bytes -= static_cast<u64>(got);
  }
}

}  // namespace di::os
