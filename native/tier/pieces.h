// Moves a large payload between memory and a file, in pieces, at the speed of the disk when several threads do it.
//
// The payload is a range of bytes that starts at `begin` of a file. All pieces have equal size, except the last one.
// Each piece is copied through an aligned buffer, so the disk reads and writes past the page cache whatever the
// alignment of the caller's memory. While a piece is in the buffer, its CRC-32C is computed or compared.
// Bytes of the payload that no extent holds are written as zeros and dropped on reading. A piece that belongs to one
// extent, at a multiple of os::kDirectBytes in memory, is read without the buffer.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "os/file.h"

namespace di {

// Memory that holds `bytes` of the payload from `offset` on.
struct Extent {
  u8* memory;
  u64 offset, bytes;
};

struct PieceLayout {
  std::string path;
  u64 begin;  // a multiple of os::kDirectBytes
  u64 payload_bytes;
  u64 piece_bytes;  // a multiple of os::kDirectBytes
  u64 pieces() const { return payload_bytes / piece_bytes + (payload_bytes % piece_bytes != 0); }
};

// Several threads may call write() and read() at once, for different pieces. Both release the GIL.
class PieceFile {
 public:
  // Extents in the order of their offsets, without overlap; else throws kCorruptData. `writes`: into an existing, empty
  // file. kStoreFull when the filesystem has no room; it is reserved here, except on network filesystems.
  PieceFile(PieceLayout layout, std::vector<Extent> extents, bool writes);

  u32 write(u64 number);  // the payload first; returns the piece's checksum
  // Call this after all pieces are written. Writes `head`, at most layout.begin bytes, in front of the payload, and
  // syncs the whole file to disk. Without this call the file has no valid head.
  void finish(std::span<const u8> head);
  void read(u64 number, u32 crc);   // kCorruptData names the piece that differs from its checksum
  std::vector<u64> wanted() const;  // numbers of the pieces that extents touch

 private:
  struct Piece {
    u64 offset, bytes;  // in the payload
    u64 stored_bytes() const { return (bytes + os::kDirectBytes - 1) & ~(os::kDirectBytes - 1); }
  };
  Piece piece(u64 number) const;
  std::span<const Extent> extents_of(const Piece& piece) const;
  // The part of `extent` in the piece: its memory, and its place in the piece.
  static Extent part(const Extent& extent, const Piece& piece);
  bool read_to(const Piece& piece, u32 crc, u8* to);  // false: its checksum differs
  std::string name(const Piece& piece) const;

  const PieceLayout layout_;
  const std::vector<Extent> extents_;
  os::File file_;
  os::SpareBuffers buffers_;
};

}  // namespace di
