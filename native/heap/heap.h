// The heap of one store: blocks of shared memory for objects, chunks and the store's own tables. Its parts do the work,
// on the data of HeapCore.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "heap/claims.h"
#include "heap/maker.h"

namespace di {

class Heap : public HeapCore {
  Ledger own_ledger_;  // HeapCore::ledger; declared first, so that it is destroyed last

 public:
  explicit Heap(Client& process)
      : HeapCore(process, own_ledger_),
        own_ledger_(process, *this),
        claims(*this),
        object_ends(*this),
        chunks(*this),
        sweeper(*this, object_ends, chunks),
        objects(*this, object_ends, sweeper),
        maker(*this, objects, chunks, sweeper) {}

  // Each takes the heap's lock itself: the caller may hold the directory's and tables' locks, never the heap's. A kill
  // inside a hold makes the lock's next owner rebuild; the comments say what a kill between two holds leaves.

  // Frees blocks that nothing links any more. One hold; a kill leaves the rest as strays, which the table's recovery
  // frees.
  void free_meta(std::span<const u32> descriptors, u32 table, Deadline deadline);
  // Frees the sealed blocks of a table that are not in `linked`. One hold; a kill leaves the rest, and the table's
  // recovery or its drop calls this again.
  void free_meta_of(u32 table, std::span<const u32> linked, Deadline deadline);
  // Bytes that a new object or reserve may take. Several holds; a kill between them leaves pages given back. If there
  // are fewer than `wanted` bytes, objects and rows move to the disk tier, provided that this may suffice.
  u64 available(u64 wanted, Deadline deadline);
  // Bytes that descriptors take beyond those that exist, if reserves promise so many more to chunks.
  u64 descriptor_bytes(u64 more, Deadline deadline);
  // One hold sets the budget, then pages beyond it go back, a slice per hold. A kill in between leaves the new budget,
  // and the next call that needs room gives the pages back.
  bool resize(u64 budget, Deadline deadline, std::string* why);
  bool grow(u64 more, Deadline deadline, std::string* why);  // the budget, by `more` bytes
  // One hold. Without `repair` it checks a private copy, so the store itself does not change.
  u64 check(bool repair, Deadline deadline, std::vector<std::string>* findings);

  TableClaims claims;
  ObjectEnds object_ends;
  ChunkEnds chunks;
  Sweeper sweeper;
  IdObjects objects;
  Maker maker;

 private:
  bool set_budget(u64 budget, std::string* why) DI_REQUIRES(lock);
  u64 removable() const;
  // One hold: a slice of pages beyond the budget goes back; false: no more.
  bool shrink_some(PageReclaim::Cursor* cursor, Deadline deadline);
};

}  // namespace di
