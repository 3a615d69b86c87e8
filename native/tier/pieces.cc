#include "tier/pieces.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

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

PieceThreads::PieceThreads(PieceFile layout, std::vector<Extent> extents)
    : layout_(std::move(layout)), extents_(std::move(extents)), pid_(os::pid()) {
  u64 end = 0;
  for (const Extent& extent : extents_) {
    if (extent.offset < end || extent.offset > layout_.payload_bytes ||
        extent.bytes > layout_.payload_bytes - extent.offset)
      throw Error(Code::kCorruptData, layout_.path + ": parts of its payload overlap, or lie beyond its end");
    end = extent.offset + extent.bytes;
  }
}

void PieceThreads::start(std::vector<u64> pieces, u32 threads) {
  pieces_ = std::move(pieces);
  const u64 count = std::min<u64>(threads, pieces_.size());
  try {
    for (u64 i = 0; i < count; ++i) {
      running_.fetch_add(1);
      threads_.emplace_back([this] { work(); });
    }
  } catch (const std::system_error&) {  // no more threads: those that exist do the work
    running_.fetch_sub(1);
    if (threads_.empty()) throw Error(Code::kStoreError, "no thread can be started; see `ulimit -u`").told();
  }
}

void PieceThreads::work() {
  try {
    os::AlignedBuffer staging(layout_.piece_bytes);
    while (!failed_.load(std::memory_order_relaxed)) {
      const u64 next = next_.fetch_add(1, std::memory_order_relaxed);
      if (next >= pieces_.size()) break;
      move(piece(pieces_[next]), staging.data());
    }
  } catch (...) {
    if (!failed_.exchange(true)) error_ = std::current_exception();
  }
  // Pairs with the load in wait(): when this thread counts as ended, the waiter sees all that it has written.
  if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) os::futex_wake(running_, 1);
}

bool PieceThreads::wait(double seconds) {
  const u64 until = os::now_ns() + static_cast<u64>(std::clamp(seconds, 0.0, 1e6) * 1e9);
  for (;;) {
    const u32 running = running_.load(std::memory_order_acquire);
    if (running == 0) break;
    const u64 now = os::now_ns();
    if (now >= until) return false;
    const os::Blocking blocking;
    os::futex_wait(running_, running, until - now);
  }
  if (error_ != nullptr) std::rethrow_exception(error_);
  return true;
}

void PieceThreads::stop() {
  failed_.store(true);
  for (std::thread& thread : threads_) {
    if (pid_ == os::pid())
      thread.join();
    else
      thread.detach();  // a thread of the parent
  }
  threads_.clear();
}

PieceThreads::Piece PieceThreads::piece(u64 number) const {
  const u64 offset = number * layout_.piece_bytes;
  return {number, offset, std::min(layout_.piece_bytes, layout_.payload_bytes - offset)};
}

std::span<const Extent> PieceThreads::extents_of(const Piece& piece) const {
  const auto first = std::partition_point(extents_.begin(), extents_.end(), [&](const Extent& extent) {
    return extent.offset + extent.bytes <= piece.offset;
  });
  const auto last = std::partition_point(
      first, extents_.end(), [&](const Extent& extent) { return extent.offset < piece.offset + piece.bytes; });
  return {first, last};
}

Extent PieceThreads::part(const Extent& extent, const Piece& piece) {
  const u64 begin = std::max(extent.offset, piece.offset);
  const u64 end = std::min(extent.offset + extent.bytes, piece.offset + piece.bytes);
  return {extent.memory + (begin - extent.offset), begin - piece.offset, end - begin};
}

PieceWriter::PieceWriter(PieceFile layout, std::vector<Extent> extents, u32 threads)
    : PieceThreads(std::move(layout), std::move(extents)), crcs_(layout_.pieces()) {
  const u64 pages = (layout_.payload_bytes + os::kDirectBytes - 1) & ~(os::kDirectBytes - 1);
  if (const int number = file_.open(layout_.path, os::FileAccess::kReadWrite, os::PageCache::kPast))
    throw failed(layout_.path, " cannot be opened", number);
  os::Filesystem where;
  // Many network filesystems cannot reserve room; the file would be written twice.
  if (os::filesystem_of(layout_.path, &where) != 0 || !where.network)
    if (const int number = file_.preallocate(layout_.begin + pages))
      throw failed(layout_.path, " cannot be written", number);
  std::vector<u64> all(layout_.pieces());
  std::iota(all.begin(), all.end(), u64{0});
  start(std::move(all), threads);
}

void PieceWriter::move(const Piece& piece, u8* staging) {
  u64 end = 0;
  for (const Extent& extent : extents_of(piece)) {
    const Extent here = part(extent, piece);
    std::memset(staging + end, 0, here.offset - end);
    std::memcpy(staging + here.offset, here.memory, here.bytes);
    end = here.offset + here.bytes;
  }
  std::memset(staging + end, 0, piece.stored_bytes() - end);
  crcs_[piece.number] = crc32c(staging, piece.bytes);
  DI_FAULT("pieces.write");
  if (const int number = file_.write(layout_.begin + piece.offset, staging, piece.stored_bytes()))
    throw failed(layout_.path, " cannot be written", number);
}

void PieceWriter::finish(std::span<const u8> head) {
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

PieceReader::PieceReader(PieceFile layout, std::vector<Extent> extents, std::vector<u32> crcs, u32 threads)
    : PieceThreads(std::move(layout), std::move(extents)), crcs_(std::move(crcs)) {
  if (crcs_.size() != layout_.pieces()) throw Error(Code::kInvalid, "not one checksum for each piece");
  if (const int number = file_.open(layout_.path, os::FileAccess::kRead, os::PageCache::kPast))
    throw failed(layout_.path, " cannot be opened", number);
  std::vector<u64> wanted;
  for (u64 number = 0; number < layout_.pieces(); ++number)
    if (!extents_of(piece(number)).empty()) wanted.push_back(number);
  start(std::move(wanted), threads);
}

void PieceReader::move(const Piece& piece, u8* staging) {
  const std::span<const Extent> extents = extents_of(piece);
  const Extent first = part(extents.front(), piece);
  // Where possible, the disk writes directly to the caller's memory. If the process forks at that moment, the data may
  // arrive in the child's copy of a page; then the checksum differs, and the piece is read again.
  const bool direct = first.bytes == piece.bytes && piece.bytes == piece.stored_bytes() &&
                      reinterpret_cast<u64>(first.memory) % os::kDirectBytes == 0;
  if (direct && read(piece, first.memory)) return;
  if (!read(piece, staging)) throw Error(Code::kCorruptData, name(piece) + " differ from their checksum").told();
  for (const Extent& extent : extents) {
    const Extent here = part(extent, piece);
    std::memcpy(here.memory, staging + here.offset, here.bytes);
  }
}

bool PieceReader::read(const Piece& piece, u8* to) {
  u64 got = 0;
  if (const int number = file_.read(layout_.begin + piece.offset, to, piece.stored_bytes(), &got))
    throw failed(layout_.path, " cannot be read", number);
  if (got < piece.bytes) throw Error(Code::kCorruptData, name(piece) + ": the file ends too early").told();
  return crc32c(to, piece.bytes) == crcs_[piece.number];
}

std::string PieceReader::name(const Piece& piece) const {
  const u64 begin = layout_.begin + piece.offset;
  return layout_.path + ", bytes " + std::to_string(begin) + " to " + std::to_string(begin + piece.bytes);
}

}  // namespace di
