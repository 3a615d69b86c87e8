// The bytes of a segment, pinned: tests/golden/segment_1.txt. Another form needs another kSegmentVersion, and a golden
// file of its own. With a path as argument it writes the file there.
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "folder_fixture.h"
#include "segment_fixture.h"

using namespace di;

namespace {

// "offset: 16 bytes" for every 16 bytes that are not all 0, in hexadecimal; then the size.
std::string text_of(const Bytes& bytes) {
  std::string text;
  char part[16];
  for (u64 at = 0; at < bytes.size(); at += 16) {
    bool empty = true;
    for (u64 i = at; i < at + 16; ++i) empty = empty && bytes[i] == 0;
    if (empty) continue;
    std::snprintf(part, sizeof part, "%06llx: ", static_cast<unsigned long long>(at));
    text += part;
    for (u64 i = at; i < at + 16; ++i) {
      std::snprintf(part, sizeof part, "%02x", bytes[i]);
      text += part;
    }
    text += "\n";
  }
  std::snprintf(part, sizeof part, "%06llx\n", static_cast<unsigned long long>(bytes.size()));
  return text + part;
}

Bytes bytes_of_text(const std::string& text) {
  Bytes bytes;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const u64 at = std::stoull(line, nullptr, 16);
    bytes.resize(line.find(':') == std::string::npos ? at : at + 16, 0);
    for (u64 i = 8; i + 1 < line.size(); i += 2)
      bytes[at + (i - 8) / 2] = static_cast<u8>(std::stoul(line.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

// A chunk with a body of two pages, and an object that is packed, whose head is longer than a page.
std::vector<KnownRecord> records() {
  KnownRecord chunk, object;
  chunk.uid = 0x1122334455667788;
  for (const char letter : std::string("the head of a chunk")) chunk.head.push_back(static_cast<u8>(letter));
  chunk.body.resize(4096 + 100, 0);
  for (u64 i = 0; i < chunk.body.size(); i += 500) chunk.body[i] = static_cast<u8>(i / 500 + 1);
  chunk.raw_bytes = chunk.body.size();
  object.uid = 0x99aabbccddeeff01;
  object.head.resize(4090, 0);
  object.head.front() = 0x11;
  object.head.back() = 0x22;
  for (u8 i = 0; i < 50; ++i) object.body.push_back(static_cast<u8>(200 + i));
  object.codec = 1;
  object.raw_bytes = 123456789;
  return {chunk, object};
}

}  // namespace

int main(int argc, char** argv) {
  const TempFolder folder;
  SegmentOwner owner;
  for (u8 i = 0; i < 16; ++i) owner.uuid[i] = static_cast<u8>(0xa0 + i);
  owner.epoch = 3;
  owner.incarnation = 9;
  owner.number = 42;
  owner.writer = 7;
  SegmentWriter writer = SegmentWriter::create(folder.path(), owner, 64 << 10);
  std::vector<KnownRecord> known = records();
  for (KnownRecord& record : known) append(&writer, &record);
  writer.seal();
  const std::string text = text_of(bytes_of_file(writer.path()));
  if (argc > 1) {
    std::ofstream(argv[1]) << text;
    return 0;
  }
  std::ostringstream golden;
  golden << std::ifstream(DI_GOLDEN "/segment_1.txt").rdbuf();
  CHECK(text == golden.str());

  write_file(writer.path(), bytes_of_text(golden.str()));
  SegmentReader reader;
  u64 next = 0;
  CHECK(reader.open(writer.path(), owner.uuid) == SegmentState::kSound && reader.header().writer == 7);
  const Walk walk = reader.walk([&](const FoundRecord& found) {
    Bytes body(found.header.stored_bytes);
    CHECK(is_same(found, known[next]) && reader.read_body(found.header, body) && body == known[next].body);
    ++next;
  });
  CHECK(next == 2 && walk.sealed);
  std::puts("ok");
  return 0;
}
