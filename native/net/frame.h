// The frame of the wire: 40 bytes of header, then meta, then payload. docs/wire_format.md draws it.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"

namespace di::net {

constexpr u64 kHeaderBytes = 40;
constexpr u64 kMagicBytes = 4;
constexpr u64 kMaxMetaBytes = 1 << 20;
constexpr u64 kMaxPayloadBytes = 16 << 20;
constexpr u64 kMaxGreetingBytes = 16 << 10;  // of the meta of a message before the handshake is over
// Longer bodies are sent in pieces of this size. Each piece is checked while it is in the cache and the next one
// arrives.
constexpr u64 kPieceBytes = 1 << 20;
// Bytes of one system call. The kernel runs no other thread until it has copied them, and short calls wait for that.
// The checksum of bytes that were read is computed while they are in the cache and more bytes come.
constexpr u64 kAtOnce = 512 << 10;
constexpr u8 kPiece = 7;  // the kind of a frame that continues a body; Python knows the other kinds

struct Header {
  u8 kind = 0;
  u8 flags = 0;
  u64 request = 0;
  u64 body_bytes = 0;  // of all frames of the message; 0 in a piece
  u32 meta_bytes = 0;
  u32 payload_bytes = 0;
  u32 payload_check = 0;  // CRC-32C
};

// Appends the header and `meta` to `out`; the sizes of both are within the limits.
void append_head(const Header& header, std::span<const u8> meta, std::vector<u8>& out);

// Anybody who can reach the port may send bytes: these throw kCorruptData if they are malformed.
void check_magic(std::span<const u8> start);  // the first kMagicBytes of a frame
// `kinds`: bit k is set if frames of kind k are known. Meta is not verified yet.
Header parse(std::span<const u8, kHeaderBytes> head, u32 kinds);
void check_meta(std::span<const u8, kHeaderBytes> head, std::span<const u8> meta);
void check_payload(const Header& header, u32 check);  // `check`: CRC-32C of what came

}  // namespace di::net
