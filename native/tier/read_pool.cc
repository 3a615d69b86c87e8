// See read_pool.h.
#include "tier/read_pool.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>

#include "os/thread.h"

namespace di {

namespace {

constexpr u64 kSliceNs = 50'000'000;  // longest slice of a wait, and so longest delay of an interrupt
constexpr u64 kLookNs = 1'000'000'000;

u64 first_page(const Read& read) { return read.offset / kPageBytes; }
u64 last_page(const Read& read) { return pages_of(read.offset + read.bytes); }

constexpr int kTries = 3;  // for a read that the drive refuses

// Errors that mean that the bytes are lost, not that this process may not, or cannot now, read them.
bool is_loss(int number) {
  return number == EIO || number == ENOENT || number == ENODATA || number == EBADMSG || number == EUCLEAN;
}

std::string place_of(const Read& read, const std::string& path) {
  return "page " + std::to_string(first_page(read)) + " of " + path;
}

}  // namespace

struct Fetch::Batch {
  std::string folder;
  std::vector<Read> reads;  // by place
  TakeRead take;
  LoseRead lose;
  u32 pid = os::pid();
  // Guarded by the pool's mutex:
  u64 pending = 0;  // runs not finished
  std::exception_ptr error;
  std::condition_variable done;
};

// ---------------------------------------------------------------------------------------------------------- fetch
Fetch& Fetch::operator=(Fetch&& other) noexcept {
  if (this == &other) return *this;
  end();
  batch_ = std::move(other.batch_);
  return *this;
}

bool Fetch::is_done() const {
  if (batch_ == nullptr || batch_->pid != os::pid()) return true;
  const std::lock_guard<std::mutex> guard(ReadPool::of_process().mutex_);
  return batch_->pending == 0;
}

bool Fetch::wait(Deadline deadline) {
  if (batch_ == nullptr) return true;
  if (batch_->pid != os::pid())
    throw Error(Code::kStoreError, "these reads were begun by the process that this one was forked from").told();
  while (!is_done()) {
    if (deadline.over()) return false;
    const os::Blocking scope;
    ReadPool::of_process().wait_once(batch_.get(), deadline.left_ns(kSliceNs));
  }
  if (batch_->error) std::rethrow_exception(batch_->error);
  return true;
}

void Fetch::end() {
  if (batch_ == nullptr) return;
  if (batch_->pid != os::pid()) {
    // Threads of the parent may sleep on the batch, as this process sees it: its destructor would wait for them.
    new std::shared_ptr<Batch>(std::move(batch_));
    return;
  }
  ReadPool& pool = ReadPool::of_process();
  {
    const std::lock_guard<std::mutex> guard(pool.mutex_);
    batch_->pending -= std::erase_if(pool.queue_, [this](const ReadPool::Run& run) { return run.batch == batch_; });
  }
  if (!is_done()) {
    const os::Aside aside;
    while (!is_done()) pool.wait_once(batch_.get(), kSliceNs);
  }
  batch_.reset();
}

// ----------------------------------------------------------------------------------------------------------- pool
ReadPool& ReadPool::of_process() {
  // Never destroyed: threads may be asleep in it when the process ends.
  static ReadPool* const pool = [] {
    static ReadPool* made = new ReadPool;
    os::on_fork([] { made->mutex_.lock(); }, [] { made->mutex_.unlock(); }, [] { made->renew_in_child(); });
    return made;
  }();
  return *pool;
}

namespace {

// The pool is made at load, before stores watch forks (attach/fork): a fork takes mutexes in the opposite order, so it
// takes the pool's mutex last. Otherwise the fork would hold this mutex while it waits for theirs, and their owners may
// wait for this one.
[[maybe_unused]] const ReadPool& g_made_at_load = ReadPool::of_process();

}  // namespace

// The forking thread held the mutex, so all that it guards is consistent.
void ReadPool::renew_in_child() {
  for (auto& [path, open] : files_) open.file->close();
  files_.clear();
  queue_.clear();
  threads_ = idle_ = 0;
  slots_.clear();
  new (&mutex_) std::mutex;
  new (&work_) std::condition_variable;
}

// Splits reads that are only copied, so that several threads can read them.
std::vector<Read> ReadPool::parts_of(std::span<const Read> reads) {
  std::vector<Read> parts;
  parts.reserve(reads.size());
  for (Read read : reads) {
    while (read.bytes > kRunBytes) {
      const u64 bytes = kRunBytes - read.offset % kPageBytes;  // up to the end of a page
      parts.push_back({read.segment, read.offset, bytes, read.to, read.tag});
      read.offset += bytes;
      read.to += bytes;
      read.bytes -= bytes;
    }
    parts.push_back(read);
  }
  return parts;
}

// Merges reads that are close neighbours on disk into one run.
std::vector<ReadPool::Run> ReadPool::plan(const std::shared_ptr<Fetch::Batch>& batch) {
  std::vector<Read>& reads = batch->reads;
  std::sort(reads.begin(), reads.end(), [](const Read& a, const Read& b) {
    return a.segment != b.segment ? a.segment < b.segment : a.offset < b.offset;
  });
  std::vector<Run> runs;
  u64 begin = 0, end = 0;  // pages of the last run
  for (u64 i = 0; i < reads.size(); ++i) {
    const u64 first = first_page(reads[i]), last = last_page(reads[i]);
    const bool near =
        i != 0 && reads[i].segment == reads[i - 1].segment && first * kPageBytes <= end * kPageBytes + kGapBytes;
    if (near && (last <= end || (last - begin) * kPageBytes <= kRunBytes)) {
      end = std::max(end, last);
    } else {
      runs.push_back({batch, i, i});
      begin = first;
      end = last;
    }
    runs.back().end = i + 1;
  }
  return runs;
}

Fetch ReadPool::begin(const std::string& folder, std::span<const Read> reads, TakeRead take, LoseRead lose) {
  constexpr u64 kMostBytes = u64{1} << 44;  // of a segment: page numbers have 32 bits
  if (reads.empty()) return {};
  for (const Read& read : reads)
    if (read.offset > kMostBytes || read.bytes > kMostBytes) throw Error(Code::kInvalid, "a read outside a segment");
  auto batch = std::make_shared<Fetch::Batch>();
  batch->folder = folder;
  batch->reads = take ? std::vector<Read>(reads.begin(), reads.end()) : parts_of(reads);
  batch->take = std::move(take);
  batch->lose = std::move(lose);
  Fetch fetch(batch);
  const std::vector<Run> runs = plan(batch);
  bool look = false;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (const Run& run : runs) {
      queue_.push_back(run);
      ++batch->pending;
    }
    start_threads();
    for (u64 i = std::min<u64>(runs.size(), idle_); i != 0; --i) work_.notify_one();
    look = os::now_ns() - looked_ns_ >= kLookNs;
  }
  if (look) close_removed();
  return fetch;
}

// Starts as many threads as there are runs beyond those that idle threads will take.
void ReadPool::start_threads() {
  for (u64 wanted = queue_.size() - std::min<u64>(queue_.size(), idle_); wanted != 0 && threads_ < kThreads; --wanted) {
    try {
      if (slots_.data() == nullptr) slots_ = os::AlignedBuffer(kThreads * kSlotBytes);
    } catch (const std::bad_alloc&) {
      return;
    }
    u8* const slot = slots_.data() + threads_ * kSlotBytes;
    if (os::start_thread([this, slot] { work(slot); }) != 0) return;
    ++threads_;
  }
}

void ReadPool::work(u8* slot) {
  ThreadBuffers memory{slot, kSlotBytes, {}};
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    while (queue_.empty()) {
      memory.large.clear();
      ++idle_;
      work_.wait(lock);
      --idle_;
    }
    perform_next(&lock, &memory);
  }
}

u8* ReadPool::ThreadBuffers::of(u64 bytes) {
  if (bytes <= slot_bytes) return slot;
  if (large.bytes() < bytes) {
    large.clear();  // first, so that there are never two buffers
    large = os::AlignedBuffer(bytes);
  }
  return large.data();
}

// Releases the lock while it performs the run.
void ReadPool::perform_next(std::unique_lock<std::mutex>* lock, ThreadBuffers* memory) {
  Run run = std::move(queue_.front());
  queue_.pop_front();
  lock->unlock();
  std::exception_ptr error;
  try {
    perform(run, memory);
  } catch (...) {
    error = std::current_exception();
  }
  lock->lock();
  if (error && !run.batch->error) run.batch->error = std::move(error);
  if (--run.batch->pending == 0) run.batch->done.notify_all();
  lock->unlock();
  run.batch.reset();  // without the lock: the end of the batch may run any code
  lock->lock();
}

void ReadPool::wait_once(Fetch::Batch* batch, u64 most_ns) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (batch->pending == 0) return;
  if (threads_ == 0 && !queue_.empty()) {  // no thread could be started
    ThreadBuffers memory;
    perform_next(&lock, &memory);
    return;
  }
  batch->done.wait_for(lock, std::chrono::nanoseconds(most_ns));
}

// An error of the drive may be temporary: makes a few tries.
int ReadPool::read(const std::string& path, u64 first_page, u8* to, u64 bytes, u64* got) {
  int number = 0;
  for (int tries = 0; tries < kTries; ++tries) {
    SharedFile file;
    number = open(path, &file);
    if (number == 0) number = file->read(first_page * kPageBytes, to, bytes, got);
    if (number != EIO) break;
  }
  return number;
}

// Reads each read of a failed run by itself: perhaps only another read's part of the drive is damaged.
void ReadPool::lose(const Run& run, const std::string& path, int number, ThreadBuffers* memory) {
  const Error error = os::file_error("the segment " + path + " cannot be read", number);
  if (!run.batch->lose || !is_loss(number)) throw error;
  if (number != ENOENT && run.end - run.first > 1) {
    for (u64 i = run.first; i < run.end; ++i) perform({run.batch, i, i + 1}, memory);
    return;
  }
  for (u64 i = run.first; i < run.end; ++i) {
    const Read& read = run.batch->reads[i];
    run.batch->lose({read, place_of(read, path) + ": " + error.what(), number == ENOENT});
  }
}

void ReadPool::perform(const Run& run, ThreadBuffers* memory) {
  const std::vector<Read>& reads = run.batch->reads;
  const u64 first = first_page(reads[run.first]);
  u64 last = first;
  for (u64 i = run.first; i < run.end; ++i) last = std::max(last, last_page(reads[i]));
  const std::string path = run.batch->folder + "/" + segment_name(reads[run.first].segment);
  const u64 bytes = (last - first) * kPageBytes;
  u8* const at = memory->of(bytes);
  u64 got = 0;
  if (const int number = read(path, first, at, bytes, &got)) return lose(run, path, number, memory);
  for (u64 i = run.first; i < run.end; ++i) {
    const Read& read = reads[i];
    const u8* const pages = at + (first_page(read) - first) * kPageBytes;
    const u64 length = (last_page(read) - first_page(read)) * kPageBytes;
    bool sound = (first_page(read) - first) * kPageBytes + length <= got;
    if (sound && run.batch->take)
      sound = run.batch->take(read, {pages, length});
    else if (sound && read.bytes != 0)
      std::memcpy(read.to, pages + read.offset % kPageBytes, read.bytes);
    if (sound) continue;
    if (!run.batch->lose) throw Error(Code::kCorruptData, place_of(read, path));
    run.batch->lose({read, place_of(read, path) + ": not what was written", false});
  }
}

// ---------------------------------------------------------------------------------------------------------- files
int ReadPool::open(const std::string& path, SharedFile* file) {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto found = files_.find(path);
    if (found != files_.end()) {
      found->second.used = ++uses_;
      *file = found->second.file;
      return 0;
    }
  }
  auto fresh = std::make_shared<os::File>();
  if (const int number = fresh->open(path, os::FileAccess::kRead, os::PageCache::kPast)) return number;
  SharedFile gone;  // closed without the lock
  const std::lock_guard<std::mutex> guard(mutex_);
  if (files_.size() >= kMostFiles) {
    const auto oldest = std::min_element(files_.begin(), files_.end(),
                                         [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    gone = std::move(oldest->second.file);
    files_.erase(oldest);
  }
  OpenFile& open = files_[path];
  if (open.file == nullptr) open.file = std::move(fresh);  // otherwise another thread was faster
  open.used = ++uses_;
  *file = open.file;
  return 0;
}

void ReadPool::close_all(const std::string& folder) {
  std::vector<SharedFile> gone;  // closed without the lock
  const std::lock_guard<std::mutex> guard(mutex_);
  for (auto at = files_.begin(); at != files_.end();) {
    if (at->first.starts_with(folder + "/")) {
      gone.push_back(std::move(at->second.file));
      at = files_.erase(at);
    } else {
      ++at;
    }
  }
}

void ReadPool::close_removed() {
  std::vector<SharedFile> gone;  // closed without the lock
  const std::lock_guard<std::mutex> guard(mutex_);
  looked_ns_ = os::now_ns();
  for (auto at = files_.begin(); at != files_.end();) {
    if (at->second.file->links() == 0) {
      gone.push_back(std::move(at->second.file));
      at = files_.erase(at);
    } else {
      ++at;
    }
  }
}

}  // namespace di
