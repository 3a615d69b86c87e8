// The only interface to the operating system: no other code makes system calls, so tests can lose, refuse or stop them
// here.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "base/layout.h"
#include "os/clock.h"
#include "os/deadline.h"

namespace di::os {

// --- identity; time: clock.h
u32 pid();
u32 thread_id();
u32 user();                     // effective uid
u32 proc_pid();                 // this process's pid as /proc shows it, which may be another namespace's; 0: unknown
u64 own_start_time();           // clock ticks since boot; 0: cannot be told
u64 page_table_bytes(u32 pid);  // VmPTE of a process, 0 when it cannot be seen
u64 pid_namespace();            // inode; 0: cannot be told
// The state of the process that has this pid in our own pid namespace.
struct ProcessLook {
  bool known = false;  // false: cannot be told (no descriptor left, /proc hidden or of another pid namespace)
  bool lives = false;  // a zombie does not
  char state = 0;      // 'R', 'S', 'T' …; 0: there is none, or unknown
  u64 start_time = 0;  // clock ticks since boot
};
ProcessLook look_at(u32 pid);

// --- memory files
struct FileId {
  u64 device = 0, inode = 0;
  bool operator==(const FileId&) const = default;
};
// 0600, CLOEXEC, sized, sealed SHRINK|GROW|SEAL; throws Error. `name` is the whole text that find_holders looks for:
// memfd_name(store name, uuid).
int create_memfd(const std::string& name, u64 bytes);
FileId file_id(int fd);  // {0,0} when fd is not open
u64 file_bytes(int fd);
u64 file_blocks_bytes(int fd);              // bytes of pages present
u8* map(int fd, u64 bytes, bool writable);  // from offset 0, at a 2 MiB boundary, MADV_DONTDUMP; nullptr
                                            // when the address space is refused
void unmap(u8* at, u64 bytes);
int commit(int fd, u64 offset, u64 bytes);  // fallocate; errno or 0; retries EINTR. After an error some
                                            // of the pages may be there
int punch(int fd, u64 offset, u64 bytes);
void resident(u8* at, u64 pages, u8* there);  // mincore: per page 1 or 0; all 0 where the kernel does not tell
int collapse(u8* at, u64 bytes);              // MADV_COLLAPSE, best effort; errno or 0
                                              // missing pages, so call it only for committed ones
u8* map_private(u64 bytes);                   // addresses of this process's own memory; nullptr: there are none
void use_small_pages(u8* at, u64 bytes);      // of map_private(): from now on a touch commits just the small page
void touch_private(u8* at, u64 bytes);        // commits pages of it, in huge pages where it can be
void unmap_private(u8* at, u64 bytes, u64 touched);
u8* map_copy(int fd, u64 bytes);  // a whole file, copy-on-write: writes stay this process's own; nullptr
bool read_at(int fd, u64 offset, void* to, u64 bytes);
u64 write_at(int fd, u64 offset, const void* from, u64 bytes);  // bytes that were written
void close_fd(int fd);                                          // drops every record lock of this process on that file
u8* map_wiped_on_fork();                                        // one page that reads 0 in a forked child

// --- record locks: one byte per client slot, dropped by the kernel at death
bool lock_byte(int fd, u64 offset);  // false: somebody else holds it; throws kStoreError when there are no locks
void unlock_byte(int fd, u64 offset);
constexpr u32 kUnknownPid = ~u32{0};
// Pid of another process that holds it; kUnknownPid: one of another pid namespace, or it cannot be told; 0: nobody
// does.
u32 byte_locker(int fd, u64 offset);
bool byte_is_locked(int fd, u64 offset);  // by another process; not for the caller's own bytes. True also
                                          // when fcntl fails: nobody is declared dead by mistake

// --- futex on shared memory
void futex_wait(std::atomic<u32>& word, u32 expected, u64 timeout_ns);  // from now; ~0: no limit. May return early
void futex_wake(std::atomic<u32>& word, u32 count);

// --- memory budget
// Bytes this process may still commit before a cgroup level (v1, v2; margin max(64 MiB, 2 %) each) or MemAvailable is
// reached. Reclaimable file pages of a cgroup count as free. Re-read at most once per millisecond.
u64 memory_headroom();
u64 memory_for_buffers();   // the same for batch buffers (Room)
void forget_headroom();     // pages were given back: the next memory_headroom() measures again
u64 memory_total();         // the smaller of machine and cgroup; "25%" is a share of it
u64 cgroup_hash();          // names the cgroup that this process's memory is charged to, the same in every namespace
u64 address_space_limit();  // the smaller of RLIMIT_AS and RLIMIT_FSIZE (a memfd counts as a file), or ~0

// --- finding stores
struct Holder {
  u32 pid;
  int fd;  // number in that process
  std::string name, uuid;
};
std::string memfd_name(const std::string& store_name, const std::string& uuid);  // uuid: hex digits and '-'
// Every live process of this uid, this one included, that holds a store's memfd which belongs to this uid. Pids are
// those that /proc shows. Throws kStoreError if that cannot be told: no descriptor left, /proc hidden.
std::vector<Holder> find_holders();
// Processes that hold record locks on bytes [base, base + count) of some file and are missing in find_holders(). They
// hold a store, but it cannot be identified: the process belongs to another user or gid, or is not dumpable.
struct HiddenHolder {
  u32 pid;
  u32 uid;  // effective; ~0: cannot be told
};
std::vector<HiddenHolder> hidden_holders(u64 base, u64 count, const FileId* of = nullptr);  // `of`: of that file
// Opens the holder's memfd read-write. Identity is checked through O_PATH before the real open, and `already` is asked
// first: closing any other descriptor of the file would drop this process's record lock. Returns -1 with errno set:
// EEXIST when `already` said yes (*id is set), ENOENT when the holder has ended or its file belongs to another user,
// EACCES or EPERM when access is refused. Throws kStoreError when no descriptor is left. Only one thread of a process
// at a time: the call and the registration that `already` reads belong together.
int open_holder(const Holder& holder, const std::function<bool(FileId)>& already, FileId* id);
// The same, opened to read only, for a caller that looks at the file and closes it.
int open_to_look(const Holder& holder, const std::function<bool(FileId)>& already, FileId* id);
// Whether the holder's descriptor is writable; a process that only lists stores has a read-only one. True if that
// cannot be told.
bool may_write(const Holder& holder);

// Whether process `pid` has a memfd of that name mapped: 1 yes, 0 no (it ran exec), -1 cannot be told.
int has_mapped(u32 pid, const std::string& memfd_name);

// --- the folder that serialises create and attach ($DI_STORE_DIR, else /tmp/di-store-<uid>)
std::string store_folder();  // made 0700, owner checked; throws kAccessDenied naming DI_STORE_DIR
void hold_store_folder();    // a shared flock for the life of the process: cleaners of /tmp leave the folder alone
class FolderLock {           // flock on a file in the folder, per store name; throws kTimeout with the culprit. Not
                             // recursive. The file is removed at the end
 public:
  FolderLock(const std::string& store_name, Deadline deadline);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::string path_;
  int fd_ = -1;
};

// --- fault points: in builds with DI_FAULTS, `DI_STORE_FAULT=name:count[:stop]` kills (or stops) this process with a
// real signal when it reaches the named point for the count-th time; `:ENOSPC`, `:ENOMEM`, `:EIO`, `:EINTR`, `:EINVAL`,
// `:EOPNOTSUPP` instead of `:stop` make the call at "os.commit" or "file.…" fail with that. Nothing in other builds.
#ifdef DI_FAULTS
void fault(const char* point);
std::vector<std::string> fault_points();  // every point reached so far in this process
void arm_fault(const std::string& spec);  // as the variable, at run time (for tests that fork); "" disarms
int fault_errno(const char* point);       // errno this call is to fail with, or 0
#define DI_FAULT(point) ::di::os::fault(point)
#else
#define DI_FAULT(point) ((void)0)
#endif

// --- what a thread holds: shared locks, and mutexes of this process. Other threads wait for these. So a thread
// that holds one never asks for the GIL, because another thread may keep the GIL for as long as it likes, and at
// the interpreter's end for ever. Such a thread does not run Python either. A short hold leaves the GIL as it is, even
// while it waits for one more lock, because the owner of that lock does not ask for the GIL either. A thread that may
// hold something for long releases the GIL meanwhile (Aside), and takes it back afterwards.
struct InHand {
  u32 locks = 0, mutexes = 0;
  bool any() const { return (locks | mutexes) != 0; }
};
// This TLS model makes an access one instruction.
extern __attribute__((tls_model("initial-exec"))) constinit thread_local InHand t_in_hand;
#ifdef DI_FAULTS
void require_empty_hands(const char* what);  // ends the process: this thread does `what` while it holds something
#else
inline void require_empty_hands(const char*) {}
#endif

// --- blocking: the bindings release the GIL here and look for signals on the way back
struct BlockHooks {
  bool (*inside)() = nullptr;  // whether this thread has the GIL
  void* (*leave)() = nullptr;
  void (*enter)(void*) = nullptr;  // may throw the error of a signal handler
  void (*enter_quietly)(void*) = nullptr;
  bool (*ending)() = nullptr;
  void (*waited)(u64 before_ns, u64 now_ns,
                 const std::string& what) = nullptr;  // waited at the last report; waited now
};
void set_block_hooks(BlockHooks hooks);
bool ending();  // the interpreter ends: other threads may never run again, whatever they hold
class Quiet {   // scope of a destructor: its waits do not check for signals, which would throw; the next wait does
 public:
  Quiet();
  ~Quiet();
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};
// Scope without the GIL, in which this thread may wait for another thread of this process; looks for no signals. Locks
// that are taken inside are released inside. The scope may begin with held locks that are released before it ends.
class Aside {
 public:
  Aside();
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

 private:
  void* token_ = nullptr;
};
// Waits for a mutex that another thread has. It is a function of its own, so that lock_aside() stays small: every read
// of an object calls that four times.
template <class Mutex>
[[gnu::noinline, gnu::cold]] void wait_aside(Mutex& mutex) {
  if (t_in_hand.any()) return mutex.lock();
  do {
    const Aside aside;
    mutex.lock();
    mutex.unlock();
  } while (!mutex.try_lock());
}
// Locks a mutex of this process. If this thread holds nothing, the wait releases the GIL, because the mutex may be one
// that is held for long. If it holds something, the GIL stays as it is, because such a mutex is held only for a moment.
// A fork holds all these mutexes across fork() (attach/fork.cc).
template <class Mutex>
void lock_aside(Mutex& mutex) {
  if (!mutex.try_lock()) [[unlikely]]
    wait_aside(mutex);
}
template <class Mutex>
class LocalGuard {  // for a moment: the owner neither does nor awaits anything slow
 public:
  explicit LocalGuard(Mutex& mutex) : mutex_(mutex) {
    lock_aside(mutex_);
    ++t_in_hand.mutexes;
  }
  ~LocalGuard() {
    --t_in_hand.mutexes;
    mutex_.unlock();
  }
  LocalGuard(const LocalGuard&) = delete;
  LocalGuard& operator=(const LocalGuard&) = delete;

 private:
  Mutex& mutex_;
};
template <class Mutex>
class LongGuard {  // as long as it takes, without the GIL: its owner waits for shared locks, or for the disk
 public:
  explicit LongGuard(Mutex& mutex) : guard_(mutex) {}

 private:
  Aside aside_;  // first: it ends last
  LocalGuard<Mutex> guard_;
};
// A long wait: tell() reports it to the hook, about once a second if the thread holds nothing.
class LongWait {
 public:
  LongWait() : began_ns_(now_ns()), told_ns_(began_ns_) {}
  bool is_due() const;
  void tell(const std::string& what);

 private:
  u64 began_ns_, told_ns_;
};
// Scope in which this thread may sleep: without the GIL, unless it holds something. Only a thread's outermost
// scope calls the hooks.
class Blocking {
 public:
  Blocking();
  ~Blocking() noexcept(false);
  Blocking(const Blocking&) = delete;
  Blocking& operator=(const Blocking&) = delete;

 private:
  bool left_ = false;
  void* token_ = nullptr;
  int unwinding_;
};
void sleep_ns(u64 span_ns);  // may return early

// --- bulk copies, as memcpy; ends with a store fence where it streams, so a release store may publish the bytes
void copy(void* to, const void* from, u64 bytes);            // normal stores, streaming (non-temporal) from 256 KiB on
void copy_streaming(void* to, const void* from, u64 bytes);  // streaming from 16 KiB on: for memory not read soon
void random_bytes(void* to, u64 bytes);

// --- fork handshake
// Sets handlers around every fork() of this process, for good. They run before any other code in the
// child.
void on_fork(void (*prepare)(), void (*parent)(), void (*child)());
bool make_private(u8* at, u64 bytes);  // read-only pages of a mapping become copies of this process; false: no memory
bool make_unreadable(u8* at, u64 bytes);  // a process that reads them dies
void make_pipe(int fds[2]);               // CLOEXEC; {-1, -1} when there are no descriptors left
void write_byte(int fd);
void wait_readable(int fd, int timeout_ms);

}  // namespace di::os
