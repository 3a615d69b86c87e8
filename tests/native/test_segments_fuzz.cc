// Damaged segments: nothing crashes, and no byte is accepted that was not written there.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/status.h"
#include "folder_fixture.h"
#include "os/crc32c.h"
#include "os/filesystem.h"
#include "segment_fixture.h"

using namespace di;

namespace {

const Uuid kUuid{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
const Uuid kForeignUuid{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17};

struct Segment {
  Bytes bytes;
  std::vector<KnownRecord> records;
  SegmentHeader header;
};

Segment make(const std::string& folder, std::mt19937* random, const Uuid& uuid, u64 incarnation, u32 number,
             bool seal) {
  SegmentOwner owner;
  owner.uuid = uuid;
  owner.incarnation = incarnation;
  owner.number = number;
  Segment made;
  os::remove_file(folder + "/" + segment_name(number));
  SegmentWriter writer = SegmentWriter::create(folder, owner, 256 << 10);
  for (u64 uid = 1;; ++uid) {
    KnownRecord record = some_record(random, uid, uid % 4 == 0 ? 9000 : 300, 20000);
    if (!writer.has_room(record.head.size(), record.body.size())) break;
    append(&writer, &record);
    made.records.push_back(std::move(record));
  }
  if (seal) writer.seal();
  made.header = writer.header();
  made.bytes = bytes_of_file(writer.path());
  CHECK(os::remove_file(writer.path()) == 0);
  return made;
}

// What is found was written for the segment that the file says it is: `all` may have come to lie there as a whole.
u64 check(const std::string& path, const std::vector<Segment>& all) {
  SegmentReader reader;
  if (reader.open(path, kUuid) != SegmentState::kSound) return 0;
  const auto truth = std::find_if(all.begin(), all.end(), [&](const Segment& one) {
    return std::memcmp(&one.header, &reader.header(), sizeof one.header) == 0;
  });
  CHECK(truth != all.end());
  u64 found = 0;
  const Walk walk = reader.walk([&](const FoundRecord& record) {
    CHECK(record.header.uid >= 1 && record.header.uid <= truth->records.size());
    const KnownRecord& known = truth->records[record.header.uid - 1];
    CHECK(is_same(record, known));
    Bytes body(record.header.stored_bytes);
    if (reader.read_body(record.header, body)) CHECK(body == known.body);
    ++found;
  });
  CHECK(found == walk.records && walk.end_page <= truth->bytes.size() / kPageBytes);
  return found;
}

// One change of each kind, at a place where something lies more often than not.
void damage(std::mt19937* random, Bytes* bytes, const std::vector<Segment>& others) {
  const auto any = [random](u64 below) { return (*random)() % std::max<u64>(below, 1); };
  const u64 pages = bytes->size() / kPageBytes;
  if (pages == 0) return;
  const u64 page = any(4) == 0 ? pages - 1 : any(3) == 0 ? 0 : any(pages);
  u8* const at = bytes->data() + page * kPageBytes;
  switch (any(7)) {
    case 0:  // a bit of the first bytes, where headers are
      at[any(80)] ^= static_cast<u8>(1u << any(8));
      break;
    case 1: at[any(kPageBytes)] ^= static_cast<u8>(1 + any(255)); break;
    case 2: bytes->resize(any(3) == 0 ? any(bytes->size()) : any(pages) * kPageBytes); break;
    case 3:  // pages that were never written
      std::memset(at, any(2) == 0 ? 0 : 0xff, (1 + any(pages - page)) * kPageBytes);
      break;
    case 4: {  // pages of another segment, or of this file's life before, where they were or elsewhere
      const Bytes& from = others[any(others.size())].bytes;
      const u64 source = any(2) == 0 ? page : any(from.size() / kPageBytes);
      const u64 count = 1 + any(std::min(pages - page, from.size() / kPageBytes - source));
      std::memcpy(at, from.data() + source * kPageBytes, count * kPageBytes);
      break;
    }
    case 5: {  // pages of its own elsewhere
      const Bytes copy = *bytes;
      const u64 source = any(pages), count = 1 + any(std::min(pages - page, pages - source));
      std::memcpy(at, copy.data() + source * kPageBytes, count * kPageBytes);
      break;
    }
    default:  // a number that is large
      std::memset(at + any(64), 0xff, 1 + any(8));
  }
}

void test_damage(const std::string& folder, std::mt19937* random, u64 rounds) {
  for (const bool sealed : {true, false}) {
    const std::vector<Segment> all{make(folder, random, kUuid, 9, 5, sealed), make(folder, random, kUuid, 8, 5, true),
                                   make(folder, random, kUuid, 9, 6, false),
                                   make(folder, random, kForeignUuid, 9, 5, true)};
    const Segment& truth = all.front();
    const std::string path = folder + "/" + segment_name(5);
    write_file(path, truth.bytes);
    CHECK(check(path, all) == truth.records.size());
    u64 found = 0;
    for (u64 round = 0; round < rounds; ++round) {
      Bytes bytes = truth.bytes;
      for (u64 times = 1 + (*random)() % 3; times != 0; --times) damage(random, &bytes, all);
      write_file(path, bytes);
      found += check(path, all);
    }
    CHECK(found > rounds);  // most of the damage leaves something to find
  }
}

// Changes a form at `at` of these bytes, and signs it.
template <class Form, class Sign>
void forge(std::mt19937* random, Bytes* bytes, u64 at, const Sign& sign) {
  u8 raw[sizeof(Form)];
  std::memcpy(raw, bytes->data() + at, sizeof raw);
  raw[8 + (*random)() % (sizeof raw - 12)] = static_cast<u8>((*random)());
  if ((*random)() % 2 == 0) std::memset(raw + 8 + (*random)() % (sizeof raw - 20), 0xff, 4 + (*random)() % 5);
  Form form;
  std::memcpy(&form, raw, sizeof form);
  sign(&form);
  std::memcpy(bytes->data() + at, &form, sizeof form);
}

// Numbers of somebody who can compute checksums: they may tell nonsense, but lead nowhere and allocate little.
void test_forgery(const std::string& folder, std::mt19937* random, u64 rounds) {
  const Segment truth = make(folder, random, kUuid, 9, 5, true);
  const std::string path = folder + "/" + segment_name(5);
  const u64 pages = truth.bytes.size() / kPageBytes, last = (pages - 1) * kPageBytes;
  const auto sign_record = [&](RecordHeader* form) { set_crc(form, truth.header); };
  for (u64 round = 0; round < rounds; ++round) {
    Bytes bytes = truth.bytes;
    if ((*random)() % 2 == 0) forge<SegmentHeader>(random, &bytes, 0, [](SegmentHeader* form) { set_crc(form); });
    const u64 chosen = (*random)() % truth.records.size();
    forge<RecordHeader>(random, &bytes, truth.records[chosen].place.record_page * kPageBytes, sign_record);
    if ((*random)() % 2 == 0) {
      forge<SegmentTrailer>(random, &bytes, last, [&](SegmentTrailer* form) { set_crc(form, truth.header); });
    } else {  // an entry of the footer
      SegmentTrailer trailer;
      std::memcpy(&trailer, bytes.data() + last, sizeof trailer);
      const u64 footer = trailer.footer_page * kPageBytes;
      u64 at = footer;
      for (u64 i = 0; i < chosen; ++i) at += footer_entry_bytes(truth.records[i].head.size());
      forge<RecordHeader>(random, &bytes, at, sign_record);
      trailer.footer_crc = crc32c(bytes.data() + footer, trailer.footer_bytes, truth.header.crc);
      set_crc(&trailer, truth.header);
      std::memcpy(bytes.data() + last, &trailer, sizeof trailer);
    }
    write_file(path, bytes);
    SegmentReader reader;
    if (reader.open(path, kUuid) != SegmentState::kSound) continue;
    u64 next = 1;
    reader.walk([&](const FoundRecord& record) {
      CHECK(record.head.size() == record.header.head_bytes && end_page(record.header) <= pages);
      CHECK(record.header.page >= next);
      CHECK(crc32c(record.head.data(), record.head.size(), reader.header().crc) == record.header.head_crc);
      next = end_page(record.header);
      Bytes body(record.header.stored_bytes);
      CHECK(body.size() <= bytes.size());
      reader.read_body(record.header, body);
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool in_memory = os::is_folder("/dev/shm") && os::may_write("/dev/shm") == 0;
  const TempFolder folder(in_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string());
  const u64 rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : is_emulated() ? 100 : 1500;
  std::mt19937 random(argc > 2 ? static_cast<u32>(std::strtoul(argv[2], nullptr, 10)) : 1);
  test_damage(folder.path(), &random, rounds);
  test_forgery(folder.path(), &random, rounds);
  std::puts("ok");
  return 0;
}
