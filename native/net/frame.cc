#include "net/frame.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/status.h"
#include "os/crc32c.h"

namespace di::net {

namespace {

constexpr u8 kMagic[kMagicBytes] = {'D', 'i', 'S', 'w'};
constexpr u64 kCheckAt = 36;  // CRC-32C of the bytes before it, and of meta
static_assert(kCheckAt + sizeof(u32) == kHeaderBytes);

template <class T>
void store(u8* head, u64 at, T value) {  // both processors that we build for are little-endian
  std::memcpy(head + at, &value, sizeof value);
}
template <class T>
T load(std::span<const u8, kHeaderBytes> head, u64 at) {
  T value;
  std::memcpy(&value, head.data() + at, sizeof value);
  return value;
}

[[noreturn]] void refuse(const std::string& text) { throw Error(Code::kCorruptData, text).told(); }

u32 check_of(std::span<const u8> head, std::span<const u8> meta) {
  return crc32c(meta.data(), meta.size(), crc32c(head.data(), kCheckAt));
}

}  // namespace

void append_head(const Header& header, std::span<const u8> meta, std::vector<u8>& out) {
  u8 head[kHeaderBytes] = {};
  std::memcpy(head, kMagic, sizeof kMagic);
  head[4] = header.kind;
  head[5] = header.flags;
  store(head, 8, header.request);
  store(head, 16, header.body_bytes);
  store(head, 24, static_cast<u32>(meta.size()));
  store(head, 28, header.payload_bytes);
  store(head, 32, header.payload_check);
  store(head, kCheckAt, check_of(head, meta));
  out.insert(out.end(), head, head + sizeof head);
  out.insert(out.end(), meta.begin(), meta.end());
}

void check_magic(std::span<const u8> start) {
  if (!std::equal(start.begin(), start.end(), kMagic, kMagic + kMagicBytes))
    refuse("the received bytes are not a frame of di-store: does something else use this port?");
}

Header parse(std::span<const u8, kHeaderBytes> head, u32 kinds) {
  check_magic(head.first<kMagicBytes>());
  const u8 kind = head[4];
  const u32 pad = load<u16>(head, 6);
  if (kind >= 32 || (kinds >> kind & 1) == 0 || pad != 0)
    refuse("received a frame of an unknown kind (" + std::to_string(kind) + ", " + std::to_string(pad) + ")");
  Header found;
  found.kind = kind;
  found.flags = head[5];
  found.request = load<u64>(head, 8);
  found.body_bytes = load<u64>(head, 16);
  found.meta_bytes = load<u32>(head, 24);
  found.payload_bytes = load<u32>(head, 28);
  found.payload_check = load<u32>(head, 32);
  if (found.meta_bytes > kMaxMetaBytes || found.payload_bytes > kMaxPayloadBytes)
    refuse("received a frame of " + std::to_string(found.meta_bytes) + " + " + std::to_string(found.payload_bytes) +
           " bytes, at most " + std::to_string(kMaxMetaBytes) + " + " + std::to_string(kMaxPayloadBytes) +
           " are allowed");
  return found;
}

void check_meta(std::span<const u8, kHeaderBytes> head, std::span<const u8> meta) {
  if (check_of(head, meta) != load<u32>(head, kCheckAt)) refuse("the header of a frame does not match its checksum");
}

void check_payload(const Header& header, u32 check) {
  if (check != header.payload_check) refuse("the payload of a frame does not match its checksum");
}

}  // namespace di::net
