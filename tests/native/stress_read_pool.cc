// Several threads read through the pool at once; some let go before their reads have ended, some reads fail.
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "folder_fixture.h"
#include "segment_fixture.h"
#include "tier/read_pool.h"

using namespace di;

namespace {

constexpr u32 kFiles = 5;
constexpr u64 kFileBytes = 1 << 20;

void read_for_a_while(const std::string& folder, const std::vector<Bytes>& files, u32 seed) {
  std::mt19937 random(seed);
  for (u64 round = 0; round < 150; ++round) {
    std::vector<Read> reads(1 + random() % 60);
    Bytes got(reads.size() * 3000);
    for (u64 i = 0; i < reads.size(); ++i)
      reads[i] = {static_cast<u32>(random() % kFiles), random() % (kFileBytes - 3000), 3000, got.data() + i * 3000, i};
    const u32 how = random() % 8;
    if (how == 0) reads.back().segment = kFiles;  // there is none
    Fetch fetch = ReadPool::of_process().begin(folder, reads);
    if (how == 1) continue;
    try {
      CHECK(fetch.wait());
      CHECK(how != 0 && fetch.is_done());
      for (const Read& read : reads)
        CHECK(std::memcmp(read.to, files[read.segment].data() + read.offset, read.bytes) == 0);
    } catch (const Error& error) {
      CHECK(how == 0 && error.code() == Code::kStoreError);
    }
    if (how == 2) ReadPool::of_process().close_removed();
  }
}

}  // namespace

int main() {
  const TempFolder folder;
  std::vector<Bytes> files;
  for (u32 number = 0; number < kFiles; ++number) {
    std::mt19937 random(number);
    files.push_back(some_bytes(&random, kFileBytes));
    write_file(folder.file(segment_name(number)), files.back());
  }
  std::vector<std::thread> threads;
  for (u32 seed = 1; seed <= 4; ++seed)
    threads.emplace_back([&folder, &files, seed] { read_for_a_while(folder.path(), files, seed); });
  for (std::thread& thread : threads) thread.join();
  std::puts("ok");
  return 0;
}
