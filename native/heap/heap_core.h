// The data under the heap's lock: descriptors, the index of ids, blocks and the budget. Maker, IdObjects, ChunkEnds,
// TableClaims, Sweeper and HeapRecovery all work on it.
//
// Counts and ledger entries change together, under this one lock. Three things happen without it: a process seals what
// it was creating (one atomic add to the descriptor), a table counts uses of chunks under its own lock, and a
// destructor marks its ledger entry as dropped, which a later sweep settles.
//
// A kill at any line leaves `dirty` set. The next owner then rebuilds everything derived from descriptors, ledgers and
// chunk attachments (recovery.h).
#pragma once

#include <span>
#include <string>

#include "heap/budget.h"
#include "heap/chunk_memory.h"
#include "heap/descriptors.h"
#include "heap/disk_space.h"
#include "heap/id_index.h"
#include "heap/page_reclaim.h"
#include "process/ledger.h"
#include "process/locks.h"

namespace di {

// Moves bodies of chunks from memory to the disk when room is short.
class RoomMaker {
 public:
  virtual ~RoomMaker() = default;
  // Takes shared locks, so the caller holds none. False: it made no room, and *why names the obstacle.
  virtual bool make_room(u64 bytes, Deadline deadline, std::string* why) = 0;
  // take_kept(): whether a make_room() of this process has failed since the last take_kept(), for one of these reasons
  // alone. kByReaders: readers keep all bodies in memory. kByBudget: the write budget is used up for now. In both cases
  // a call that needs room waits and evicts no items.
  enum class Kept { kNot, kByReaders, kByBudget };
  // Called before items are evicted: also empties files whose rows FIFO will evict soon. kDone: there may be room now.
  // kTimedOut: another process empties files, and the deadline is over.
  enum class Emptied { kNothing, kTimedOut, kDone };
  virtual Emptied empty_more(Deadline deadline) = 0;
  virtual Kept take_kept() = 0;
  // For the case that memory and disk are full: the table that exceeds what was set aside for it by the largest factor,
  // and by clearly more than `own`; kNone: none does. Takes the heap's lock.
  virtual u32 most_over(u32 own, Deadline deadline) = 0;
};

class HeapCore {
 public:
  HeapCore(Client& client, Ledger& ledger);
  HeapCore(const HeapCore&) = delete;
  HeapCore& operator=(const HeapCore&) = delete;
  void format();

  Descriptor& descriptor(u32 index) const { return descriptors[index]; }
  u8* block(u32 index) const { return descriptors.block(index); }
  u8* meta(u32 index, u32 owner, u64 bytes) const { return descriptors.meta(index, owner, bytes).data(); }
  u32 descriptor_count() const { return descriptors.count(); }

  // A free descriptor; kNone: there is none for this kind. Objects do not take descriptors promised to chunks.
  u32 take_descriptor(ObjectKind kind) DI_REQUIRES(lock);
  bool add_segment() DI_REQUIRES(lock);  // of descriptors; false: no room, or all segments exist
  // Frees the descriptor and its block. punch: its pages may never have been committed.
  void free_descriptor(u32 descriptor, bool punch) DI_REQUIRES(lock);
  // note_body() writes the body's place to the chunk's summary. free_body() frees only the body; free_descriptor() of a
  // chunk frees its body too.
  void note_body(u32 chunk) DI_REQUIRES(lock);
  void free_body(u32 chunk) DI_REQUIRES(lock);
  void forget_copy(u32 chunk) DI_REQUIRES(lock);  // the one on disk
  // The record of an object now lies at `place`; before it had none, or it lay elsewhere. A durable object stays
  // durable.
  void note_record(u32 descriptor, const LogPlace& place, bool durable) DI_REQUIRES(lock);
  // The bytes of a sealed object that has a record and no pin leave memory.
  void drop_bytes(u32 descriptor) DI_REQUIRES(lock);
  // The object `to`, whose bytes are away, gets the block of the object `from`, which has as many bytes and is freed.
  void give_block(u32 from, u32 to) DI_REQUIRES(lock);
  // A zeroed, sealed meta block, made inside one hold; kNone: no room below `limit`.
  u32 own_meta(u64 bytes, u32 owner, u64 limit) DI_REQUIRES(lock);
  void require_index() DI_REQUIRES(lock);               // makes the index of ids; throws kStoreFull: no room for it
  void index_object(u32 descriptor) DI_REQUIRES(lock);  // likewise, if there is no index yet
  void grow_index(u64 objects = 0) DI_REQUIRES(lock);   // if there is room; for at least this many

  Blocks::Choice choose(u64 bytes, BlockUse use, bool ahead) DI_REQUIRES(lock);
  static bool has_tables_headroom(const Blocks::Choice& choice, std::string* why);
  bool commit(const Blocks::Choice& choice, std::string* why);  // its pages; also without the lock

  // Gives unused pages back, a slice per hold of the lock; returns the bytes. A kill between two holds leaves nothing
  // to do. kMetaHoles: only if they suffice.
  u64 move_pages(u64 bytes, PageReclaim::Unused which, Deadline deadline) DI_EXCLUDES(lock);
  // The same for pages between objects, if these may suffice. False: no page was freed.
  bool free_holes(u64 bytes, Deadline deadline) DI_EXCLUDES(lock);

  Client& client;
  Memory& memory;
  Ledger& ledger;  // of this process
  PageCharges pages;
  Blocks blocks;
  PageReclaim reclaim;
  Descriptors descriptors;
  ChunkMemory chunk_memory;
  IdIndex ids;
  Budget budget;
  DiskSpace disk;
  SharedLock lock;
  RoomMaker* room_maker = nullptr;  // null: the store has no disk tier

 private:
  u64 raw_block(u64 bytes, BlockUse use, u64 limit) DI_REQUIRES(lock);
};

// One hold of the lock. After a death it rebuilds first. Leaving by an exception keeps `dirty` set, so the next owner
// rebuilds, as it does after a kill. Order: after the directory's and tables' locks. No other shared lock is taken
// inside; of this process's mutexes only Client::local(), that of the dropped entries, that of the list of
// ObjectDrops and that of TableShares.
class DI_SCOPED_CAPABILITY HeapGuard {
 public:
  HeapGuard(HeapCore& heap, Deadline deadline) DI_ACQUIRE(heap.lock);
  ~HeapGuard() DI_RELEASE();
  HeapGuard(const HeapGuard&) = delete;
  HeapGuard& operator=(const HeapGuard&) = delete;

 private:
  HeapCore& heap_;
  int exceptions_;
};

// Every block of a client slot's ledger, with its descriptor. They stay with the slot for ever, so a walk needs no
// lock.
template <class Visit>
void for_ledger_blocks(const HeapCore& heap, u32 slot, Visit visit) {
  Steps steps(kMaxLedgerBlocks, "a ledger's chain of blocks");
  for (u32 at = heap.memory.client(slot).ledger.load(std::memory_order_acquire); at != 0;) {
    steps.count_one();
    LedgerBlock& block = *reinterpret_cast<LedgerBlock*>(heap.meta(at - 1, kOwnerLedger, sizeof(LedgerBlock)));
    visit(block, at - 1);
    at = block.next.load(std::memory_order_acquire);
  }
}

// Every ledger entry of every client slot, also of free slots, whose blocks stay.
template <class Visit>
void for_ledgers(const HeapCore& heap, Visit visit) {
  for (u32 slot = 0; slot < kMaxClients; ++slot)
    for_ledger_blocks(heap, slot, [&](LedgerBlock& block, u32) {
      for (LedgerEntry& entry : block.entries)
        if (entry.what.load(std::memory_order_acquire) != 0) visit(slot, entry);
    });
}

}  // namespace di
