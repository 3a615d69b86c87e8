// Writes copies of chunk bodies to disk, packed, a slice of a few MiB at a time. A closed chunk never changes, so its body
// is read without a lock.
#pragma once

#include "tier/body_copies.h"
#include "tier/patience.h"

namespace di {

// Which bodies should have a copy on disk.
struct BodiesWanted {
  u64 last_uid = ~u64{0};        // no chunk that came later
  std::vector<u32> tables = {};  // chunks of one of these tables, by index; empty: of any table

  bool has(const Heap& heap, u32 chunk) const;
};

class BodyWriter : public BodyCopies {
 public:
  explicit BodyWriter(Heap& heap) : BodyCopies(heap, OwnSegment::For::kNewBodies), patience_(heap.memory, ~u64{0}) {}

  // Returns the bytes of bodies that now have a copy on disk. 0: every wanted body has a copy, or *why names the
  // obstacle. Throws when a file can't be written.
  u64 write_some(const BodiesWanted& wanted, Deadline deadline, std::string* why);
  // Sleeps for a moment if other processes are writing copies of bodies, as write_some() found. False: no process is,
  // or the bodies have been the same ones for a second.
  bool await_others(Deadline deadline);

 private:
  void claim(const BodiesWanted& wanted, Deadline deadline);
  u32 claim_some(const BodiesWanted& wanted, u32* at, u32 most) DI_REQUIRES(heap_.lock);
  void prepare(Copy* body) override;
  const u8* stored(Copy* body) override;
  void note_written() override;
  u64 commit_one(const Copy& body, ChunkTier& tier) override DI_REQUIRES(heap_.lock);

  std::vector<u64> others_, waited_for_;  // uids that others had claimed: at the last look; when the wait began
  Patience patience_;
  std::span<const u8> stored_;  // the body that is being written, as it will lie on disk
  std::vector<u8> packed_;
};

}  // namespace di
