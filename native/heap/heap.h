// The heap of one store: blocks of shared memory for objects, chunks and the store's own tables. Its
// parts do the work; what they work on is HeapCore.
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

  void free_meta(std::span<const u32> descriptors, u64 deadline_ns);
  void free_meta_of(u32 table, std::span<const u32> linked, u64 deadline_ns);  // sealed, of this table, not among these
  u64 available(u64 deadline_ns);  // bytes that a new object or reserve may take
  bool resize(u64 budget, u64 deadline_ns, std::string* why);
  u64 check(bool repair, u64 deadline_ns, std::vector<std::string>* findings);

  TableClaims claims;
  ObjectEnds object_ends;
  ChunkEnds chunks;
  Sweeper sweeper;
  IdObjects objects;
  Maker maker;

 private:
  bool set_budget(u64 budget, u64 deadline_ns, std::string* why);
  bool shrink_some(PageReclaim::Cursor* cursor, u64 deadline_ns);  // a slice of pages beyond the budget; false: no more
};

}  // namespace di
