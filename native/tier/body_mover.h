// Copies bodies forward: out of files of which little is still needed, so that these files can be used again.
//
// The mover reads and writes claimed bodies as they are stored. It moves each one under the locks of the chunk's tables
// and the heap's lock, by one store of the place. A body moves only while nobody reads its chunk, just as it leaves
// memory (body_drops.h): a reader has seen the old place, and the old file may be reused at once. The old file keeps its
// content until the move. So a kill at any line leaves the old place or the new one, and both are whole. A copy that no
// chunk names is dead space.
//
// One process at a time moves bodies (TierHeader::mover), because a move starts with the last room that the files have
// and gives it back: one file is empty before the next process begins. The mover waits a moment for the readers of a
// body, and retries that body before others. Only a body that is read all the time stays where it is, and so does its
// file. The turn of a process that is gone ends at once. A process that has moved nothing for a second loses its turn.
// If it goes on later, no body is moved twice: a claim has one owner.
#pragma once

#include "tier/body_copies.h"
#include "tier/patience.h"
#include "tier/sparse_files.h"

namespace di {

class BodyMover : public BodyCopies {
 public:
  enum class Result { kNothing, kHeldUp, kMoved };
  using Emptied = RoomMaker::Emptied;

  explicit BodyMover(Heap& heap)
      : BodyCopies(heap, OwnSegment::For::kMoves), files_(heap), patience_(heap.memory, Patience::kRestNs) {}
  ~BodyMover() override;

  // Moves some MiB. kHeldUp: another process has the turn, or readers hold the bodies that are left. Throws when a file
  // cannot be written.
  Result move_some(bool all, Deadline deadline);  // all: of more files (sparse_files.h)
  // The same; after kHeldUp it sleeps for a moment. kNothing: there is nothing to move, or the move was held up for too
  // long, or may not wait.
  Emptied move_or_wait(bool all, Deadline deadline);

 private:
  Emptied await(Deadline deadline);
  bool begin(bool all, Deadline deadline);
  bool take_turn(bool stalled);  // stalled: nothing had moved for long at the last look
  void end(Deadline deadline);
  void claim(Deadline deadline);
  bool claim_one(const StoredBody& body) DI_REQUIRES(heap_.lock);
  void end_list(bool moved, Deadline deadline);
  const u8* stored(Copy* move) override;
  void note_written() override { DI_FAULT("tier.move_written"); }
  u64 commit(std::size_t count, Deadline deadline) override;
  u64 commit_unread(std::size_t count, Deadline deadline);
  bool move_held(const std::vector<u32>& tables, Copy* move);

  SparseFiles files_;
  std::vector<StoredBody> bodies_;  // still to move until the chosen files are empty; none: choose
  std::size_t next_ = 0;            // the next of bodies_
  std::vector<StoredBody> held_;    // bodies to try again: readers use them, or a table is held up
  u64 went_on_ns_ = 0;              // when a body moved last
  bool read_ = false;               // readers kept some bodies where they are
  u64 seen_ = 0, seen_ns_ = 0;      // moves ever counted in the store, and when this number last changed
  u64 looked_ns_ = 0;               // when it was last read
  Patience patience_;               // while nothing moves
  os::AlignedBuffer large_;         // for a body that is too large for the segment's memory
};

}  // namespace di
