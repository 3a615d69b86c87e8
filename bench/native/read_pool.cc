// Random reads from a file that is in no cache: the pool of native/tier beside a plain loop of preads at the same depth.
//
//   g++ -std=c++20 -O3 -Inative bench/native/read_pool.cc native/os/*.cc native/tier/{crc32c,segment_format,read_pool}.cc
//       -o build/read_pool -lpthread && build/read_pool FOLDER [GiB] [seconds]
//
// FOLDER is to lie on the disk that is measured; a file of 8 GiB is made in it, and removed at the end. One line for each
// size of read: useful GB/s, and CPU time of this process for each read.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>

#include "os/direct.h"
#include "os/filesystem.h"
#include "tier/read_pool.h"

using namespace di;

namespace {

constexpr u64 kBatch = 256, kAhead = 2;  // reads of a batch, batches in flight

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

struct Place {
  u64 file_bytes, read_bytes;
  u64 operator()(std::mt19937_64* random) const { return (*random)() % (file_bytes / read_bytes) * read_bytes; }
};

// Both return how many reads were done until `until_ns`.
u64 by_pool(const std::string& folder, const Place& place, u64 until_ns) {
  std::mt19937_64 random(1);
  std::vector<std::vector<u8>> memory(kAhead, std::vector<u8>(kBatch * place.read_bytes));
  std::deque<Fetch> ahead;
  u64 batches = 0, done = 0;
  while (os::now_ns() < until_ns) {
    if (ahead.size() == kAhead) {
      ahead.front().wait();
      ahead.pop_front();
      done += kBatch;
    }
    std::vector<Read> reads;
    u8* const to = memory[batches++ % kAhead].data();
    for (u64 i = 0; i < kBatch; ++i)
      reads.push_back({0, place(&random), place.read_bytes, to + i * place.read_bytes, 0});
    ahead.push_back(ReadPool::of_process().begin(folder, reads));
  }
  for (Fetch& fetch : ahead) fetch.wait();
  return done + ahead.size() * kBatch;
}

u64 by_loop(const std::string& path, const Place& place, u64 until_ns) {
  std::atomic<u64> done{0};
  os::DirectFile file;
  if (file.open(path, os::FileAccess::kRead) != 0) std::exit(1);
  std::vector<std::thread> threads;
  for (u32 depth = 0; depth < ReadPool::kThreads; ++depth) {
    threads.emplace_back([&, depth] {
      std::mt19937_64 random(depth);
      os::AlignedBuffer buffer(place.read_bytes + 2 * kPageBytes);
      std::vector<u8> to(place.read_bytes);
      u64 got = 0;
      while (os::now_ns() < until_ns) {
        const u64 offset = place(&random), first = offset / kPageBytes * kPageBytes;
        const u64 end = pages_of(offset + place.read_bytes) * kPageBytes;
        if (file.read(first, buffer.data(), end - first, &got) != 0) std::exit(1);
        std::memcpy(to.data(), buffer.data() + (offset - first), to.size());
        ++done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return done;
}

template <class Body>
void measure(const char* name, const Place& place, double seconds, const Body& body) {
  const double cpu = cpu_seconds();
  const u64 begin = os::now_ns();
  const u64 reads = body(begin + static_cast<u64>(seconds * 1e9));
  const double wall = static_cast<double>(os::now_ns() - begin) / 1e9;
  std::printf("%7llu B  %-5s %5.2f GB/s  %5.1f us CPU a read\n", static_cast<unsigned long long>(place.read_bytes),
              name, static_cast<double>(reads * place.read_bytes) / wall / 1e9,
              (cpu_seconds() - cpu) / static_cast<double>(reads) * 1e6);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string folder = argv[1], path = folder + "/" + segment_name(0);
  const u64 file_bytes = (argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 8) << 30;
  const double seconds = argc > 3 ? std::strtod(argv[3], nullptr) : 4;
  os::DirectFile file;
  if (file.open(path, os::FileAccess::kCreate) != 0 || file.preallocate(file_bytes) != 0) return 1;
  os::AlignedBuffer piece(u64{8} << 20);
  std::mt19937_64 random(0);
  for (u64 i = 0; i + 8 <= piece.bytes(); i += 8) {
    const u64 word = random();
    std::memcpy(piece.data() + i, &word, 8);
  }
  int failed = 0;
  for (u64 at = 0; at < file_bytes && failed == 0; at += piece.bytes())
    failed = file.write(at, piece.data(), piece.bytes());
  std::printf("%s, %s\n", path.c_str(), file.is_direct() ? "direct" : "through the page cache");
  if (failed == 0 && file.sync() == 0) {
    for (const u64 bytes : {u64{28224}, u64{256} << 10}) {
      const Place place{file_bytes, bytes};
      for (u32 turn = 0; turn < 2; ++turn) {
        measure("pool", place, seconds, [&](u64 until_ns) { return by_pool(folder, place, until_ns); });
        measure("loop", place, seconds, [&](u64 until_ns) { return by_loop(path, place, until_ns); });
      }
    }
  }
  os::remove_file(path);
  return failed;
}
