// Moves a large payload between memory and a file, in pieces, by several threads at the speed of the disk.
//
// The payload is a range of bytes that starts at `begin` of a file. Pieces of equal size (the last one is what is left)
// are copied through an aligned buffer of the thread, so that the disk reads and writes past the page cache whatever the
// alignment of the caller's memory is. While a piece is in the buffer its CRC-32C is computed or compared. Where the
// payload has bytes that no extent holds, zeros are written, and what is read is dropped. A piece that belongs to one
// extent, at a multiple of os::kDirectBytes in memory, is read without the buffer.
//
// The threads touch the caller's memory until wait() has returned true, thrown, or the object is gone. They never run
// Python. After a fork the child has none of them: the object there only goes away.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "os/direct.h"

namespace di {

// Memory that holds `bytes` of the payload from `offset` on.
struct Extent {
  u8* memory;
  u64 offset, bytes;
};

struct PieceFile {
  std::string path;
  u64 begin;  // a multiple of os::kDirectBytes
  u64 payload_bytes;
  u64 piece_bytes;  // a multiple of os::kDirectBytes
  u64 pieces() const { return payload_bytes / piece_bytes + (payload_bytes % piece_bytes != 0); }
};

// What both directions share: the threads, and how they end.
class PieceThreads {
 public:
  // Threads have ended. Sleeps for at most `seconds`, without the GIL; then rethrows what a thread has met, after all of
  // them have ended.
  bool wait(double seconds);
  // Ends the threads, after the piece each is at. Afterwards the caller's memory is its own again.
  void stop();

 protected:
  // Extents in the order of their offsets, without overlap; else throws kCorruptData.
  PieceThreads(PieceFile layout, std::vector<Extent> extents);
  virtual ~PieceThreads() { stop(); }  // derived classes too: before their members go
  PieceThreads(const PieceThreads&) = delete;
  PieceThreads& operator=(const PieceThreads&) = delete;

  void start(std::vector<u64> pieces, u32 threads);

  struct Piece {
    u64 number, offset, bytes;  // in the payload
    u64 stored_bytes() const { return (bytes + os::kDirectBytes - 1) & ~(os::kDirectBytes - 1); }
  };
  Piece piece(u64 number) const;
  std::span<const Extent> extents_of(const Piece& piece) const;
  // The part of `extent` in the piece: its memory, and where it lies in the piece.
  static Extent part(const Extent& extent, const Piece& piece);

  const PieceFile layout_;
  os::DirectFile file_;

 private:
  virtual void move(const Piece& piece, u8* staging) = 0;
  void work();

  const std::vector<Extent> extents_;
  std::vector<u64> pieces_;  // still to be moved from next_ on
  std::atomic<u64> next_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // written by whoever set failed_, before it ends
  Shared<u32> running_{0};
  std::vector<std::thread> threads_;
  u32 pid_;
};

// Writes a file that is there and empty: the payload first, then the head in front of it. Without finish() the file has
// no valid head.
class PieceWriter : public PieceThreads {
 public:
  // kStoreFull when the filesystem has no room: it is set aside here, but for network filesystems.
  PieceWriter(PieceFile layout, std::vector<Extent> extents, u32 threads);
  ~PieceWriter() override { stop(); }
  // Of each piece, when wait() has returned true.
  const std::vector<u32>& crcs() const { return crcs_; }
  // After that: writes `head`, at most layout.begin bytes, and has all of the file on disk.
  void finish(std::span<const u8> head);

 private:
  void move(const Piece& piece, u8* staging) override;

  std::vector<u32> crcs_;
};

// Reads the pieces in which extents lie. kCorruptData names the piece that differs from its checksum.
class PieceReader : public PieceThreads {
 public:
  PieceReader(PieceFile layout, std::vector<Extent> extents, std::vector<u32> crcs, u32 threads);
  ~PieceReader() override { stop(); }

 private:
  void move(const Piece& piece, u8* staging) override;
  bool read(const Piece& piece, u8* to);  // false: not what the checksum says
  std::string name(const Piece& piece) const;

  const std::vector<u32> crcs_;
};

}  // namespace di
