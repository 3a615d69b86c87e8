// The segment that this process fills with copies of bodies, and the next one when it is full. For one thread at a
// time. Only open() and close() wait for a lock: the heap's. A kill leaves a segment whose owner is gone; it counts as
// sealed.
#pragma once

#include <optional>

#include "heap/heap.h"
#include "tier/segment_writer.h"

namespace di {

class OwnSegment {
 public:
  // kMoves: the segment may take the last room that the files have. kNewBodies leaves that room free: copying bodies
  // forward needs it to begin, and frees it again.
  enum class For { kNewBodies, kMoves };

  OwnSegment(Heap& heap, For use) : heap_(heap), use_(use) {}
  ~OwnSegment();
  OwnSegment(const OwnSegment&) = delete;
  OwnSegment& operator=(const OwnSegment&) = delete;

  bool has_room(u64 head_bytes, u64 body_bytes) const { return segment_ && segment_->has_room(head_bytes, body_bytes); }
  bool is_removed() const;  // its file no longer has a name
  u64 room_bytes() const { return segment_ ? segment_->header().bytes - segment_->used_bytes() : 0; }
  // Number of its entry; kNone: no segment is open.
  u32 number() const { return number_; }
  // Opens another segment that has room for such a record. False: the files take all of disk_capacity= (*why). Throws
  // when a file cannot be written; then no segment is open.
  bool open(u64 head_bytes, u64 body_bytes, Deadline deadline, std::string* why);
  // All bodies in the segment must be committed first: otherwise it would count as empty and be used again at once.
  void close(Deadline deadline);
  u8* body_memory(u64 head_bytes, u64 body_bytes) { return segment_->body_memory(head_bytes, body_bytes); }
  RecordPlace append(const Record& record);

 private:
  void make_file(SegmentOwner owner, u64 bytes, bool again, Deadline deadline);
  void count();  // adds the bytes written since the last call

  Heap& heap_;
  const For use_;
  std::optional<SegmentWriter> segment_;
  os::AlignedBuffer memory_;  // for bodies to pass through, while no segment has it
  u32 number_ = kNone;
  u64 counted_ = 0;  // bytes of segment_ that count() has counted
};

}  // namespace di
