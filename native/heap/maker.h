// Making blocks: the budget admits them, pages are found and committed, and a killed maker leaves nothing behind.
//
// The heap's lock is taken for each attempt, and not held while pages are committed. A block that is being made is
// named by a ledger entry of its maker: after a kill the reaper frees it.
#pragma once

#include <functional>
#include <string>

#include "heap/id_objects.h"

namespace di {

// kNever: full, and no eviction or deletion would help. kAgain: a chunk with a separate body, which was freed with it.
enum class MakeResult { kMade, kExists, kFull, kGone, kNever, kAgain };

class Maker {
 public:
  using Format = std::function<void(u8* block, u64 identity)>;

  Maker(HeapCore& heap, IdObjects& objects, ChunkEnds& chunks, Sweeper& sweeper)
      : heap_(heap), objects_(objects), chunks_(chunks), sweeper_(sweeper) {}

  // Makes a block with its descriptor in state creating, held by ledger entry `entry` (kind own); its pages are
  // committed. Looks for room in this order, each attempt in a hold of its own:
  //   1. a free block of the size in a slice of its class, else the lowest free slices, if the budget admits it
  //   2. pages that are charged and unused elsewhere move to it (PageReclaim), if the budget is there but no page
  //   3. once a call: what dead or dropped ledger entries hold, expired objects, and chunks that no table uses any more
  //   4. pages of free blocks are given back (free_holes), until there are no more
  // If machine or cgroup refuses pages that the budget has, charged but unused pages move to the block, or bodies go to
  // disk and leave their pages. If `format` had linked the body of a chunk by then, the result is kAgain: the caller
  // makes both again. kFull: `why` names the shortage, and `short_of` a table that can evict items; the caller evicts
  // (RowRoom) or waits. kNever: no eviction or deletion would help. kGone: one of request.tables was dropped. kExists:
  // the id is taken. `format` runs under the lock and fills what others must never see unfilled: a chunk's header,
  // which has its identity.
  MakeResult make(const MakeRequest& request, u32 entry, Deadline deadline, u32* descriptor, std::string* why,
                  ShortOf* short_of = nullptr, const Format& format = {});
  // Meta blocks: made and handed over to their owner in one go. Takes a ledger entry, so the caller holds no shared
  // lock but the directory's. A kill before the block is linked leaves a stray, which its owner's recovery frees.
  u32 make_meta(u64 bytes, u32 owner, Deadline deadline);
  // The same in two steps: held by `entry` until seal() or abandon(). Take the lock under which it will be linked, seal
  // it, then link it: so a sealed block without a link belongs to a dead process, and the lock's next owner frees it.
  u32 begin_meta(u64 bytes, u32 owner, u32 entry, Deadline deadline);
  // Adds a block to this process's chain; returns its descriptor. One hold for each attempt. A kill before the link
  // leaves a stray, which the lock's next owner frees; after the link the block stays with the client slot. Throws
  // kStoreFull.
  u32 grow_ledger(Deadline deadline);

  void seal(u32 descriptor, u32 entry);     // without a lock: one atomic add
  void abandon(u32 descriptor, u32 entry);  // frees the unsealed block, soon

 private:
  struct Attempt {
    MakeResult result = MakeResult::kFull;
    u32 descriptor = kNone;
    Blocks::Choice choice;
    Shortage shortage;
  };
  u32 try_grow_ledger(Deadline deadline);  // kNone: there is no room
  Attempt try_make(const MakeRequest& request, u32 entry, const Format& format) DI_REQUIRES(heap_.lock);
  void no_descriptor(const MakeRequest& request, Attempt* attempt) const;
  bool choose(const MakeRequest& request, bool ahead, Attempt* attempt) DI_REQUIRES(heap_.lock);
  void find_block(const MakeRequest& request, Attempt* attempt) DI_REQUIRES(heap_.lock);
  void place(const MakeRequest& request, u32 entry, const Attempt& attempt, const Format& format)
      DI_REQUIRES(heap_.lock);
  bool commit(const Attempt& attempt, u32 entry, Deadline deadline, std::string* why) DI_EXCLUDES(heap_.lock);
  bool find_pages(u64 bytes, Deadline deadline, std::string* why) DI_EXCLUDES(heap_.lock);
  void discard(u32 descriptor, u32 entry) DI_REQUIRES(heap_.lock);

  HeapCore& heap_;
  IdObjects& objects_;
  ChunkEnds& chunks_;
  Sweeper& sweeper_;
};

}  // namespace di
