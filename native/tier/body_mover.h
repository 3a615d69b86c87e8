// Copies bodies forward: out of files of which little is needed any more, so that these can be used again.
//
// Bodies are claimed under the heap's lock, read and written as they are stored, without a lock, to a segment of this process's
// own, and moved under the locks of the chunk's tables and the heap's, by one store of the place. That only while nobody reads
// the chunk, as a body leaves memory (body_drops.h): who reads has seen the old place, and its file may be used again at once.
// The old file keeps all it has until then, so a kill at any line leaves the old place or the new one, and both are whole; a copy
// that nobody names is dead space.
//
// One process at a time does this (TierHeader::mover), as it begins with the last room that the files have, and gives that
// back: a file is empty before the next process begins. So readers of a body are waited for, for a moment each time, and it is
// tried again before others; only one that is read all the time stays where it is, and its file too. The turn of a process that
// is gone ends at once, that of one which has moved nothing for a second is taken from it. Should both then go on, no body is
// moved twice: a claim has one owner.
#pragma once

#include <mutex>
#include <vector>

#include "tier/own_segment.h"
#include "tier/sparse_files.h"

namespace di {

class BodyMover {
 public:
  enum class Result { kNothing, kHeldUp, kMoved };

  explicit BodyMover(Heap& heap) : heap_(heap), files_(heap), segment_(heap, OwnSegment::For::kMoves) {}
  ~BodyMover();
  BodyMover(const BodyMover&) = delete;
  BodyMover& operator=(const BodyMover&) = delete;

  // Moves some MiB. kHeldUp: another process does, or what is left to move is being read. Throws when a file cannot be written.
  Result move_some(bool all, Deadline deadline);  // all: of more files (sparse_files.h)
  void settle(Deadline deadline);                 // ends claims that an earlier call could not end
  // A moment, after kHeldUp. kLater: the deadline is over. kGaveUp: it has been held up for too long, or may not wait.
  enum class Await { kWaited, kLater, kGaveUp };
  Await await(Deadline deadline);

 private:
  struct Move {
    u32 chunk = kNone;
    u64 word = 0, uid = 0, place = 0;
    u32 file = 0;
    std::span<const u8> head;
    std::vector<u32> crcs;  // of the body's pages
    u64 stored_bytes = 0, raw_bytes = 0;
    u32 codec = 0;
    u64 to = 0;            // place
    bool written = false;  // and not moved yet
  };
  bool begin(bool all, Deadline deadline);
  bool take_turn();
  void end(Deadline deadline);
  void claim(Deadline deadline);
  bool claim_one(const StoredBody& body);
  void end_list(bool moved, Deadline deadline);
  u64 copy_claimed(Deadline deadline);  // how many have moved
  const u8* read(const Move& move);
  void write(Move* move, const u8* body);
  u64 commit(std::size_t count, Deadline deadline);  // the first ones; then they are no longer listed
  u64 commit_unread(std::size_t count, Deadline deadline);
  bool move_held(const std::vector<u32>& tables, Move* move);
  void end_claims(std::size_t count, Deadline deadline);

  Heap& heap_;
  std::mutex mutex_;  // of this process
  SparseFiles files_;
  OwnSegment segment_;
  std::vector<StoredBody> bodies_;  // to move before the files that were chosen are empty; none: choose
  std::size_t next_ = 0;            // of them
  std::vector<StoredBody> held_;    // of them, those to try again: they are read, or a table is held up
  u64 went_on_ns_ = 0;              // when one of them moved last
  std::vector<Move> moves_;         // claimed
  bool read_ = false;               // some bodies stayed where they are, for their readers
  u64 seen_ = 0, seen_ns_ = 0;      // how many were ever moved, and when that was new
  u64 held_up_ns_ = 0;              // since when nothing moves; 0: it does
  std::vector<u8> head_;
  os::DirectFile file_;
  u32 file_number_ = 0;
  os::AlignedBuffer large_;  // for a body that the segment has no memory for
};

}  // namespace di
