// The heap of one store: descriptors, the id index, pins, the byte budget. Everything here happens under one lock, so
// counts and ledgers change together. Without it a process seals what it was creating (one atomic add to the descriptor),
// tables count uses of chunks under their own locks, and a destructor marks its ledger entry, which somebody settles later.
//
// A kill at any line leaves `dirty` set and the next owner rebuilds every derived part from descriptors, ledgers and
// chunk attachments (recovery.cc).
#pragma once

#include <bit>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "arena/locks.h"
#include "heap/blocks.h"
#include "heap/ledger.h"

namespace di {

inline ObjectState word_state(u64 word) { return static_cast<ObjectState>(word >> 56); }
inline ObjectKind word_kind(u64 word) { return static_cast<ObjectKind>(word >> 48 & 0xff); }
inline u32 word_generation(u64 word) { return static_cast<u32>(word >> 32 & 0xffff); }
inline u32 word_pins(u64 word) { return static_cast<u32>(word); }
inline u64 make_word(ObjectState state, ObjectKind kind, u32 generation) {
  return u64{static_cast<u8>(state)} << 56 | u64{static_cast<u8>(kind)} << 48 | u64{generation & 0xffff} << 32;
}
constexpr u64 kSealStep = u64{1} << 56;  // creating -> sealed, sealed -> doomed

using Id = u8[20];

struct MakeRequest {
  u64 bytes = 0;
  ObjectKind kind = ObjectKind::kData;
  const u8* id = nullptr;
  u32 owner = kNone;  // meta: table index
  u64 expires_ns = 0;
  std::span<const u32> tables;       // chunk: the tables it is charged to
  std::span<const u32> generations;  // of those tables: kGone when one was dropped
};
struct Reserve {  // what a table sets aside for chunks
  u64 bytes = 0;
  u64 open_bytes = 0;   // of these, for what lanes have open: it does not follow the capacity
  u64 chunk_block = 0;  // bytes that a chunk occupies at least; 0: as it is
};
enum class MakeResult { kMade, kExists, kFull, kGone, kNever };  // kNever: full, and no eviction or deletion would help

class Heap {
 public:
  explicit Heap(Arena& arena);
  void format();
  SharedLock& lock() DI_RETURN_CAPABILITY(lock_) { return lock_; }

  // A block with its descriptor in state creating, held up by ledger entry `entry` (kind own); pages committed. kFull:
  // `why` says what is short, `short_table` names a table that can evict items to make room (kNone: the store is full).
  // `format` fills what others must never see unfilled (a chunk's header), under the lock.
  MakeResult make(const MakeRequest& request, u32 entry, u64 deadline_ns, u32* descriptor, std::string* why,
                  u32* short_table = nullptr, const std::function<void(u8*)>& format = {});
  // Meta blocks: made and handed over to their owner in one go.
  u32 make_meta(u64 bytes, u32 owner, u64 deadline_ns);
  // The same in two steps: held up by `entry` until seal() or abandon(). Seal it only under the lock under which it is
  // linked, first: then a sealed block that nobody links is a dead process's, and whoever takes the lock over frees it.
  u32 begin_meta(u64 bytes, u32 owner, u32 entry, u64 deadline_ns);
  u32 grow_ledger(u64 deadline_ns);  // one more block on this process's chain; its descriptor
  struct PinCopy {
    LedgerEntry* entry;
    u64 what, ref;
  };
  // A forked child: the parent holds them meanwhile. One whose object has gone all the same is left out.
  void repeat_pins(std::span<const PinCopy> pins, u64 deadline_ns);
  void seal(u32 descriptor, u32 entry);     // no lock: see above
  void abandon(u32 descriptor, u32 entry);  // frees what was being created, soon

  enum class PinResult { kPinned, kMissing, kCreating };
  PinResult pin(const Id& id, u32 entry, u32* descriptor, u64 deadline_ns);
  bool contains(const Id& id, u64 deadline_ns);
  bool remove(const Id& id, u64 deadline_ns);  // false: missing
  std::vector<std::string> keys(const u8* after, u64 count, u64 deadline_ns);

  // chunks
  // Writer or reaper: needs it no more. With deadline 0 it only tries; false: the heap is busy.
  // `position`: of one of its tables, while others still need it; kNone: of all, and `entry` ends.
  bool close_chunk(u32 descriptor, u32 position, u32 entry, u64 deadline_ns);
  void detach(std::span<const u32> chunks, u32 table, u64 deadline_ns);  // this table's uses of them have ended
  void sweep_chunks(u64 deadline_ns);  // the same for all, after a death, and its collapses

  // tables' bytes
  // Sets the reserve that a table wants, and has descriptors for its chunks; false, or thrown: nothing was set. More is
  // set aside at once, less only with settle_reserve(), when items have gone.
  bool reserve(u32 table, const Reserve& reserve, u64 deadline_ns, std::string* why);
  void settle_reserve(u32 table, u64 deadline_ns);
  // Sets aside what a table uses and `bytes` more, and a quarter again if there is memory; false: there is none.
  bool raise_reserve(u32 table, u64 bytes, u64 deadline_ns);
  // Whether so many bytes of chunks fit once every object is deleted and every item of these tables evicted.
  bool may_fit(std::span<const u32> tables, u64 bytes, u64 deadline_ns, std::string* why);
  // The table is no more: its claims and its generation end in one hold, so that no chunk is charged to or detached from
  // what comes after it under the same index.
  void forget_table(u32 table, u64 deadline_ns);
  bool hold(u32 table, i64 delta_bytes, u64 deadline_ns, bool force = false);  // held draws; false: no room
  void free_meta(std::span<const u32> descriptors, u64 deadline_ns);
  void free_meta_of(u32 table, std::span<const u32> linked, u64 deadline_ns);  // sealed, of this table, not among these
  // A table goes: waits until no live process copies from its chunks, then clears every ledger entry that names it.
  void wait_readers(u32 table, u64 deadline_ns);
  u64 available(u64 deadline_ns);  // bytes that a new object or reserve may take
  void settle(u64 deadline_ns);    // what this process has dropped

  void sweep_all(u64 deadline_ns);                         // dropped pins of every process, expired objects
  void settle_entry(LedgerEntry& entry, u64 deadline_ns);  // reaper: one pin or own of a dead client
  bool resize(u64 budget, u64 deadline_ns, std::string* why);
  u64 check(bool repair, u64 deadline_ns, std::vector<std::string>* findings);

  u64 charge_free_slice() DI_REQUIRES(lock_) { return blocks_.charge_free_slice(); }
  // A slice whose pages came, or were to come, while nobody held the lock: those that no block uses go.
  void settle_slice(u64 slice) DI_REQUIRES(lock_) { blocks_.settle_collapses(slice, 1, false); }

  Descriptor& descriptor(u32 index) const {
    const u64 unit = u64{index} / kFirstDescriptorSegment + 1;
    const u32 segment = static_cast<u32>(63 - std::countl_zero(unit));
    const u64 first = ((u64{1} << segment) - 1) * kFirstDescriptorSegment;
    if (segment >= kDescriptorSegments) [[unlikely]]
      bad_descriptor(index);
    const Offset base = arena_.heap_header().segments[segment];
    if (base.value < kSliceBytes) [[unlikely]]
      bad_descriptor(index);
    return *reinterpret_cast<Descriptor*>(
        arena_.at(base.value + (index - first) * sizeof(Descriptor), sizeof(Descriptor)));
  }
  u8* block(u32 index) const {
    const Descriptor& entry = descriptor(index);
    return arena_.at(entry.offset, entry.bytes);
  }
  u32 descriptor_count() const;

  class DI_SCOPED_CAPABILITY Guard {
   public:
    Guard(Heap& heap, u64 deadline_ns) DI_ACQUIRE(heap.lock_);
    ~Guard() DI_RELEASE();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Heap& heap_;
    int exceptions_;  // leaving by an exception keeps `dirty`: the next owner rebuilds
  };

 private:
  friend class Guard;
  friend class Weights;
  u32* chain_of(const Id& id) const DI_REQUIRES(lock_);
  // Along a chain of the index, to the link that names the first descriptor `found` takes; it holds 0: there is none.
  template <class Found>
  u32* follow(u32* link, Found found) const {
    for (Steps steps(descriptor_count(), "a chain of the index of ids"); *link != 0 && !found(*link - 1);) {
      steps.take();
      link = &descriptor(*link - 1).hash_next;
    }
    return link;
  }
  u32 find(const Id& id) const DI_REQUIRES(lock_);
  u32 find_taken(const Id& id) DI_REQUIRES(lock_);  // an object that has expired makes room
  void index_insert(u32 descriptor) DI_REQUIRES(lock_);
  void index_erase(u32 descriptor) DI_REQUIRES(lock_);
  void index_grow() DI_REQUIRES(lock_);
  u32 pop_free(ObjectKind kind) DI_REQUIRES(lock_);
  static u64 promised_by(const TableHeader& table);
  u64 unkept() const DI_REQUIRES(lock_) { return unkept(kNone, 0); }
  u64 unkept(u32 table, u64 promised) const DI_REQUIRES(lock_);
  u64 segments_bytes(u64 descriptors) const DI_REQUIRES(lock_);
  void wake_room();
  void recount_promised() DI_REQUIRES(lock_);
  Blocks::Choice choose(u64 bytes, BlockUse use, bool ahead) DI_REQUIRES(lock_);
  bool add_segment() DI_REQUIRES(lock_);
  void free_descriptor(u32 descriptor, bool punch) DI_REQUIRES(lock_);
  void unpin(u32 descriptor) DI_REQUIRES(lock_);
  void settle_dropped() DI_REQUIRES(lock_);
  void close_locked(u32 chunk) DI_REQUIRES(lock_);
  void end_need(u32 chunk, u32 position) DI_REQUIRES(lock_);
  void detach_locked(u32 chunk, u32 table) DI_REQUIRES(lock_);
  void release_if_unused(u32 chunk) DI_REQUIRES(lock_);
  void push_free(u32 descriptor) DI_REQUIRES(lock_);
  void retire(u32 descriptor) DI_REQUIRES(lock_);
  void discard(u32 descriptor, u32 entry) DI_REQUIRES(lock_);
  void release_own(u32 descriptor) DI_REQUIRES(lock_);
  struct Shortage {
    u64 bytes = 0;  // of budget; ~0: no deletion of objects would help
    u64 pages = 0;  // of pages, where the budget is there
    bool never = false;
  };
  Shortage admit(const MakeRequest& request, const Blocks::Choice& choice, std::string* why, u32* short_table) const
      DI_REQUIRES(lock_);
  Shortage admit_chunk(const MakeRequest& request, u64 block, std::string* why, u32* short_table) const
      DI_REQUIRES(lock_);
  u32 evictable(std::span<const u32> tables, u64 block) const DI_REQUIRES(lock_);
  u64 least_claim(std::span<const u32> tables, u64 block) const DI_REQUIRES(lock_);
  MakeResult try_make(const MakeRequest& request, u32 entry, Blocks::Choice* choice, Shortage* shortage, u32* out,
                      std::string* why, u32* short_table, const std::function<void(u8*)>& format) DI_REQUIRES(lock_);
  void place(const MakeRequest& request, u32 entry, const Blocks::Choice& choice, u32 index,
             const std::function<void(u8*)>& format) DI_REQUIRES(lock_);
  u64 move_pages(u64 bytes, bool holes_only, u64 deadline_ns) DI_EXCLUDES(lock_);
  bool free_holes(u64 bytes, u64 deadline_ns) DI_EXCLUDES(lock_);
  u64 missing_for(u32 table, u64 claims, u64 beside) const DI_REQUIRES(lock_);
  void set_claims(u32 table, u64 reserve_bytes, u64 held_bytes) DI_REQUIRES(lock_);
  bool has_tables_headroom(const Blocks::Choice& choice, std::string* why) const;
  bool commit_choice(const Blocks::Choice& choice, std::string* why);
  bool commit_made(const Blocks::Choice& choice, u32 entry, u64 deadline_ns, u32* out, std::string* why)
      DI_EXCLUDES(lock_);
  [[noreturn]] static void bad_descriptor(u32 index);
  void settle_collapses(u64 deadline_ns);
  void sweep_unused_chunks(u64 deadline_ns);                  // sweep_chunks(), now and then
  bool shrink_some(Blocks::Cursor* cursor, u64 deadline_ns);  // a slice of pages beyond the budget; false: no more
  u64 claimed() const;                                        // of the budget: pages in use, and what tables set aside
  u64 committed() const;                                      // pages
  void charge(u32 table, i64 used_delta, i64 open_delta) DI_REQUIRES(lock_);
  void recompute_charges() DI_REQUIRES(lock_);
  void expire() DI_REQUIRES(lock_);
  void rebuild() DI_REQUIRES(lock_);
  void recount_pins() DI_REQUIRES(lock_);
  u64 raw_block(u64 bytes, BlockUse use, u64 limit) DI_REQUIRES(lock_);
  u32 make_meta_locked(u64 bytes, u32 owner, u64 limit) DI_REQUIRES(lock_);
  void free_strays() DI_REQUIRES(lock_);
  std::string room_text() const;

  Arena& arena_;
  Blocks blocks_;
  SharedLock lock_;
  std::atomic<u64> swept_ns_{0};
};

// Every block of a client slot's ledger, with its descriptor. They stay with the slot, so anyone may walk them any time.
template <class Visit>
void for_ledger_blocks(const Arena& arena, u32 slot, Visit visit) {
  Steps steps(kMaxLedgerBlocks, "a ledger's chain of blocks");
  for (u32 at = arena.client(slot).ledger.load(std::memory_order_acquire); at != 0;) {
    steps.take();
    if (arena.heap().descriptor(at - 1).bytes < sizeof(LedgerBlock))
      throw Error(Code::kCorruptData, "a ledger's block is none");
    LedgerBlock& block = *reinterpret_cast<LedgerBlock*>(arena.heap().block(at - 1));
    visit(block, at - 1);
    at = block.next.load(std::memory_order_acquire);
  }
}

// ------------------------------------------------------------------------------------------------------ chunks by index

inline ChunkHeader& chunk_header(const Heap& heap, u32 chunk) {
  return *reinterpret_cast<ChunkHeader*>(heap.block(chunk));
}

// Of the chunk's table number `k`.
inline Uses& uses_at(const Heap& heap, u32 chunk, u32 k) {
  return k == 0 ? heap.descriptor(chunk).summary.first_uses : chunk_header(heap, chunk).attachment[k].uses;
}

// The tables that a chunk was written for. A damaged number of them would reach behind the chunk.
inline bool has_attachments(const Heap& heap, u32 chunk) {
  const u64 bytes = heap.descriptor(chunk).bytes, head = offsetof(ChunkHeader, attachment);
  return bytes >= sizeof(ChunkHeader) && chunk_header(heap, chunk).attachments <= kMaxTables &&
         chunk_header(heap, chunk).attachments * sizeof(Attachment) <= bytes - head;
}
inline std::span<Attachment> attachments(const Heap& heap, u32 chunk) {
  if (!has_attachments(heap, chunk)) [[unlikely]]
    throw Error(Code::kCorruptData, "the tables of a chunk are damaged");
  ChunkHeader& header = chunk_header(heap, chunk);
  return {header.attachment, header.attachments};
}

// Of a table by its index; nullptr: the chunk was not written for it.
inline Uses* uses_of(const Heap& heap, u32 chunk, u32 table) {
  ChunkSummary& summary = heap.descriptor(chunk).summary;
  if (summary.first_table == table) return &summary.first_uses;
  const std::span<Attachment> all = attachments(heap, chunk);
  for (u32 k = 1; k < all.size(); ++k)
    if (all[k].table == table) return &all[k].uses;
  return nullptr;
}

}  // namespace di
