// Reads parts of segments with many reads in flight: one pool of threads for each process, started when it is first
// used. They run no Python and take no shared lock.
//
// The reads of a call are sorted by place, and reads with small gaps between them are merged. They go past the page
// cache into the process's own memory, never into a store's, whose pages may be given back meanwhile.
//
// A forked child has none of the threads: it starts its own when it reads, and leaves alone the reads of its parent.
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

#include "os/file.h"
#include "tier/segment_format.h"

namespace di {

struct Read {
  u32 segment = 0;
  u64 offset = 0;  // in its file; need not be aligned
  u64 bytes = 0;
  u8* to = nullptr;  // target of the copy, unless a TakeRead is given; valid until the Fetch has ended
  u64 tag = 0;       // for the caller
};

// Consumes a read. `pages`: whole pages, from page offset / kPageBytes on, that hold its bytes. False: they are
// damaged. Runs on several threads of the pool at once; must not block or call Python. Fetch::wait() rethrows what it
// throws.
using TakeRead = std::function<bool(const Read& read, std::span<const u8> pages)>;
// Consumes a read that fails: it is damaged or after the end of the file, the drive refuses it, or the file is gone.
// `what` names the reason, file and page. Without a LoseRead, Fetch::wait() throws. Runs where a TakeRead does; must
// not throw.
struct LostRead {
  const Read& read;
  std::string what;
  bool no_file = false;
};
using LoseRead = std::function<void(const LostRead& lost)>;

class ReadPool;

// Reads that have begun. The destructor cancels those that have not started, and waits for the others. For one thread
// at a time. Movable.
class Fetch {
 public:
  Fetch() = default;
  Fetch(Fetch&& other) noexcept = default;
  Fetch& operator=(Fetch&& other) noexcept;
  ~Fetch() { end(); }

  bool is_done() const;
  // Waits until all reads are done; releases the GIL, handles signals. False: the deadline came first. Throws the first
  // failure: kCorruptData (a TakeRead said so, or the file is too short), kStoreError (it cannot be read).
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
  static constexpr u32 kThreads = 16;             // enough to keep a drive busy with reads of 32 KiB
  static constexpr u64 kGapBytes = 32 << 10;      // a smaller gap is read too, rather than split the read
  static constexpr u64 kRunBytes = 256 << 10;     // of merged reads, and of parts of large reads that are only copied
  static constexpr u64 kSlotBytes = 384 << 10;    // memory of each thread; all slots together in huge pages
  static constexpr std::size_t kMostFiles = 128;  // kept open

  static ReadPool& of_process();

  // Begins reads from segments below `folder`. A number must name the same file until close_all(). Thread-safe, as all
  // of the pool.
  Fetch begin(const std::string& folder, std::span<const Read> reads, TakeRead take = {}, LoseRead lose = {});
  void fetch(const std::string& folder, std::span<const Read> reads, TakeRead take = {}, LoseRead lose = {}) {
    begin(folder, reads, std::move(take), std::move(lose)).wait();
  }
  // Closes files that were removed: until then their blocks are not free. begin() calls this once a second.
  void close_removed();
  // Call this when a store is opened or joined in `folder`, because its files may have the names of earlier ones, and
  // when it was closed.
  void close_all(const std::string& folder);

 private:
  friend class Fetch;
  using SharedFile = std::shared_ptr<os::File>;
  // The reads [first, end) of a batch, merged into one.
  struct Run {
    std::shared_ptr<Fetch::Batch> batch;
    u64 first = 0, end = 0;
  };
  struct OpenFile {
    SharedFile file;
    u64 used = 0;  // value of uses_ at the last use
  };

  // Memory of one thread. A buffer for a run that does not fit into the slot is kept until the thread has no more work.
  struct ThreadBuffers {
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
  void perform_next(std::unique_lock<std::mutex>* lock, ThreadBuffers* memory);
  void perform(const Run& run, ThreadBuffers* memory);
  int read(const std::string& path, u64 first_page, u8* to, u64 bytes, u64* got);
  void lose(const Run& run, const std::string& path, int number, ThreadBuffers* memory);
  void wait_once(Fetch::Batch* batch, u64 most_ns);
  int open(const std::string& path, SharedFile* file);
  void renew_in_child();

  std::mutex mutex_;  // guards all below; its holder waits for nothing else
  std::condition_variable work_;
  std::deque<Run> queue_;
  u32 threads_ = 0, idle_ = 0;
  os::AlignedBuffer slots_;
  std::unordered_map<std::string, OpenFile> files_;
  u64 uses_ = 0, looked_ns_ = 0;
};

}  // namespace di
