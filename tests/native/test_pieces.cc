// A payload written in pieces and read back: wherever its parts lie in memory, whatever fails.
#include "tier/pieces.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

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
  PieceFile file(const std::string& path) const { return {path, kBegin, payload, kPiece}; }
  void clear() {
    for (Bytes& each : memory) std::fill(each.begin(), each.end(), u8{0xa5});
  }

  std::vector<Bytes> memory;
  std::vector<Extent> extents;
  u64 payload = 0;
};

bool ends(PieceThreads& threads) {
  for (int slice = 0; slice < 600; ++slice)
    if (threads.wait(0.1)) return true;
  return false;
}

std::vector<u32> written(const Parts& parts, const std::string& path) {
  PieceWriter writer(parts.file(path), parts.extents, 3);
  CHECK(ends(writer));
  const u8 head[] = {'h', 'e', 'a', 'd'};
  writer.finish(head);
  return writer.crcs();
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
  return is_refused(Code::kCorruptData, [&] {
    PieceReader reader(parts.file(path), parts.extents, crcs, 3);
    ends(reader);
  });
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
    PieceReader reader(parts.file(at.path()), wanted, crcs, 3);
    CHECK(ends(reader));
    CHECK(parts.memory == before);
    std::filesystem::remove(at.path());
  }
}

// Pieces that lie in memory as they do in the file need no copy; the last one is shorter.
void test_aligned_memory() {
  Fixture at(6);
  const os::AlignedBuffer memory(10 * kPiece);
  const u64 bytes = 9 * kPiece + 12'345;
  const PieceFile file{at.fresh(), kBegin, bytes, kPiece};
  for (u64 i = 0; i < bytes; ++i) memory.data()[i] = static_cast<u8>(at.random());
  const Bytes before(memory.data(), memory.data() + bytes);
  PieceWriter writer(file, {{memory.data(), 0, bytes}}, 2);
  CHECK(ends(writer));
  std::memset(memory.data(), 0, bytes);
  PieceReader reader(file, {{memory.data(), 0, bytes}}, writer.crcs(), 2);
  CHECK(ends(reader));
  CHECK(std::memcmp(memory.data(), before.data(), bytes) == 0);
  std::vector<u32> wrong = writer.crcs();
  wrong[4] ^= 1;
  CHECK(is_refused(Code::kCorruptData, [&] {
    PieceReader again(file, {{memory.data(), 0, bytes}}, wrong, 2);
    ends(again);
  }));
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
                      [&] { PieceWriter({at.fresh(), kBegin, 10, kPiece}, std::move(extents), 1); });
  };
  CHECK(refused({{&byte, 10, 1}}) && refused({{&byte, 5, 1}, {&byte, 5, 1}}) && refused({{&byte, 1, ~u64{0}}}));
  CHECK(refused({{&byte, 11, 0}}));
}

#ifdef DI_FAULTS
struct Whole {  // a payload of ten pieces
  explicit Whole(const Fixture& at) : file{at.fresh(), kBegin, memory.size(), kPiece} {}
  Bytes memory = Bytes(10 * kPiece);
  PieceFile file;
  std::vector<Extent> extents{{memory.data(), 0, memory.size()}};
};

bool writing_fails(const Fixture& at, const char* fault, Code code) {
  os::arm_fault(fault);
  Whole whole(at);
  const bool refused = is_refused(code, [&] {
    PieceWriter writer(whole.file, whole.extents, 3);
    ends(writer);
    writer.finish({whole.memory.data(), 100});
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
  PieceWriter writer(whole.file, whole.extents, 3);
  CHECK(ends(writer));
  os::arm_fault("file.read:2:EIO");
  CHECK(is_refused(Code::kStoreError, [&] {
    PieceReader reader(whole.file, whole.extents, writer.crcs(), 3);
    ends(reader);
  }));
  os::arm_fault("");
}
#endif

// Who is no longer interested goes: the threads end, the memory may be freed.
void test_stopping() {
  Fixture at(5);
  for (int round = 0; round < 20; ++round) {
    Bytes memory(100 * kPiece);
    {
      PieceWriter writer({at.fresh(), kBegin, memory.size(), kPiece}, {{memory.data(), 0, memory.size()}}, 3);
      if (round % 2 == 0) writer.stop();
    }
    memory = Bytes();
    std::filesystem::remove(at.path());
  }
}

}  // namespace

int main() {
  test_what_is_written_is_read();
  test_aligned_memory();
  test_damage();
  test_extents_are_checked();
#ifdef DI_FAULTS
  test_failing_calls();
#endif
  test_stopping();
  return 0;
}
