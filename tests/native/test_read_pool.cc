// The pool of reading threads: right bytes, errors, ends before the time, forks, files that went.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "child.h"
#include "folder_fixture.h"
#include "os/filesystem.h"
#include "os/syscalls.h"
#include "refusals.h"
#include "segment_fixture.h"
#include "tier/page_crcs.h"
#include "tier/read_pool.h"

using namespace di;

namespace {

// A file of random bytes, named as a segment.
Bytes make_file(const std::string& folder, u32 number, u64 bytes) {
  std::mt19937 random(number);
  Bytes made = some_bytes(&random, bytes);
  write_file(folder + "/" + segment_name(number), made);
  return made;
}

u64 open_files(const std::string& text) {
  u64 count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry.path(), gone).string().find(text) != std::string::npos;
  }
  return count;
}

// Random parts of several files, some overlapping, some apart, in any order: each read gets its own bytes.
void test_bytes(const std::string& folder) {
  std::mt19937 random(1);
  std::vector<Bytes> files;
  for (u32 number = 0; number < 3; ++number) files.push_back(make_file(folder, number, 2 << 20));
  for (u64 round = 0; round < 30; ++round) {
    const u64 most = round % 3 == 0 ? 600000 : 30000;
    std::vector<Read> reads(1 + random() % 200);
    std::vector<Bytes> got(reads.size());
    for (u64 i = 0; i < reads.size(); ++i) {
      got[i].resize(random() % most);
      reads[i] = {static_cast<u32>(random() % 3), random() % ((2 << 20) - got[i].size()), got[i].size(), got[i].data(),
                  i};
    }
    ReadPool::of_process().fetch(folder, reads);
    const auto is_right = [&](const Read& read) {
      return std::memcmp(files[read.segment].data() + read.offset, got[read.tag].data(), read.bytes) == 0;
    };
    CHECK(std::all_of(reads.begin(), reads.end(), is_right));
    // The same, taken from whole pages.
    for (Bytes& bytes : got) std::fill(bytes.begin(), bytes.end(), u8{0});
    ReadPool::of_process().fetch(folder, reads, [](const Read& read, std::span<const u8> pages) {
      CHECK(pages.size() % kPageBytes == 0 && read.offset % kPageBytes + read.bytes <= pages.size());
      if (read.bytes != 0) std::memcpy(read.to, pages.data() + read.offset % kPageBytes, read.bytes);
      return true;
    });
    CHECK(std::all_of(reads.begin(), reads.end(), is_right));
  }
  ReadPool::of_process().fetch(folder, {});
}

void test_records(const std::string& folder) {
  std::mt19937 random(2);
  SegmentOwner owner;
  owner.number = 7;
  SegmentWriter writer = SegmentWriter::create(folder, owner, 4 << 20);
  KnownRecord record = some_record(&random, 1, 100, 0);
  record.body = some_bytes(&random, 700000);
  record.codec = 1;
  append(&writer, &record);
  const std::vector<u32> crcs = page_crcs(record.body);
  const auto fetch_all = [&](Bytes* to) {
    std::vector<Read> reads;
    for (u64 at = 0; at + 1000 <= record.body.size(); at += 50000)
      reads.push_back({7, record.place.page * kPageBytes + at, 1000, to->data() + at, at});
    ReadPool::of_process().fetch(folder, reads, [&crcs](const Read& read, std::span<const u8> pages) {
      std::memcpy(read.to, pages.data() + read.offset % kPageBytes, read.bytes);
      return verify_pages(crcs, read.tag / kPageBytes, pages);
    });
  };
  Bytes got(record.body.size());
  fetch_all(&got);
  CHECK(std::memcmp(got.data() + 50000, record.body.data() + 50000, 1000) == 0);
  Bytes file = bytes_of_file(writer.path());
  file[record.place.page * kPageBytes + 100000] ^= 4;
  write_file(writer.path(), file);
  CHECK(code_of([&] { fetch_all(&got); }) == Code::kCorruptData);
}

void test_errors(const std::string& folder) {
  make_file(folder, 1, 10 * kPageBytes);
  Bytes got(3 * kPageBytes);
  ReadPool& pool = ReadPool::of_process();
  const auto code = [&](Read read, const TakeRead& take = {}) {
    read.to = got.data();
    return code_of([&] { pool.fetch(folder, {&read, 1}, take); });
  };
  CHECK(code({2, 0, 100}) == Code::kStoreError);
  CHECK(code({1, 9 * kPageBytes, kPageBytes}) == Code::kEndOfData);  // no error
  CHECK(code({1, 9 * kPageBytes + 1, kPageBytes}) == Code::kCorruptData);
  CHECK(code({1, 10 * kPageBytes, 1}) == Code::kCorruptData && code({1, ~u64{0} - 5, 1}) == Code::kInvalid);
  CHECK(code({1, 5, ~u64{0} - 2}) == Code::kInvalid);
  const auto refuse = [](const Read&, std::span<const u8>) { return false; };
  CHECK(code({1, 0, 10}, refuse) == Code::kCorruptData);
  const auto fail = [](const Read&, std::span<const u8>) -> bool { throw Error(Code::kTimeout, "x"); };
  CHECK(code({1, 0, 10}, fail) == Code::kTimeout);
#ifdef DI_FAULTS
  os::arm_fault("file.read:1:EIO");  // which passes
  CHECK(code({1, 0, 10}) == Code::kEndOfData);
  os::arm_fault("file.read:1:EIO+");
  CHECK(code({1, 0, 10}) == Code::kStoreError);
  os::arm_fault("");
#endif
  CHECK(code({1, 0, 10}) == Code::kEndOfData);
}

// What this process has had read from disks so far; 0: it is not told.
u64 device_bytes() {
  std::string text;
  if (!os::read_text("/proc/self/io", &text)) return 0;
  const u64 at = text.find("\nread_bytes: ");
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + 13));
}

// Rows of 28 KB that lie apart cost little more than their own bytes.
void test_amplification(const std::string& folder) {
  constexpr u64 kRow = 84 * 84 * 4, kRows = 1000, kReads = 60;
  os::Filesystem found;
  CHECK(os::filesystem_of(folder, &found) == 0);
  make_file(folder, 1, kRow * kRows);
  os::File file;
  CHECK(file.open(folder + "/" + segment_name(1), os::FileAccess::kReadWrite, os::PageCache::kPast) == 0 &&
        file.sync() == 0);
  std::mt19937 random(3);
  Bytes got(kRow * kReads);
  std::vector<Read> reads;
  for (u64 i = 0; i < kReads; ++i) reads.push_back({1, random() % kRows * kRow, kRow, got.data() + i * kRow, 0});
  const u64 before = device_bytes();
  ReadPool::of_process().fetch(folder, reads);
  const u64 moved = device_bytes() - before;
  if (!file.is_direct() || found.kind == "tmpfs" || moved == 0 || is_emulated()) return;
  CHECK(moved > kRow * kReads / 2 && static_cast<double>(moved) < 1.3 * static_cast<double>(kRow * kReads));
}

// What has not begun when a Fetch ends never runs; what has is waited for.
void test_ends(const std::string& folder) {
  make_file(folder, 1, 400 * kPageBytes);
  std::promise<void> let_go;
  const std::shared_future<void> go = let_go.get_future().share();
  std::atomic<u32> began{0};
  std::atomic<bool> over{false};
  auto memory = std::make_unique<Bytes>(400 * kPageBytes);
  std::vector<Read> reads;
  for (u64 i = 0; i < 40; ++i) reads.push_back({1, i * 10 * kPageBytes, 100, memory->data() + i * 1000, 0});
  std::future<void> ends;
  {
    Fetch fetch = ReadPool::of_process().begin(folder, reads, [&](const Read& read, std::span<const u8> pages) {
      ++began;
      go.wait();
      CHECK(!over);
      std::memcpy(read.to, pages.data(), read.bytes);
      return true;
    });
    while (began == 0) std::this_thread::yield();
    CHECK(!fetch.is_done() && !fetch.wait(Deadline::only_try()) && !fetch.wait(Deadline::in(1'000'000)));
    ends = std::async(std::launch::async,
                      [moved = std::make_shared<Fetch>(std::move(fetch))]() mutable { moved.reset(); });
    CHECK(fetch.is_done() && fetch.wait());  // nothing is left in it
  }
  let_go.set_value();
  ends.get();
  over = true;
  CHECK(began <= 40);
  memory.reset();  // nobody writes to it any more
  const u32 before = began;
  Bytes got(100);
  const Read read{1, 0, 100, got.data(), 0};
  ReadPool::of_process().fetch(folder, {&read, 1});
  CHECK(began == before);
}

// A child reads with threads of its own, and neither waits for nor ends what the parent began.
void test_fork(const std::string& folder) {
  const Bytes file = make_file(folder, 1, 100 * kPageBytes);
  std::promise<void> let_go;
  const std::shared_future<void> go = let_go.get_future().share();
  std::atomic<bool> began{false};
  Bytes got(100), here(100);
  const Read read{1, 5000, 100, got.data(), 0};
  Fetch fetch = ReadPool::of_process().begin(folder, {&read, 1}, [&](const Read&, std::span<const u8> pages) {
    began = true;
    go.wait();
    std::memcpy(got.data(), pages.data() + read.offset % kPageBytes, 100);
    return true;
  });
  while (!began) std::this_thread::yield();
  Child child([&] {
    CHECK(open_files("segment-") == 0);
    CHECK(fetch.is_done() && code_of([&] { fetch.wait(); }) == Code::kStoreError);
    fetch = Fetch();
    const Read own{1, 7000, 100, here.data(), 0};
    ReadPool::of_process().fetch(folder, {&own, 1});
    CHECK(std::memcmp(here.data(), file.data() + 7000, 100) == 0 && open_files("segment-") == 1);
    Child grandchild([&] {
      ReadPool::of_process().fetch(folder, {&own, 1});
      return 8;
    });
    CHECK(grandchild.wait() == 8);
    return 9;
  });
  CHECK(child.wait() == 9);
  let_go.set_value();
  CHECK(fetch.wait() && std::memcmp(got.data(), file.data() + 5000, 100) == 0);
}

// Forks at any moment of others' reads.
void test_forks_under_load(const std::string& folder) {
  const Bytes file = make_file(folder, 1, 100 * kPageBytes);
  const auto read_some = [&](u32 seed) {
    std::mt19937 random(seed);
    Bytes got(20 * 100);
    std::vector<Read> reads;
    for (u64 i = 0; i < 20; ++i) reads.push_back({1, random() % (99 * kPageBytes), 100, got.data() + i * 100, 0});
    ReadPool::of_process().fetch(folder, reads);
    for (const Read& read : reads) CHECK(std::memcmp(read.to, file.data() + read.offset, 100) == 0);
  };
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (u32 i = 0; i < 3; ++i) {
    threads.emplace_back([&over, &read_some, i] {
      for (u32 seed = i; !over; seed += 3) read_some(seed);
    });
  }
  for (u32 i = 0; i < 15; ++i) {
    Child child([&read_some, i] {
      read_some(i);
      return 2;
    });
    CHECK(child.wait() == 2);
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
}

// Without a thread of its own the pool reads in the caller's.
void test_no_threads(const std::string& folder) {
#ifdef DI_FAULTS
  const Bytes file = make_file(folder, 1, 100 * kPageBytes);
  Child child([&] {  // where there are none yet
    Bytes got(50 * 100);
    std::vector<Read> reads;
    for (u64 i = 0; i < 50; ++i) reads.push_back({1, i * 8000, 100, got.data() + i * 100, 0});
    os::arm_fault("os.start_thread:1:ENOMEM");
    ReadPool::of_process().fetch(folder, reads);
    for (u64 i = 0; i < 50; ++i) CHECK(std::memcmp(got.data() + i * 100, file.data() + i * 8000, 100) == 0);
    return 7;
  });
  CHECK(child.wait() == 7);
#else
  static_cast<void>(folder);
#endif
}

// Few files are held open, and none that somebody has removed.
void test_files(const std::string& folder) {
  ReadPool& pool = ReadPool::of_process();
  Bytes got(10);
  for (u32 number = 0; number < ReadPool::kMostFiles + 20; ++number) {
    const Bytes file = make_file(folder, number, 2 * kPageBytes);
    const Read read{number, 4000, 10, got.data(), 0};
    pool.fetch(folder, {&read, 1});
    CHECK(std::memcmp(got.data(), file.data() + 4000, 10) == 0);
  }
  const u64 held = open_files(folder);
  CHECK(held > 0 && held <= ReadPool::kMostFiles);
  for (u32 number = 0; number < ReadPool::kMostFiles + 20; ++number)
    CHECK(os::remove_file(folder + "/" + segment_name(number)) == 0);
  pool.close_removed();
  CHECK(open_files(folder) == 0);
}

}  // namespace

int main() {
  for (const auto test : {test_bytes, test_records, test_errors, test_amplification, test_ends, test_fork,
                          test_forks_under_load, test_no_threads, test_files}) {
    const TempFolder folder;
    test(folder.path());
    ReadPool::of_process().close_removed();
  }
  std::puts("ok");
  return 0;
}
