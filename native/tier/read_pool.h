// Reads parts of segments with many reads in flight: one pool of threads for each process, started when it is first
// used. They run no Python and take no shared lock.
//
// Reads of a call are sorted by place, and those with small gaps between them become one. They go past the page cache
// into memory of the process's own, never into that of a store, whose pages may be given back meanwhile.
//
// A forked child has none of the threads: it starts its own when it reads, and leaves alone what its parent had begun.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "os/direct.h"
#include "tier/segment_format.h"

namespace di {

struct Read {
  u32 segment = 0;
  u64 offset = 0;  // in its file, any
  u64 bytes = 0;
  u8* to = nullptr;  // where they are copied to, unless a TakeRead is given; valid until the Fetch has ended
  u64 tag = 0;       // for the caller
};

// What becomes of a read. `pages`: whole pages, those from offset / kPageBytes on that hold its bytes. False: they are
// damaged. Runs on threads of the pool, on several at once; must not block, nor call Python. What it throws is thrown
// again by Fetch::wait().
using TakeRead = std::function<bool(const Read& read, std::span<const u8> pages)>;
// What becomes of a read that cannot be had: damaged, behind the end of the file, refused by the drive, or the file is gone.
// `what` says so, with file and page. Without it Fetch::wait() throws. Runs where a TakeRead does; must not throw.
struct LostRead {
  const Read& read;
  std::string what;
  bool no_file = false;
};
using LoseRead = std::function<void(const LostRead& lost)>;

class ReadPool;

// Reads that have been begun. Its end lets go those that have not started yet, and waits for the others. For one thread
// at a time. Movable.
class Fetch {
 public:
  Fetch() = default;
  Fetch(Fetch&& other) noexcept = default;
  Fetch& operator=(Fetch&& other) noexcept;
  ~Fetch() { end(); }

  bool is_done() const;
  // Until all are done; leaves the GIL, looks for signals. False: the deadline came first. Throws what failed first:
  // kCorruptData (a TakeRead said so, or the file is too short), kStoreError (it cannot be read).
  bool wait(Deadline deadline = Deadline::none());

 private:
  friend class ReadPool;
  struct Batch;
  explicit Fetch(std::shared_ptr<Batch> batch) : batch_(std::move(batch)) {}
  void end();

  std::shared_ptr<Batch> batch_;
};

class ReadPool {
 public:
  static constexpr u32 kThreads = 16;             // as many keep a drive busy with reads of 32 KiB
  static constexpr u64 kGapBytes = 32 << 10;      // read for nothing rather than read apart
  static constexpr u64 kRunBytes = 256 << 10;     // of merged reads, and of parts of large ones that are only copied
  static constexpr u64 kSlotBytes = 384 << 10;    // of memory for each thread, together in huge pages
  static constexpr std::size_t kMostFiles = 128;  // held open

  static ReadPool& of_process();

  // Reads from segments below `folder`. A number must name the same file until close_all(). Thread-safe, as all of the pool.
  Fetch begin(const std::string& folder, std::span<const Read> reads, TakeRead take = {}, LoseRead lose = {});
  void fetch(const std::string& folder, std::span<const Read> reads, TakeRead take = {}, LoseRead lose = {}) {
    begin(folder, reads, std::move(take), std::move(lose)).wait();
  }
  // Closes files that somebody has removed: until then their blocks are not free. begin() does it once a second.
  void close_removed();
  // A store is opened or joined there, whose files may have the names of earlier ones; or it was closed here.
  void close_all(const std::string& folder);

 private:
  friend class Fetch;
  using File = std::shared_ptr<os::DirectFile>;
  // Reads [first, end) of a batch, as one.
  struct Run {
    std::shared_ptr<Fetch::Batch> batch;
    u64 first = 0, end = 0;
  };
  struct Open {
    File file;
    u64 used = 0;  // when: the value of uses_
  };

  // Of one thread. A buffer for a run that does not fit into the slot is kept until there is nothing to do.
  struct Memory {
    u8* slot = nullptr;
    u64 slot_bytes = 0;
    os::AlignedBuffer large;
    u8* of(u64 bytes);
  };

  ReadPool() = default;
  static std::vector<Read> parts_of(std::span<const Read> reads);
  static std::vector<Run> plan(const std::shared_ptr<Fetch::Batch>& batch);
  void start_threads();
  void work(u8* slot);
  void perform_next(std::unique_lock<std::mutex>* lock, Memory* memory);
  void perform(const Run& run, Memory* memory);
  int read(const std::string& path, u64 first_page, u8* to, u64 bytes, u64* got);
  void lose(const Run& run, const std::string& path, int number, Memory* memory);
  void wait_once(Fetch::Batch* batch, u64 most_ns);
  int open(const std::string& path, File* file);
  void renew_in_child();

  std::mutex mutex_;  // of all below; taken by nobody who waits for anything else
  std::condition_variable work_;
  std::deque<Run> queue_;
  u32 threads_ = 0, idle_ = 0;
  os::AlignedBuffer slots_;
  std::unordered_map<std::string, Open> files_;
  u64 uses_ = 0, looked_ns_ = 0;
};

}  // namespace di
