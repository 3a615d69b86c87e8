// The segment that this process fills with copies of bodies, and the next one when it is full. For one thread at a time; waits
// for no lock but the heap's, which open() and close() take. A kill leaves a segment whose owner is gone: it counts as sealed.
#pragma once

#include <optional>

#include "heap/heap.h"
#include "tier/segment_writer.h"

namespace di {

class OwnSegment {
 public:
  // kMoves: it may take the last room that the files have. New bodies leave that: copying bodies forward begins with it, and
  // gives it back.
  enum class For { kNewBodies, kMoves };

  OwnSegment(Heap& heap, For use) : heap_(heap), use_(use) {}
  ~OwnSegment();
  OwnSegment(const OwnSegment&) = delete;
  OwnSegment& operator=(const OwnSegment&) = delete;

  bool has_room(u64 head_bytes, u64 body_bytes) const { return segment_ && segment_->has_room(head_bytes, body_bytes); }
  bool is_removed() const;  // its file has no name any more
  u64 room_bytes() const { return segment_ ? segment_->header().bytes - segment_->used_bytes() : 0; }
  // Of its entry; kNone: there is no open one.
  u32 number() const { return number_; }
  // Another one, in which such a record has room. False: the files take all of disk_capacity= (*why). Throws when a file cannot
  // be written; then none is open.
  bool open(u64 head_bytes, u64 body_bytes, Deadline deadline, std::string* why);
  // What lies in it must be committed: else it would be empty, and used again at once.
  void close(Deadline deadline);
  u8* body_memory(u64 head_bytes, u64 body_bytes) { return segment_->body_memory(head_bytes, body_bytes); }
  RecordPlace append(const Record& record);

 private:
  void make_file(SegmentOwner owner, u64 bytes, bool again, Deadline deadline);
  void count();  // bytes that were written since the last call

  Heap& heap_;
  const For use_;
  std::optional<SegmentWriter> segment_;
  os::AlignedBuffer memory_;  // that bodies pass through, while no segment has it
  u32 number_ = kNone;
  u64 counted_ = 0;  // of what segment_ has written
};

}  // namespace di
