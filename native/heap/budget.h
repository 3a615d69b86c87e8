// The byte budget of a store (memory=): how much of it objects, tables and the store itself claim, and what is missing
// for one more block. Under the heap's lock, unless noted.
//
// Claimed bytes: the bytes that objects, meta blocks and the fixed parts occupy, and that tables set aside. A table
// claims the larger of two numbers: its reserve plus its held draws, and what its chunks occupy in memory. With a disk
// tier it sets aside memory for open chunks and heads only. Committed bytes: those that have pages. Truths are the
// budget and the tables' reserves; everything else is derived, and recounted after a death.
#pragma once

#include <span>
#include <string>

#include "heap/blocks.h"
#include "heap/descriptors.h"
#include "heap/tiers.h"

namespace di {

struct MakeRequest {
  u64 bytes = 0;
  ObjectKind kind = ObjectKind::kData;
  const u8* id = nullptr;
  u32 owner = kNone;  // meta: table index
  u64 expires_ns = 0;
  u64 body_block = 0;                // chunk: bytes of its body's block; both are charged when the chunk is made
  std::span<const u32> tables;       // chunk, body: the tables it is charged to
  std::span<const u32> generations;  // of those tables: kGone when one was dropped
};

struct ShortOf {       // where a chunk found no room
  u32 table = kNone;   // one of its tables that can evict items to make room; kNone: the store is full
  bool tiers = false;  // memory and disk are full, so items of any table would make room
};

struct Shortage {
  u64 bytes = 0;            // of budget; ~0: no deletion of objects would help
  u64 pages = 0;            // of pages, if the budget suffices
  bool never = false;       // no eviction or deletion would help
  u32 short_table = kNone;  // a table that can evict items to make room; kNone: the store is full
  std::string why;

  bool any() const { return bytes != 0 || pages != 0; }
};

class Budget {
 public:
  explicit Budget(Memory& memory) : memory_(memory) {}

  u64 claimed() const;
  u64 committed() const;
  u64 spendable() const;  // of the budget, by others than the heap itself
  u64 limit() const { return memory_.heap_header().budget.load(); }
  std::string room_text() const;  // "store 'name' is full: ...", without the lock too
  // The same for a block of `wanted` bytes of these tables: also says how much is free, and how much is set aside for
  // other tables.
  std::string room_text(u64 wanted, std::span<const u32> tables) const;

  // Whether there is room. Chunks count against their tables' reserves, everything else against what the reserves
  // leave.
  Shortage admit(const MakeRequest& request, const Blocks::Choice& choice) const;
  // Bytes that stay claimed after the deletion of every object and the eviction of every item of these tables, with
  // `block` more bytes of chunks for each table.
  u64 least_claim(std::span<const u32> tables, u64 block) const;
  // One of these tables that has items in closed chunks and that `block` more bytes would lift above what it has set
  // aside (0: this is not checked). Prefers a table that may evict items. kNone: no such table.
  u32 evictable(std::span<const u32> tables, u64 block) const;

  // Counts a chunk that was made or freed, or that is no longer open.
  void charge(u32 table, i64 used_bytes, i64 open_bytes, i64 chunks);
  void charge_dropped(u32 table, i64 bytes);  // change of the bytes of its bodies that are not in memory
  // Bytes that are missing for a table to claim this reserve and `held` bytes of draws, with `beside` more bytes for
  // other uses; 0: there is room. A claim that grows must also fit what memory and disk can hold together.
  u64 missing_for(u32 table, const Reserve& reserve, u64 held, u64 beside) const;
  u64 own_claim(u32 table) const;  // its claim without its held draws
  void set_claims(u32 table, const Reserve& reserve, u64 held_bytes);
  void end_claims(u32 table);
  void recount_claims();  // from the tables' reserves and chunks

  // Descriptors that the reserves promise their chunks.
  void recount_promised();
  // How many of these no chunk has taken yet, if the table promises `promised`; kNone: a further table.
  u64 unkept(u32 table, u64 promised) const;
  bool keeps_all_free() const;  // every free descriptor is promised to a chunk

  void announce_room();  // bytes were freed: wakes the calls that wait for room

 private:
  u64 claim_of(const TableHeader& table) const;
  Shortage admit_chunk(const MakeRequest& request, u64 block) const;
  Shortage short_of_own(u32 table, u64 items, u64 open, u64 most) const;
  Shortage short_of_store(const MakeRequest& request, u64 block, u64 grow) const;

  Memory& memory_;
};

// Tables set aside `bytes` less for good: pages of as many bytes may go back to the machine (maintenance/chores).
void note_spare(Memory& memory, u64 bytes);

}  // namespace di
