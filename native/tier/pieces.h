// Moves a large payload between memory and a file, in pieces, with several threads, at the speed of the disk.
//
// The payload is a range of bytes that starts at `begin` of a file. All pieces have equal size, except the last one.
// Each piece is copied through an aligned buffer of its thread, so the disk reads and writes past the page cache
// whatever the alignment of the caller's memory. While a piece is in the buffer, its CRC-32C is computed or compared.
// Bytes of the payload that no extent holds are written as zeros and dropped on reading. A piece that belongs to one
// extent, at a multiple of os::kDirectBytes in memory, is read without the buffer.
//
// The threads touch the caller's memory until wait() has returned true or thrown, or the object is destroyed. They
// never run Python. After a fork the child has none of them, and its object can only be destroyed.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "os/file.h"

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

// The part that both directions share: the threads, and how they end.
class PieceThreads {
 public:
  // Whether the threads have ended. Sleeps for at most `seconds`, without the GIL. Rethrows a thread's error after all
  // threads have ended.
  bool wait(double seconds);
  // Ends the threads, each after its current piece. Afterwards they no longer touch the caller's memory.
  void stop();

 protected:
  // Extents in the order of their offsets, without overlap; else throws kCorruptData.
  PieceThreads(PieceFile layout, std::vector<Extent> extents);
  virtual ~PieceThreads() { stop(); }  // derived classes stop too, before their members are destroyed
  PieceThreads(const PieceThreads&) = delete;
  PieceThreads& operator=(const PieceThreads&) = delete;

  void start(std::vector<u64> pieces, u32 threads);

  struct Piece {
    u64 number, offset, bytes;  // in the payload
    u64 stored_bytes() const { return (bytes + os::kDirectBytes - 1) & ~(os::kDirectBytes - 1); }
  };
  Piece piece(u64 number) const;
  std::span<const Extent> extents_of(const Piece& piece) const;
  // The part of `extent` in the piece: its memory, and its place in the piece.
  static Extent part(const Extent& extent, const Piece& piece);

  const PieceFile layout_;
  os::File file_;

 private:
  virtual void move(const Piece& piece, u8* staging) = 0;
  void work();

  const std::vector<Extent> extents_;
  std::vector<u64> pieces_;  // from next_ on: not moved yet
  std::atomic<u64> next_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // written by the thread that set failed_, before it ends
  Shared<u32> running_{0};
  std::vector<std::thread> threads_;
  u32 pid_;
};

// Writes an existing, empty file: the payload first, then the head in front of it. Without finish() the file has no
// valid head.
class PieceWriter : public PieceThreads {
 public:
  // kStoreFull when the filesystem has no room. Room is reserved here, except on network filesystems.
  PieceWriter(PieceFile layout, std::vector<Extent> extents, u32 threads);
  ~PieceWriter() override { stop(); }
  // The checksum of each piece, once wait() has returned true.
  const std::vector<u32>& crcs() const { return crcs_; }
  // Call this after wait() has returned true. Writes `head`, at most layout.begin bytes, and syncs the whole file to
  // disk.
  void finish(std::span<const u8> head);

 private:
  void move(const Piece& piece, u8* staging) override;

  std::vector<u32> crcs_;
};

// Reads the pieces that extents touch. kCorruptData names the piece that differs from its checksum.
class PieceReader : public PieceThreads {
 public:
  PieceReader(PieceFile layout, std::vector<Extent> extents, std::vector<u32> crcs, u32 threads);
  ~PieceReader() override { stop(); }

 private:
  void move(const Piece& piece, u8* staging) override;
  bool read(const Piece& piece, u8* to);  // false: its checksum differs
  std::string name(const Piece& piece) const;

  const std::vector<u32> crcs_;
};

}  // namespace di
