// The memory budget: what may be committed before the kernel kills.
//
// Past a cgroup's limit no call fails: the kernel drops what it can and then kills a process. So every commit is
// compared beforehand with what each level has left, less a margin for what other processes take between this check and
// the commit.
//
// One HeadroomCache per process, found through an atomic pointer and remade when the pid differs: a forked child never
// meets a flag that another thread of its parent had set. `busy` is only ever tried: a thread that finds another one
// looking takes the previous answer. No descriptor is kept open for it.
#include "os/memory.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>

#include "base/status.h"
#include "os/os.h"
#include "os/syscalls.h"

namespace di::os {

namespace {

constexpr u64 kUnlimited = ~u64{0};
constexpr Room kNoLimit{kUnlimited, kUnlimited};
constexpr u64 kFreshNs = 1'000'000;            // a headroom is used for this long
constexpr u64 kLevelsFreshNs = 3'000'000'000;  // a process may be moved to another cgroup
constexpr u64 kStatFreshNs = 3'000'000'000;    // memory.stat is at most 2 s old; plus a margin

struct HeadroomCache {
  u32 pid = 0;
  HeadroomCache* before = nullptr;
  std::atomic<bool> busy{false};
  // Answers, read without `busy`: each was right at some recent moment.
  std::atomic<u64> headroom{0};
  std::atomic<u64> for_buffers{0};  // as headroom
  std::atomic<u64> headroom_ns{0};  // 0: never; stored last (release), loaded first (acquire)
  std::atomic<u64> levels_ns{0};
  std::atomic<u64> cgroup{1};
  std::atomic<int> fd{-1};             // the store last committed to
  std::atomic<i64> private_growth{0};  // of this process's own buffers, since the last look
  // Under `busy`.
  std::vector<MemoryLevel> levels;
  FileId file;
  u64 blocks = 0;  // bytes of pages in it at the last look
};

std::atomic<HeadroomCache*> g_headroom_cache{nullptr};

HeadroomCache& headroom_cache() {
  const u32 own = pid();
  HeadroomCache* current = g_headroom_cache.load(std::memory_order_acquire);  // pairs with the exchange below
  while (current == nullptr || current->pid != own) {
    auto* fresh = new HeadroomCache;
    fresh->pid = own;
    if (current != nullptr) fresh->cgroup.store(current->cgroup.load(std::memory_order_relaxed));
    fresh->before = current;  // never freed; this keeps it reachable
    if (g_headroom_cache.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *current;
}

class HeadroomLock {
 public:
  explicit HeadroomLock(HeadroomCache& of) : cache_(of), mine_(!of.busy.exchange(true, std::memory_order_acquire)) {}
  ~HeadroomLock() {
    if (mine_) cache_.busy.store(false, std::memory_order_release);
  }
  HeadroomLock(const HeadroomLock&) = delete;
  HeadroomLock& operator=(const HeadroomLock&) = delete;
  bool mine() const { return mine_; }

 private:
  HeadroomCache& cache_;
  bool mine_;
};

void find_levels(HeadroomCache& b, u64 now) {
  std::vector<MemoryLevel> levels = find_memory_levels();
  for (MemoryLevel& level : levels) {
    for (const MemoryLevel& old : b.levels) {
      if (old.folder == level.folder) level.credit = old.credit;
    }
  }
  b.levels = std::move(levels);
  b.cgroup.store(memory_cgroup_id(b.levels), std::memory_order_relaxed);
  b.levels_ns.store(now, std::memory_order_relaxed);
}

// By how much the store has grown since the last look, whichever process committed.
i64 store_growth(HeadroomCache& b) {
  const int fd = b.fd.load(std::memory_order_relaxed);
  if (fd < 0 || file_id(fd) != b.file) return 0;  // other code closed it: calls are refused
  const u64 blocks = file_blocks_bytes(fd);
  const i64 grown = static_cast<i64>(blocks) - static_cast<i64>(b.blocks);
  b.blocks = blocks;
  return grown;
}

void lower(std::atomic<u64>& answer, u64 bytes) {
  u64 value = answer.load(std::memory_order_relaxed);
  while (!answer.compare_exchange_weak(value, value - std::min(value, bytes), std::memory_order_relaxed)) {
  }
}

// Lowers the amount that the next callers within the millisecond may take. A look that ends meanwhile may undo this.
// Then one piece too many is committed, once; the margin is many pieces wide.
void take_headroom(HeadroomCache& b, u64 bytes) {
  lower(b.headroom, bytes);
  lower(b.for_buffers, bytes);
}

void look(HeadroomCache& b) {
  for (;;) {
    const HeadroomLock busy(b);
    const u64 now = now_ns();
    if (!busy.mine()) {
      if (b.headroom_ns.load(std::memory_order_acquire) != 0) return;
      sched_yield();
      continue;
    }
    if (b.levels_ns.load(std::memory_order_relaxed) == 0 ||
        now - b.levels_ns.load(std::memory_order_relaxed) >= kLevelsFreshNs) {
      find_levels(b, now);
    }
    Room least = machine_room();  // first: it may throw, and the growth can be read only once
    const i64 grown = store_growth(b) + b.private_growth.exchange(0, std::memory_order_relaxed);
    for (MemoryLevel& level : b.levels) {
      const Room room = level_room(level, least.for_store, grown, now);
      least = {std::min(least.for_store, room.for_store), std::min(least.for_buffers, room.for_buffers)};
    }
    b.headroom.store(least.for_store, std::memory_order_relaxed);
    b.for_buffers.store(least.for_buffers, std::memory_order_relaxed);
    b.headroom_ns.store(now, std::memory_order_release);  // pairs with the acquire loads
    return;
  }
}

u64 fresh(std::atomic<u64> HeadroomCache::* answer) {
  HeadroomCache& b = headroom_cache();
  const u64 seen = b.headroom_ns.load(std::memory_order_acquire);  // pairs with the release in look()
  if (seen == 0 || now_ns() - seen >= kFreshNs) look(b);
  return (b.*answer).load(std::memory_order_relaxed);
}

}  // namespace

void FileCredit::note(u64 used, i64 grown, u64 now_ns) {
  const i64 paid = grown - (static_cast<i64>(used) - static_cast<i64>(used_));
  if (noted_ && grown > 0 && paid > 0) {
    credit_ -= std::min(credit_, static_cast<u64>(paid));
    paid_ns_ = now_ns;
  }
  noted_ = true;
  used_ = used;
}

u64 FileCredit::value(u64 files, u64 now_ns) {
  const bool settled = now_ns - paid_ns_ >= kStatFreshNs;
  credit_ = !valued_ || settled ? files : std::min(files, credit_);
  valued_ = true;
  return credit_;
}

u64 margin_of(u64 limit) { return std::max<u64>(u64{64} << 20, limit / 50); }

Room room_below(u64 limit, u64 used) {
  const u64 left = limit - std::min(limit, used), margin = margin_of(limit);
  return {left - std::min(left, margin), left - std::min(left, margin / 4)};
}

Room level_room(MemoryLevel& level, u64 enough, i64 grown, u64 now_ns) {
  const u64 limit = level_limit(level);
  if (limit == kUnlimited) return kNoLimit;
  const u64 cap = limit - std::min(limit, margin_of(limit));
  u64 used = level_used(level);
  if (used == kUnlimited) return kNoLimit;  // the cgroup has gone; the next look finds the new one
  // Below the margin the kernel drops no pages for this level: if usage rose less than the store grew, some process
  // freed memory.
  level.credit.note(used, used >= cap ? grown : 0, now_ns);
  if (used >= cap || cap - used < enough) used -= std::min(used, level.credit.value(level_files(level), now_ns));
  return room_below(limit, used);
}

Room machine_room(const std::string& root) {
  char text[4096];
  if (read_start((root + "/proc/meminfo").c_str(), text, sizeof text) <= 0) {
    cannot_tell_if_starved(kHowMuch);
    return kNoLimit;
  }
  const u64 total = number_after(text, "MemTotal:") * 1024;
  const u64 available = number_after(text, "MemAvailable:") * 1024;
  return room_below(total, total - std::min(total, available));
}

u64 memory_headroom() { return fresh(&HeadroomCache::headroom); }

u64 memory_for_buffers() { return fresh(&HeadroomCache::for_buffers); }

void forget_headroom() { headroom_cache().headroom_ns.store(0, std::memory_order_release); }

void note_commit(int fd, u64 bytes) {
  HeadroomCache& b = headroom_cache();
  take_headroom(b, bytes);
  if (b.fd.load(std::memory_order_relaxed) == fd) return;
  const HeadroomLock busy(b);
  if (!busy.mine()) return;
  b.file = file_id(fd);
  b.blocks = file_blocks_bytes(fd);
  b.blocks -= std::min(b.blocks, bytes);
  b.fd.store(fd, std::memory_order_relaxed);
}

void note_private(i64 bytes) {
  HeadroomCache& b = headroom_cache();
  if (bytes > 0)
    take_headroom(b, static_cast<u64>(bytes));
  else
    forget_headroom();
  b.private_growth.fetch_add(bytes, std::memory_order_relaxed);
}

u64 memory_total() {
  char text[4096];
  u64 least = kUnlimited;
  if (read_start("/proc/meminfo", text, sizeof text) > 0)
    least = number_after(text, "MemTotal:") * 1024;
  else
    cannot_tell_if_starved(kHowMuch);
  for (const MemoryLevel& level : find_memory_levels()) least = std::min(least, level_limit(level));
  return least;
}

u64 cgroup_hash() {
  HeadroomCache& b = headroom_cache();
  const u64 seen = b.levels_ns.load(std::memory_order_relaxed);
  if (seen == 0 || now_ns() - seen >= kLevelsFreshNs) {
    try {
      look(b);
    } catch (const Error&) {  // no descriptor left to ask with: the previous answer will do
    }
  }
  return b.cgroup.load(std::memory_order_relaxed);
}

u64 address_space_limit() {
  u64 least = kUnlimited;
  for (const auto resource : {RLIMIT_AS, RLIMIT_FSIZE}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
      least = std::min<u64>(least, limit.rlim_cur);
    }
  }
  return least;
}

}  // namespace di::os
