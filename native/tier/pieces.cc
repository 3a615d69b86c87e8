#include "tier/pieces.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "os/crc32c.h"
#include "os/filesystem.h"

namespace di {

namespace {

Error failed(const std::string& path, const char* what, int number) {
  if (number == ENOSPC || number == EDQUOT)
    return Error(Code::kStoreFull, "no room for " + path + ": free space on that filesystem, or save elsewhere").told();
  return os::file_error(path + what, number);
}

}  // namespace

PieceFile::PieceFile(PieceLayout layout, std::vector<Extent> extents, bool writes)
    : layout_(std::move(layout)), extents_(std::move(extents)) {
  u64 end = 0;
  for (const Extent& extent : extents_) {
    if (extent.offset < end || extent.offset > layout_.payload_bytes ||
        extent.bytes > layout_.payload_bytes - extent.offset)
      throw Error(Code::kCorruptData, layout_.path + ": parts of its payload overlap, or lie beyond its end");
    end = extent.offset + extent.bytes;
  }
  const os::FileAccess access = writes ? os::FileAccess::kReadWrite : os::FileAccess::kRead;
  if (const int number = file_.open(layout_.path, access, os::PageCache::kPast))
    throw failed(layout_.path, " cannot be opened", number);
  os::Filesystem where;
  // Many network filesystems cannot reserve room; the file would be written twice.
  if (!writes || (os::filesystem_of(layout_.path, &where) == 0 && where.network)) return;
  const u64 pages = (layout_.payload_bytes + os::kDirectBytes - 1) & ~(os::kDirectBytes - 1);
  if (const int number = file_.preallocate(layout_.begin + pages))
    throw failed(layout_.path, " cannot be written", number);
}

std::vector<u64> PieceFile::wanted() const {
  std::vector<u64> wanted;
  for (u64 number = 0; number < layout_.pieces(); ++number)
    if (!extents_of(piece(number)).empty()) wanted.push_back(number);
  return wanted;
}

PieceFile::Piece PieceFile::piece(u64 number) const {
  if (number >= layout_.pieces()) throw Error(Code::kInvalid, "there is no such piece");
  const u64 offset = number * layout_.piece_bytes;
  return {offset, std::min(layout_.piece_bytes, layout_.payload_bytes - offset)};
}

std::span<const Extent> PieceFile::extents_of(const Piece& piece) const {
  const auto first = std::partition_point(extents_.begin(), extents_.end(), [&](const Extent& extent) {
    return extent.offset + extent.bytes <= piece.offset;
  });
  const auto last = std::partition_point(
      first, extents_.end(), [&](const Extent& extent) { return extent.offset < piece.offset + piece.bytes; });
  return {first, last};
}

Extent PieceFile::part(const Extent& extent, const Piece& piece) {
  const u64 begin = std::max(extent.offset, piece.offset);
  const u64 end = std::min(extent.offset + extent.bytes, piece.offset + piece.bytes);
  return {extent.memory + (begin - extent.offset), begin - piece.offset, end - begin};
}

u32 PieceFile::write(u64 number) {
  const Piece piece = this->piece(number);
  const os::Blocking blocking;
  const os::SpareBuffers::Borrowed staging(buffers_, layout_.piece_bytes);
  u64 end = 0;
  for (const Extent& extent : extents_of(piece)) {
    const Extent here = part(extent, piece);
    std::memset(staging.data() + end, 0, here.offset - end);
    std::memcpy(staging.data() + here.offset, here.memory, here.bytes);
    end = here.offset + here.bytes;
  }
  std::memset(staging.data() + end, 0, piece.stored_bytes() - end);
  const u32 crc = crc32c(staging.data(), piece.bytes);
  DI_FAULT("pieces.write");
  if (const int error = file_.write(layout_.begin + piece.offset, staging.data(), piece.stored_bytes()))
    throw failed(layout_.path, " cannot be written", error);
  return crc;
}

void PieceFile::finish(std::span<const u8> head) {
  if (head.size() > layout_.begin) throw Error(Code::kInvalid, "the head is longer than the room for it");
  os::AlignedBuffer pages(layout_.begin);
  std::memcpy(pages.data(), head.data(), head.size());
  const os::Blocking blocking;
  DI_FAULT("pieces.head");
  if (const int number = file_.write(0, pages.data(), pages.bytes()))
    throw failed(layout_.path, " cannot be written", number);
  DI_FAULT("pieces.sync");
  if (const int number = file_.sync()) throw failed(layout_.path, " cannot be written", number);
  file_.close();
}

void PieceFile::read(u64 number, u32 crc) {
  const Piece piece = this->piece(number);
  const std::span<const Extent> extents = extents_of(piece);
  if (extents.empty()) return;
  const os::Blocking blocking;
  const Extent first = part(extents.front(), piece);
  // Where possible, the disk writes directly to the caller's memory. If the process forks at that moment, the data may
  // arrive in the child's copy of a page; then the checksum differs, and the piece is read again.
  const bool direct = first.bytes == piece.bytes && piece.bytes == piece.stored_bytes() &&
                      reinterpret_cast<u64>(first.memory) % os::kDirectBytes == 0;
  if (direct && read_to(piece, crc, first.memory)) return;
  const os::SpareBuffers::Borrowed staging(buffers_, layout_.piece_bytes);
  if (!read_to(piece, crc, staging.data()))
    throw Error(Code::kCorruptData, name(piece) + " differ from their checksum").told();
  for (const Extent& extent : extents) {
    const Extent here = part(extent, piece);
    std::memcpy(here.memory, staging.data() + here.offset, here.bytes);
  }
}

bool PieceFile::read_to(const Piece& piece, u32 crc, u8* to) {
  u64 got = 0;
  if (const int number = file_.read(layout_.begin + piece.offset, to, piece.stored_bytes(), &got))
    throw failed(layout_.path, " cannot be read", number);
  if (got < piece.bytes) throw Error(Code::kCorruptData, name(piece) + ": the file ends too early").told();
  return crc32c(to, piece.bytes) == crc;
}

std::string PieceFile::name(const Piece& piece) const {
  const u64 begin = layout_.begin + piece.offset;
  return layout_.path + ", bytes " + std::to_string(begin) + " to " + std::to_string(begin + piece.bytes);
}

}  // namespace di
