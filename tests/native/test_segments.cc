// Segments: written, walked and read back, sealed and not, used again, cut off by kills and errors.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/status.h"
#include "child.h"
#include "folder_fixture.h"
#include "os/filesystem.h"
#include "refusals.h"
#include "segment_fixture.h"
#include "tier/page_crcs.h"

using namespace di;

namespace {

constexpr u64 kMiB = u64{1} << 20;
const Uuid kUuid{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

SegmentOwner owner(u64 incarnation) {
  SegmentOwner made;
  made.uuid = kUuid;
  made.epoch = 3;
  made.incarnation = incarnation;
  made.number = 42;
  made.writer = 7;
  return made;
}

// Everything that a walk finds is as it was written, in this order; bodies too.
void check_walk(const std::string& path, const std::vector<KnownRecord>& wanted, bool sealed) {
  SegmentReader reader;
  CHECK(reader.open(path, kUuid) == SegmentState::kSound);
  u64 next = 0;
  const Walk walk = reader.walk([&](const FoundRecord& found) {
    CHECK(next < wanted.size() && is_same(found, wanted[next]));
    Bytes body(found.header.stored_bytes);
    CHECK(reader.read_body(found.header, body) && body == wanted[next].body);
    CHECK(is_same(found, wanted[next]));  // reading a body leaves the head alone
    ++next;
  });
  CHECK(next == wanted.size() && walk.records == next && walk.skipped == 0 && walk.sealed == sealed);
}

void test_sizes() {
  CHECK(segment_bytes(0) == 4 * kMiB / 16 * 17 && segment_bytes(u64{1} << 40) == 68 * kMiB);
  CHECK(segment_bytes(1024 * kMiB + 77) == 16 * kMiB / 16 * 17);
  CHECK(segment_name(42) == "segment-0000002a");
  u32 number = 0;
  CHECK(parse_numbered_name("segment", "segment-0000002a", &number) && number == 42);
  for (const char* other :
       {"segment-2a", "segment-0000002A", "segment-0000002a.new", "segment-", "epoch", "", "objects-0000002a"})
    CHECK(!parse_numbered_name("segment", other, &number));
  CHECK(parse_numbered_name("objects", log_name(7), &number) && number == 7);
}

void test_write_and_walk(const std::string& folder) {
  std::mt19937 random(5);
  SegmentWriter writer = SegmentWriter::create(folder, owner(1), 4 * kMiB);
  CHECK(os::is_folder(folder) && writer.header().bytes == 4 * kMiB && writer.used_bytes() == kPageBytes);
  CHECK(code_of([&] { SegmentWriter::create(folder, owner(2), 4 * kMiB); }) == Code::kStoreError);  // it is there
  std::vector<KnownRecord> known;
  for (u64 uid = 1;; ++uid) {
    KnownRecord record = some_record(&random, uid, uid % 3 == 0 ? 20000 : 2000, uid % 5 == 0 ? 0 : 300000);
    if (!writer.has_room(record.head.size(), record.body.size())) break;
    append(&writer, &record);
    CHECK(record.place.segment == 42 && record.place.pages == record_pages(record.head.size(), record.body.size()));
    CHECK(record.place.page - record.place.record_page == head_pages(record.head.size()));
    known.push_back(std::move(record));
  }
  CHECK(known.size() > 10);
  writer.sync();
  check_walk(writer.path(), known, false);
  KnownRecord large = some_record(&random, 99, 0, 0);
  large.body.resize(4 * kMiB);
  CHECK(code_of([&] { append(&writer, &large); }) == Code::kInvalid);
  writer.seal();
  writer.sync();
  check_walk(writer.path(), known, true);
  CHECK(!writer.has_room(0, 0));
  CHECK(bytes_of_file(writer.path()).size() == 4 * kMiB);

  // A part of a body lies where its place says, page by page.
  const KnownRecord& some = *std::max_element(
      known.begin(), known.end(), [](const auto& a, const auto& b) { return a.body.size() < b.body.size(); });
  const std::vector<u32> crcs = page_crcs(some.body);
  const Bytes file = bytes_of_file(writer.path());
  const std::span<const u8> part(file.data() + (some.place.page + 3) * kPageBytes, 2 * kPageBytes);
  CHECK(verify_pages(crcs, 3, part) && !verify_pages(crcs, 2, part));
}

// A segment that is as full as has_room() allows still gets its footer.
void test_full(const std::string& folder) {
  SegmentWriter writer = SegmentWriter::create(folder, owner(1), 64 << 10);
  std::vector<KnownRecord> known;
  std::mt19937 random(6);
  for (u64 uid = 1; writer.has_room(300, 0); ++uid) {
    KnownRecord record = some_record(&random, uid, 0, 0);
    record.head = some_bytes(&random, 300);
    append(&writer, &record);
    known.push_back(record);
  }
  CHECK(known.size() == 12);  // of 16 pages: header, 12 records, 2 of footer, trailer
  writer.seal();
  check_walk(writer.path(), known, true);
}

// A record that is larger than a piece of writing, in a segment of its own size; one made in the writer's memory.
void test_large_and_own_memory(const std::string& folder) {
  std::mt19937 random(7);
  KnownRecord large = some_record(&random, 1, 50000, 0);
  large.body = some_bytes(&random, 17 * kMiB + 5);
  large.codec = 1;
  SegmentWriter writer =
      SegmentWriter::create(folder, owner(1), segment_bytes_for(large.head.size(), large.body.size()));
  CHECK(writer.body_memory(large.head.size(), large.body.size()) == nullptr);
  append(&writer, &large);
  CHECK(!writer.has_room(0, 1) && !writer.has_room(0, 0));
  writer.seal();
  check_walk(writer.path(), {large}, true);
  CHECK(os::remove_file(writer.path()) == 0);

  os::AlignedBuffer lent(SegmentWriter::kMemoryBytes);
  const u8* const lent_at = lent.data();
  SegmentWriter other = SegmentWriter::create(folder, owner(2), kMiB);
  other.lend_memory(std::move(lent));
  KnownRecord made = some_record(&random, 2, 9000, 0);
  made.body = some_bytes(&random, 70000);
  made.raw_bytes = made.body.size();
  made.codec = 0;
  u8* const memory = other.body_memory(made.head.size(), made.body.size());
  CHECK(memory == lent_at + head_pages(made.head.size()) * kPageBytes);
  std::memcpy(memory, made.body.data(), made.body.size());
  Record record{RecordKind::kChunk, 2, made.head, {memory, made.body.size()}, 0, 0, 6};
  made.place = other.append(record);
  check_walk(other.path(), {made}, false);
  record.head = {};  // not what the memory was asked for
  record.body = {other.body_memory(9000, 70000), 70000};
  CHECK(code_of([&] { other.append(record); }) == Code::kInvalid);
  check_walk(other.path(), {made}, false);
  other.seal();
  CHECK(other.return_memory().data() == lent_at);
}

// What lay in the file before never counts: neither records behind the last new one, nor the old footer.
void test_recycle(const std::string& folder) {
  std::mt19937 random(8);
  std::vector<KnownRecord> old, fresh;
  SegmentWriter writer = SegmentWriter::create(folder, owner(1), kMiB);
  for (u64 uid = 1; uid <= 20; ++uid) {
    old.push_back(some_record(&random, uid, 100, 30000));
    append(&writer, &old.back());
  }
  writer.seal();
  SegmentWriter again = SegmentWriter::recycle(folder, owner(2), 4096);
  CHECK(again.header().bytes == kMiB);
  check_walk(again.path(), {}, false);
  for (u64 uid = 1; uid <= 3; ++uid) {  // of the same sizes: the fourth old record follows at once
    fresh.push_back(old[uid - 1]);
    std::reverse(fresh.back().body.begin(), fresh.back().body.end());
    append(&again, &fresh.back());
    CHECK(fresh.back().place.record_page == old[uid - 1].place.record_page);
  }
  check_walk(again.path(), fresh, false);
  again.seal();
  check_walk(again.path(), fresh, true);
  CHECK(SegmentWriter::recycle(folder, owner(3), 2 * kMiB).header().bytes == 2 * kMiB);
  check_walk(again.path(), {}, false);
  CHECK(code_of([&] { SegmentWriter::recycle(folder + "/none", owner(3), kMiB); }) == Code::kStoreError);
}

void test_states(const std::string& folder) {
  SegmentReader reader;
  const std::string path = SegmentWriter::create(folder, owner(1), kMiB).path();
  Uuid other = kUuid;
  other[3] ^= 1;
  CHECK(reader.open(path, other) == SegmentState::kForeign && reader.open(path, kUuid) == SegmentState::kSound);
  CHECK(reader.header().epoch == 3 && reader.header().writer == 7 && reader.header().incarnation == 1);
  CHECK(code_of([&] { reader.open(path + "-none", kUuid); }) == Code::kStoreError);
  Bytes bytes = bytes_of_file(path);
  SegmentHeader header = reader.header();
  header.version = 2;
  set_crc(&header);
  std::memcpy(bytes.data(), &header, sizeof header);
  write_file(path, bytes);
  CHECK(reader.open(path, kUuid) == SegmentState::kOtherVersion);
  bytes[20] ^= 1;
  write_file(path, bytes);
  CHECK(reader.open(path, kUuid) == SegmentState::kDamaged);
  write_file(path, {});
  CHECK(reader.open(path, kUuid) == SegmentState::kDamaged);
}

#ifdef DI_FAULTS

// No file is left of a segment for which there is no space; a write that fails leaves what was written before.
void test_errors(const std::string& folder) {
  std::mt19937 random(9);
  for (const char* fault : {"file.preallocate:1:ENOSPC", "file.write:1:ENOSPC"}) {
    os::arm_fault(fault);
    CHECK(code_of([&] { SegmentWriter::create(folder, owner(1), kMiB); }) == Code::kStoreFull);
    std::vector<std::string> names;
    CHECK(os::list_folder(folder, &names) == 0 && names.empty());
  }
  SegmentWriter writer = SegmentWriter::create(folder, owner(1), kMiB);
  std::vector<KnownRecord> known;
  for (u64 uid = 1; uid <= 3; ++uid) {
    known.push_back(some_record(&random, uid, 100, 30000));
    append(&writer, &known.back());
  }
  KnownRecord refused = some_record(&random, 4, 100, 30000);
  os::arm_fault("file.write:1:EIO");
  CHECK(code_of([&] { append(&writer, &refused); }) == Code::kStoreError);
  CHECK(code_of([&] { append(&writer, &refused); }) == Code::kStoreError);
  CHECK(code_of([&] { writer.sync(); }) == Code::kStoreError);
  check_walk(writer.path(), known, false);
  os::arm_fault("file.read:2:EIO");
  SegmentReader reader;
  CHECK(reader.open(writer.path(), kUuid) == SegmentState::kSound);
  CHECK(reader.walk([](const FoundRecord&) {}).records == 3);  // the trailer cannot be read: the records are walked
  os::arm_fault("");
}

// Killed at each point, a writer leaves the records that it had finished.
void test_kills(const std::string& folder) {
  for (const char* point :
       {"segment.before_write:3", "segment.written:3", "segment.body_written:1", "segment.footer_written:1"}) {
    std::mt19937 random(10);
    std::vector<KnownRecord> known;
    for (u64 uid = 1; uid <= 4; ++uid) known.push_back(some_record(&random, uid, 5000, 30000));
    known[2].body.resize(9 * kMiB);
    known[2].codec = 1;
    Child child([&] {
      os::arm_fault(point);
      SegmentWriter writer = SegmentWriter::create(folder, owner(1), 16 * kMiB);
      for (KnownRecord& record : known) append(&writer, &record);
      writer.seal();
      return 0;
    });
    CHECK(child.wait() == -SIGKILL);
    SegmentReader reader;
    const std::string path = folder + "/" + segment_name(42);
    CHECK(reader.open(path, kUuid) == SegmentState::kSound);
    std::vector<u64> found;
    const Walk walk = reader.walk([&](const FoundRecord& record) {
      found.push_back(record.header.uid);
      Bytes body(record.header.stored_bytes);
      CHECK(reader.read_body(record.header, body) && body == known[found.size() - 1].body);
    });
    const u64 wanted = std::strstr(point, "footer") != nullptr ? 4 : std::strstr(point, "t.written") != nullptr ? 3 : 2;
    CHECK(found.size() == wanted && walk.skipped == 0 && !walk.sealed);
    CHECK(os::remove_file(path) == 0);
  }
}

#else

void test_errors(const std::string&) {}
void test_kills(const std::string&) {}

#endif

void test_fork(const std::string& folder) {
  SegmentWriter writer = SegmentWriter::create(folder, owner(1), kMiB);
  std::mt19937 random(11);
  KnownRecord record = some_record(&random, 1, 100, 1000);
  Child child([&] {
    const bool refused = code_of([&] { append(&writer, &record); }) == Code::kStoreError &&
                         code_of([&] { writer.sync(); }) == Code::kStoreError &&
                         code_of([&] { writer.seal(); }) == Code::kStoreError;
    return refused ? 6 : 1;
  });
  CHECK(child.wait() == 6);
  append(&writer, &record);
  check_walk(writer.path(), {record}, false);
}

}  // namespace

int main() {
  test_sizes();
  for (const auto test : {test_write_and_walk, test_full, test_large_and_own_memory, test_recycle, test_states,
                          test_errors, test_kills, test_fork}) {
    const TempFolder folder;
    test(folder.path());
  }
  std::puts("ok");
  return 0;
}
