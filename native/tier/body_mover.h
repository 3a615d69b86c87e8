// Copies bodies forward: out of files of which little is still needed, so that these files can be used again.
//
// The mover claims bodies under the heap's lock. It reads and writes them as they are stored, without a lock, to a
// segment of this process's own. It moves each one under the locks of the chunk's tables and the heap's lock, by one
// store of the place. A body moves only while nobody reads its chunk, just as it leaves memory (body_drops.h): a reader
// has seen the old place, and the old file may be reused at once. The old file keeps its content until the move. So a
// kill at any line leaves the old place or the new one, and both are whole. A copy that no chunk names is dead space.
//
// One process at a time moves bodies (TierHeader::mover), because a move starts with the last room that the files have
// and gives it back: one file is empty before the next process begins. The mover waits a moment for the readers of a
// body, and retries that body before others. Only a body that is read all the time stays where it is, and so does its
// file. The turn of a process that is gone ends at once. A process that has moved nothing for a second loses its turn.
// If it goes on later, no body is moved twice: a claim has one owner.
#pragma once

#include <mutex>
#include <vector>

#include "tier/own_segment.h"
#include "tier/patience.h"
#include "tier/sparse_files.h"

namespace di {

class BodyMover {
 public:
  enum class Result { kNothing, kHeldUp, kMoved };

  explicit BodyMover(Heap& heap)
      : heap_(heap), files_(heap), segment_(heap, OwnSegment::For::kMoves), patience_(heap.memory, Patience::kRestNs) {}
  ~BodyMover();
  BodyMover(const BodyMover&) = delete;
  BodyMover& operator=(const BodyMover&) = delete;

  // Moves some MiB. kHeldUp: another process has the turn, or readers hold the bodies that are left. Throws when a file
  // cannot be written.
  Result move_some(bool all, Deadline deadline);  // all: of more files (sparse_files.h)
  void end_left_claims(Deadline deadline);        // ends claims that an earlier call could not end
  // Sleeps for a moment, after kHeldUp. kTimedOut: the deadline is over. kGaveUp: the move was held up for too long, or
  // may not wait.
  enum class Await { kWaited, kTimedOut, kGaveUp };
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
    u64 to = 0;            // the new place
    bool written = false;  // the copy is written, and the body not moved yet
  };
  bool begin(bool all, Deadline deadline);
  bool take_turn(bool stalled);  // stalled: nothing had moved for long at the last look
  void end(Deadline deadline);
  void claim(Deadline deadline);
  bool claim_one(const StoredBody& body);
  void end_list(bool moved, Deadline deadline);
  u64 copy_claimed(Deadline deadline);  // how many have moved
  const u8* read(const Move& move);
  void write(Move* move, const u8* body);
  u64 commit(std::size_t count, Deadline deadline);  // commits the first `count` moves and takes them off the list
  u64 commit_unread(std::size_t count, Deadline deadline);
  bool move_held(const std::vector<u32>& tables, Move* move);
  void end_claims(std::size_t count, Deadline deadline);

  Heap& heap_;
  std::mutex mutex_;  // one call of this process at a time
  SparseFiles files_;
  OwnSegment segment_;
  std::vector<StoredBody> bodies_;  // still to move until the chosen files are empty; none: choose
  std::size_t next_ = 0;            // the next of bodies_
  std::vector<StoredBody> held_;    // bodies to try again: readers use them, or a table is held up
  u64 went_on_ns_ = 0;              // when a body moved last
  std::vector<Move> moves_;         // claimed bodies
  bool read_ = false;               // readers kept some bodies where they are
  u64 seen_ = 0, seen_ns_ = 0;      // moves ever counted in the store, and when this number last changed
  u64 looked_ns_ = 0;               // when it was last read
  Patience patience_;               // while nothing moves
  std::vector<u8> head_;
  os::File file_;
  u32 file_number_ = 0;
  os::AlignedBuffer large_;  // for a body that is too large for the segment's memory
};

}  // namespace di
