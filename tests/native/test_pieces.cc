// A payload written in pieces and read back: wherever its parts lie in memory, whatever fails.
#include "tier/pieces.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "check.h"

using namespace di;

namespace {

using Random = std::mt19937_64;
using Bytes = std::vector<u8>;

constexpr u64 kPiece = 64 << 10, kBegin = 8192;

struct Fixture {
  explicit Fixture(u64 seed) : random(seed), folder(std::filesystem::temp_directory_path() / name()) {
    std::filesystem::create_directory(folder);
  }
  ~Fixture() { std::filesystem::remove_all(folder); }
  static std::string name() { return "di-pieces-" + std::to_string(getpid()); }
  std::string path() const { return folder / "file"; }
  std::string fresh() const {  // the same, empty
    std::ofstream(path(), std::ios::trunc).close();
    return path();
  }
  u64 below(u64 limit) { return random() % limit; }

  Random random;
  std::filesystem::path folder;
};

// A payload in parts of its own memory, with gaps.
struct Parts {
  Parts(Fixture& at, u64 most) {
    for (u64 count = at.below(6); count > 0; --count) {
      const u64 offset = payload + at.below(100), bytes = 1 + at.below(most >> at.below(12));
      memory.emplace_back(bytes);
      for (u8& byte : memory.back()) byte = static_cast<u8>(at.random());
      extents.push_back({memory.back().data(), offset, bytes});
      payload = offset + bytes;
    }
    payload += at.below(100);
  }
  PieceLayout file(const std::string& path) const { return {path, kBegin, payload, kPiece}; }
  void clear() {
    for (Bytes& each : memory) std::fill(each.begin(), each.end(), u8{0xa5});
  }

  std::vector<Bytes> memory;
  std::vector<Extent> extents;
  u64 payload = 0;
};

// Three threads, each with the next of `count` pieces. Throws the first error.
template <class Move>
void in_threads(u64 count, const Move& move) {
  std::atomic<u64> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      try {
        for (u64 at = next++; at < count && !failed; at = next++) move(at);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

std::vector<u32> write_all(PieceFile* file, const PieceLayout& layout) {
  std::vector<u32> crcs(layout.pieces());
  in_threads(crcs.size(), [&](u64 number) { crcs[number] = file->write(number); });
  return crcs;
}

void read_all(const PieceLayout& layout, const std::vector<Extent>& extents, const std::vector<u32>& crcs) {
  PieceFile file(layout, extents, false);
  const std::vector<u64> wanted = file.wanted();
  in_threads(wanted.size(), [&](u64 at) { file.read(wanted[at], crcs[wanted[at]]); });
}

std::vector<u32> written(const Parts& parts, const std::string& path) {
  PieceFile file(parts.file(path), parts.extents, true);
  const std::vector<u32> crcs = write_all(&file, parts.file(path));
  const u8 head[] = {'h', 'e', 'a', 'd'};
  file.finish(head);
  return crcs;
}

template <class Call>
bool is_refused(Code code, Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == code;
  }
  return false;
}

bool read_is_refused(const Parts& parts, const std::string& path, const std::vector<u32>& crcs) {
  return is_refused(Code::kCorruptData, [&] { read_all(parts.file(path), parts.extents, crcs); });
}

void test_what_is_written_is_read() {
  Fixture at(1);
  for (int round = 0; round < 40; ++round) {
    Parts parts(at, round == 0 ? 8 << 20 : 300'000);
    const std::vector<Bytes> before = parts.memory;
    const std::vector<u32> crcs = written(parts, at.fresh());
    CHECK(crcs.size() == parts.file(at.path()).pieces());
    parts.clear();
    std::vector<Extent> wanted;  // some of them
    for (u64 i = 0; i < parts.extents.size(); ++i)
      if (at.below(4) != 0)
        wanted.push_back(parts.extents[i]);
      else
        parts.memory[i] = before[i];
    read_all(parts.file(at.path()), wanted, crcs);
    CHECK(parts.memory == before);
    std::filesystem::remove(at.path());
  }
}

// Pieces that lie in memory as they do in the file need no copy; the last one is shorter.
void test_aligned_memory() {
  Fixture at(6);
  const os::AlignedBuffer memory(10 * kPiece);
  const u64 bytes = 9 * kPiece + 12'345;
  const PieceLayout layout{at.fresh(), kBegin, bytes, kPiece};
  for (u64 i = 0; i < bytes; ++i) memory.data()[i] = static_cast<u8>(at.random());
  const Bytes before(memory.data(), memory.data() + bytes);
  const std::vector<Extent> all{{memory.data(), 0, bytes}};
  PieceFile file(layout, all, true);
  std::vector<u32> crcs = write_all(&file, layout);
  std::memset(memory.data(), 0, bytes);
  read_all(layout, all, crcs);
  CHECK(std::memcmp(memory.data(), before.data(), bytes) == 0);
  crcs[4] ^= 1;
  CHECK(is_refused(Code::kCorruptData, [&] { read_all(layout, all, crcs); }));
}

void test_damage() {
  Fixture at(2);
  for (int round = 0; round < 20; ++round) {
    const Parts parts(at, 300'000);
    if (parts.extents.empty()) continue;
    const std::vector<u32> crcs = written(parts, at.fresh());
    const Extent& hit = parts.extents[at.below(parts.extents.size())];
    const long place = static_cast<long>(kBegin + hit.offset + at.below(hit.bytes));
    std::FILE* file = std::fopen(at.path().c_str(), "r+b");
    std::fseek(file, place, SEEK_SET);
    const int byte = std::fgetc(file);
    std::fseek(file, place, SEEK_SET);
    std::fputc(byte ^ (1 << at.below(8)), file);
    std::fclose(file);
    CHECK(read_is_refused(parts, at.path(), crcs));
    std::filesystem::resize_file(at.path(), static_cast<u64>(place));
    CHECK(read_is_refused(parts, at.path(), crcs));
    std::filesystem::remove(at.path());
  }
}

void test_extents_are_checked() {
  Fixture at(3);
  u8 byte = 0;
  const auto refused = [&](std::vector<Extent> extents) {
    return is_refused(Code::kCorruptData,
                      [&] { PieceFile({at.fresh(), kBegin, 10, kPiece}, std::move(extents), true); });
  };
  CHECK(refused({{&byte, 10, 1}}) && refused({{&byte, 5, 1}, {&byte, 5, 1}}) && refused({{&byte, 1, ~u64{0}}}));
  CHECK(refused({{&byte, 11, 0}}));
}

#ifdef DI_FAULTS
struct Whole {  // a payload of ten pieces
  explicit Whole(const Fixture& at) : file{at.fresh(), kBegin, memory.size(), kPiece} {}
  Bytes memory = Bytes(10 * kPiece);
  PieceLayout file;
  std::vector<Extent> extents{{memory.data(), 0, memory.size()}};
};

bool writing_fails(const Fixture& at, const char* fault, Code code) {
  os::arm_fault(fault);
  Whole whole(at);
  const bool refused = is_refused(code, [&] {
    PieceFile file(whole.file, whole.extents, true);
    write_all(&file, whole.file);
    file.finish({whole.memory.data(), 100});
  });
  os::arm_fault("");
  return refused;
}

void test_failing_calls() {
  Fixture at(4);
  CHECK(writing_fails(at, "file.open:1:EIO", Code::kStoreError));
  CHECK(writing_fails(at, "file.preallocate:1:ENOSPC", Code::kStoreFull));
  CHECK(writing_fails(at, "file.write:1:ENOSPC", Code::kStoreFull));
  CHECK(writing_fails(at, "file.write:7:EIO", Code::kStoreError));
  CHECK(writing_fails(at, "file.write:11:EIO", Code::kStoreError));  // the head
  CHECK(writing_fails(at, "file.sync:1:EIO", Code::kStoreError));
  Whole whole(at);
  PieceFile file(whole.file, whole.extents, true);
  const std::vector<u32> crcs = write_all(&file, whole.file);
  CHECK(is_refused(Code::kInvalid, [&] { file.write(10); }) && is_refused(Code::kInvalid, [&] { file.read(10, 0); }));
  os::arm_fault("file.read:2:EIO");
  CHECK(is_refused(Code::kStoreError, [&] { read_all(whole.file, whole.extents, crcs); }));
  os::arm_fault("");
}
#endif

}  // namespace

int main() {
  test_what_is_written_is_read();
  test_aligned_memory();
  test_damage();
  test_extents_are_checked();
#ifdef DI_FAULTS
  test_failing_calls();
#endif
  return 0;
}
