// Reads ranges of files past the page cache with so many threads, and does nothing with them: what a drive gives.
// bench/tier/disk.py builds it: g++ -std=c++20 -O2 -shared -fPIC
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include <unistd.h>

namespace {

constexpr std::uint64_t kPage = 4096;

}  // namespace

// Range i is bytes[i] from offsets[i] of the file descriptor files[i], opened with O_DIRECT; the pages around it are
// read. Returns how many ranges could not be read.
extern "C" std::uint64_t read_ranges(const int* files, const std::uint64_t* offsets, const std::uint64_t* bytes,
                                     std::uint64_t count, unsigned threads) {
  std::atomic<std::uint64_t> next{0}, failed{0};
  const std::uint64_t most = *std::max_element(bytes, bytes + count) + 2 * kPage;
  const auto read = [&] {
    void* const memory = std::aligned_alloc(kPage, most / kPage * kPage);
    for (std::uint64_t i; (i = next++) < count;) {
      const std::uint64_t from = offsets[i] / kPage * kPage;
      const std::uint64_t end = (offsets[i] + bytes[i] + kPage - 1) / kPage * kPage;
      if (pread(files[i], memory, end - from, static_cast<off_t>(from)) < static_cast<ssize_t>(end - from)) ++failed;
    }
    std::free(memory);
  };
  std::vector<std::thread> pool;
  for (unsigned thread = 0; thread < threads; ++thread) pool.emplace_back(read);
  for (std::thread& thread : pool) thread.join();
  return failed;
}
