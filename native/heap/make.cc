// Making blocks: what the budget admits, where the pages come from, and what is left if the maker dies.
#include <algorithm>
#include <cstring>
#include <utility>

#include "heap/heap.h"

namespace di {
namespace {

constexpr u64 kChunkSweepNs = 100'000'000;  // a full store looks for chunks nobody uses at most this often

void add(Shared<u64>& counter, u64 delta) {
  counter.store(counter.load(std::memory_order_relaxed) + delta, std::memory_order_relaxed);
}

u64 table_need(const TableHeader& table) {
  return std::max(
      table.reserve_bytes.load(std::memory_order_relaxed) + table.held_bytes.load(std::memory_order_relaxed),
      table.used_bytes.load(std::memory_order_relaxed));
}

}  // namespace

// --------------------------------------------------------------------------------------------------------- the budget

u64 Heap::claimed() const {
  const HeapHeader& heap = arena_.heap_header();
  return heap.object_bytes + heap.meta_bytes + heap.fixed_bytes + heap.table_charge;
}

u64 Heap::committed() const {
  const HeapHeader& heap = arena_.heap_header();
  return heap.object_bytes + heap.chunk_bytes + heap.meta_bytes + heap.fixed_bytes + heap.free_bytes;
}

// One of these tables whose items hold chunks by themselves, if possible one that may evict them; kNone: there is none.
// `block` more bytes would lift it above what it has set aside; 0: whether they do is not asked.
u32 Heap::evictable(std::span<const u32> tables, u64 block) const {
  u32 found = kNone;
  for (const u32 index : tables) {
    const TableHeader& table = arena_.table(index);
    if (table.used_bytes.load() == table.open_bytes.load()) continue;
    if (block != 0 && table.used_bytes + block <= table.reserve_bytes + table.held_bytes) continue;
    if (__atomic_load_n(&table.limiter.queue, __ATOMIC_RELAXED) == 0) return index;  // [table], but never changed
    found = index;
  }
  return found;
}

// What stays claimed when every object is deleted and every item of these tables evicted, with one more chunk of theirs.
u64 Heap::least_claim(std::span<const u32> tables, u64 block) const {
  const HeapHeader& heap = arena_.heap_header();
  u64 total = heap.meta_bytes + heap.fixed_bytes;
  for (u32 i = 0; i < arena_.table_count(); ++i) {
    const TableHeader& table = arena_.table(i);
    const bool grows = std::find(tables.begin(), tables.end(), i) != tables.end();
    total += std::max<u64>(table.reserve_bytes, table.open_bytes + (grows ? block : 0));
  }
  return total;
}

// Each table pays for the chunks that its own items hold and its own view may still reach. Past what it has set aside
// it takes free memory: for its items never more than the same again, for what its writers have open as much as there is.
// Only items can be evicted, so a table without any in closed chunks is never the one that is short.
Heap::Shortage Heap::admit_chunk(const MakeRequest& request, u64 block, std::string* why, u32* short_table) const {
  const u64 budget = spendable(arena_.heap_header().budget.load());
  const auto kib = [](u64 bytes) { return std::to_string(bytes >> 10) + " KiB"; };
  Shortage shortage;
  u64 grow = 0;
  for (const u32 index : request.tables) {
    const TableHeader& table = arena_.table(index);
    const u64 used = table.used_bytes + block, own = table.reserve_bytes + table.held_bytes;
    const u64 open = table.open_bytes + block, items = used - open;
    if (used > own) grow += used - std::max<u64>(own, table.used_bytes);
    const u64 most = __atomic_load_n(&table.max_bytes, __ATOMIC_RELAXED);  // a stale one holds for a moment longer
    // mutant: open-chunks-are-short-of-items
    if (used <= std::min(most, own + std::max(own, open) + block)) continue;
    shortage.bytes = ~u64{0};
    shortage.never = items == 0;
    if (short_table != nullptr && items != 0) *short_table = index;
    if (why != nullptr)
      *why = shortage.never ? "table '" + std::string(table.name) + "' has " + kib(open) +
                                  " in open episodes and unfinished calls, of max_bytes=" + std::to_string(most) +
                                  "; raise max_bytes=, open fewer lanes, or end episodes sooner"
                            : "table '" + std::string(table.name) + "' uses " + kib(used - block) + " of its " +
                                  kib(own) + ", " + kib(items) +
                                  " of them for items that are drawn, read or wait in a queue; raise capacity=, "
                                  "max_bytes= or the store's memory=";
    return shortage;
  }
  if (grow == 0 || claimed() + grow <= budget) return shortage;
  shortage.bytes = claimed() + grow - budget;
  const u64 least = least_claim(request.tables, block);
  shortage.never = least > budget;
  const u32 other = shortage.never ? kNone : evictable(request.tables, block);
  if (short_table != nullptr) *short_table = other;
  if (why != nullptr)
    *why = shortage.never ? "open episodes and what is set aside for tables need " + kib(least) +
                                " of memory=" + std::to_string(arena_.heap_header().budget.load()) +
                                ", whatever is evicted or deleted; raise memory= (store.resize), open fewer lanes, "
                                "lower max_length or capacity=, or end episodes sooner"
                          : room_text() + "; " + kib(shortage.bytes) + " more are wanted" +
                                (other != kNone ? ", by evicting items or deleting objects" : ", by deleting objects");
  return shortage;
}

// Chunks are charged to their tables' reserves; everything else lives from what the reserves leave.
Heap::Shortage Heap::admit(const MakeRequest& request, const Blocks::Choice& choice, std::string* why,
                           u32* short_table) const {
  Shortage shortage;
  if (request.kind == ObjectKind::kChunk) {
    shortage = admit_chunk(request, choice.bytes, why, short_table);
  } else if (const u64 grow = choice.taken_bytes + choice.table_bytes,
             budget = spendable(arena_.heap_header().budget.load());
             grow != 0 &&
             claimed() + grow > budget) {  // what a table has set aside is its own, whatever else was taken
    if (why != nullptr) *why = room_text();
    shortage.bytes = claimed() + grow - budget;
  }
  if (shortage.bytes != 0) return shortage;
  const u64 pages = committed() + choice.missing_bytes + choice.table_bytes;
  const u64 all = arena_.heap_header().budget.load();
  shortage.pages = pages > all ? pages - all : 0;
  return shortage;
}

std::string Heap::room_text() const {
  const HeapHeader& heap = arena_.heap_header();
  const auto mib = [](u64 bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  return "store '" + arena_.name() + "' is full: " + mib(heap.object_bytes) + " objects (" + mib(heap.pinned_bytes) +
         " pinned), " + mib(heap.table_charge) + " set aside for tables, " + mib(heap.meta_bytes + heap.fixed_bytes) +
         " of its own, of memory=" + mib(heap.budget.load());
}

void Heap::charge(u32 index, i64 used_delta, i64 open_delta) {
  TableHeader& table = arena_.table(index);
  const u64 before = table_need(table);
  add(table.used_bytes, static_cast<u64>(used_delta));
  add(table.open_bytes, static_cast<u64>(open_delta));
  if (used_delta != 0) add(table.used_chunks, used_delta > 0 ? 1 : ~u64{0});
  add(arena_.heap_header().table_charge, table_need(table) - before);
}

// Slice tables that come along with a block are committed under the lock; pages are committed after it.
bool Heap::has_tables_headroom(const Blocks::Choice& choice, std::string* why) const {
  return choice.table_bytes == 0 || has_headroom(choice.table_bytes, why);
}

bool Heap::commit_choice(const Blocks::Choice& choice, std::string* why) {
  if (choice.missing_bytes == 0) return true;
  const u64 slice = arena_.header().data.value + choice.slice * kSliceBytes;
  return arena_.commit(slice + choice.first_page * kPageBytes, choice.pages * kPageBytes, why);
}

// ------------------------------------------------------------------------------------------------------------- making

// Meta blocks of one size are few, and stay: the other pages of a slice that was free would count as theirs for ever.
Blocks::Choice Heap::choose(u64 bytes, BlockUse use, bool ahead) {
  const Blocks::Choice choice = blocks_.choose(bytes, use, ahead);
  // mutant: meta-takes-whole-slices
  if (use != BlockUse::kMeta || !choice.found || choice.spare_bytes == 0) return choice;
  blocks_.punch_spare(choice);
  return blocks_.choose(bytes, use, ahead);
}

// One look, under the lock: kMade, kExists, or kFull with what is short.
MakeResult Heap::try_make(const MakeRequest& request, u32 entry, Blocks::Choice* choice, Shortage* shortage, u32* out,
                          std::string* why, u32* short_table, const std::function<void(u8*)>& format) {
  const BlockUse use = static_cast<BlockUse>(request.kind);
  settle_dropped();
  for (std::size_t i = 0; i < request.generations.size(); ++i)
    if (arena_.table(request.tables[i]).generation.load() != request.generations[i]) return MakeResult::kGone;
  if (request.id != nullptr) {
    *out = find_taken(*reinterpret_cast<const Id*>(request.id));
    if (*out != kNone) return MakeResult::kExists;
  }
  const HeapHeader& heap = arena_.heap_header();
  if (request.id != nullptr && heap.live_objects >= heap.index_buckets) index_grow();
  const u32 index = request.id != nullptr && heap.index_buckets == 0 ? kNone : pop_free(request.kind);
  if (index == kNone) {
    if (why != nullptr) *why = room_text();
    *shortage = {kPageBytes, 0};
    if (request.kind == ObjectKind::kChunk) {  // its descriptor may come of another chunk
      const u32 other = evictable(request.tables, 0);
      if (short_table != nullptr) *short_table = other;
      shortage->never = other == kNone && heap.live_objects == 0;
    }
    return MakeResult::kFull;
  }
  *choice = choose(request.bytes, use, true);
  *shortage = choice->found ? admit(request, *choice, why, short_table) : Shortage{~u64{0}, 0};
  if (choice->found && (shortage->bytes != 0 || shortage->pages != 0)) {  // without the pages that only come along
    *choice = blocks_.choose(request.bytes, use, false);
    *shortage = admit(request, *choice, why, short_table);
    if (shortage->bytes != 0 && shortage->bytes <= choice->spare_bytes) {
      blocks_.punch_spare(*choice);
      *choice = blocks_.choose(request.bytes, use, false);
      *shortage = admit(request, *choice, why, short_table);
    }
  }
  if (!choice->found || shortage->bytes != 0 || shortage->pages != 0) {
    if (!choice->found && why != nullptr) *why = room_text();
    push_free(index);
    return MakeResult::kFull;
  }
  if (!has_tables_headroom(*choice, why)) {
    shortage->bytes = ~u64{0};
    push_free(index);
    return MakeResult::kFull;
  }
  place(request, entry, *choice, index, format);
  *out = index;
  return MakeResult::kMade;
}

// The descriptor becomes a truth by one store. Killed before it: a ledger entry that names a free descriptor, which the
// rebuild clears; after it: an object being created by a dead process, which the reaper frees.
void Heap::place(const MakeRequest& request, u32 entry, const Blocks::Choice& choice, u32 index,
                 const std::function<void(u8*)>& format) {
  HeapHeader& heap = arena_.heap_header();
  Descriptor& made = descriptor(index);
  const u64 word = make_word(ObjectState::kCreating, request.kind, word_generation(made.word.load()));
  made.offset = choice.offset;
  made.bytes = request.bytes;
  made.owner = request.kind == ObjectKind::kMeta ? request.owner : arena_.slot();
  made.expires_ns = request.expires_ns;
  made.flags = request.id != nullptr ? kFlagHasId : 0;
  if (request.id != nullptr) std::memcpy(made.id, request.id, sizeof(Id));
  if (request.kind == ObjectKind::kChunk) {
    made.summary.first_table = request.tables.empty() ? kNone : request.tables.front();
    made.summary.first_uses.store(0, std::memory_order_relaxed);
    made.summary.rows.store(0, std::memory_order_relaxed);
  }
  if (request.expires_ns != 0) ++heap.expiring;
  LedgerEntry& own = arena_.ledger().entry(entry);
  own.ref.store(word_generation(word), std::memory_order_relaxed);
  own.what.store(ledger_what(LedgerKind::kOwn, 0, index), std::memory_order_release);
  if (format) format(arena_.at(choice.offset, choice.bytes));
  DI_FAULT("heap.make_before_state");
  made.word.store(word, std::memory_order_release);
  DI_FAULT("heap.make_after_state");
  blocks_.apply(choice, static_cast<BlockUse>(request.kind));
  if (request.kind == ObjectKind::kData) {
    add(heap.live_bytes, choice.bytes);
    ++heap.live_objects;
    if (request.id != nullptr) index_insert(index);
  }
  if (request.kind == ObjectKind::kChunk)
    for (const u32 table : request.tables)
      charge(table, static_cast<i64>(choice.bytes), static_cast<i64>(choice.bytes));
}

// Takes pages from where nobody uses them, a slice per hold of the lock; bytes got.
u64 Heap::move_pages(u64 bytes, bool holes_only, u64 deadline_ns) {
  Blocks::Cursor cursor;
  u64 got = 0;
  for (u64 some = 1; got < bytes && some != 0; got += some) {
    Guard guard(*this, deadline_ns);
    // mutant: pages-do-not-move
    some = holes_only ? blocks_.reclaim_holes(&cursor) : blocks_.reclaim_some(&cursor);
  }
  return got;
}

// Gives pages that lie between objects back to the budget, where they may suffice; false: no use asking again.
bool Heap::free_holes(u64 bytes, u64 deadline_ns) {
  const HeapHeader& heap = arena_.heap_header();
  const u64 objects = heap.object_bytes, live = heap.live_bytes;  // read freely: an estimate
  return live < objects && bytes <= objects - live && move_pages(bytes, true, deadline_ns) != 0;
}

// False: machine or cgroup gives no more, and the block is no more either.
bool Heap::commit_made(const Blocks::Choice& choice, u32 entry, u64 deadline_ns, u32* out, std::string* why) {
  const u32 made = std::exchange(*out, kNone);
  try {
    if (commit_choice(choice, why)) {
      *out = made;
      return true;
    }
    Guard guard(*this, deadline_ns);
    discard(made, entry);
  } catch (...) {  // the next call here discards it, or the reaper
    arena_.ledger().drop(entry);
    throw;
  }
  return false;
}

MakeResult Heap::make(const MakeRequest& request, u32 entry, u64 deadline_ns, u32* out, std::string* why,
                      u32* short_table, const std::function<void(u8*)>& format) {
  *out = kNone;
  bool swept = false;
  for (int moves = 0;;) {
    if (short_table != nullptr) *short_table = kNone;
    Blocks::Choice choice;
    Shortage shortage;
    MakeResult result;
    {
      Guard guard(*this, deadline_ns);
      result = try_make(request, entry, &choice, &shortage, out, why, short_table, format);
    }
    if (result == MakeResult::kExists || result == MakeResult::kGone) return result;
    if (result == MakeResult::kMade) {
      if (commit_made(choice, entry, deadline_ns, out, why)) return result;
      // Machine or cgroup gives no more: pages that lie unused elsewhere go back to it, and it may.
      if (++moves > 8 || move_pages(choice.missing_bytes, false, deadline_ns) == 0) return MakeResult::kFull;
      os::forget_headroom();
      continue;
    }
    if (shortage.bytes == 0) {  // the budget is there, in pages that lie elsewhere
      if (move_pages(shortage.pages, false, deadline_ns) == 0 && ++moves > 8) {
        if (why != nullptr) *why = room_text();
        return MakeResult::kFull;
      }
    } else if (!swept) {
      swept = true;
      sweep_all(deadline_ns);
      sweep_unused_chunks(deadline_ns);
    } else if (shortage.never) {
      return MakeResult::kNever;
    } else if (!free_holes(shortage.bytes, deadline_ns)) {
      return MakeResult::kFull;
    }
  }
}

u32 Heap::make_meta(u64 bytes, u32 owner, u64 deadline_ns) {
  const u32 entry = arena_.ledger().take_one(deadline_ns);
  u32 index = kNone;
  try {
    index = begin_meta(bytes, owner, entry, deadline_ns);
  } catch (...) {
    arena_.ledger().give_unused(entry);
    throw;
  }
  seal(index, entry);
  return index;
}

u32 Heap::begin_meta(u64 bytes, u32 owner, u32 entry, u64 deadline_ns) {
  MakeRequest request;
  request.bytes = bytes;
  request.kind = ObjectKind::kMeta;
  request.owner = owner;
  u32 index = kNone;
  std::string why;
  if (make(request, entry, deadline_ns, &index, &why) != MakeResult::kMade) throw Error(Code::kCapacity, why);
  std::memset(block(index), 0, bytes);
  return index;
}

u32 Heap::grow_ledger(u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  const u32 index = make_meta_locked(sizeof(LedgerBlock), kOwnerLedger, arena_.heap_header().budget.load());
  if (index == kNone) throw Error(Code::kStoreFull, room_text());
  LedgerBlock& fresh = *reinterpret_cast<LedgerBlock*>(block(index));
  fresh.next.store(arena_.self().ledger.load());
  DI_FAULT("heap.ledger_before_link");
  arena_.self().ledger.store(index + 1, std::memory_order_release);  // pairs with walks of other processes
  return index;
}

// Chunks whose last use ended in a process that had no time to let them go.
void Heap::sweep_unused_chunks(u64 deadline_ns) {
  const u64 now = os::now_ns();
  u64 before = swept_ns_.load(std::memory_order_relaxed);
  if (now - before < kChunkSweepNs || !swept_ns_.compare_exchange_strong(before, now, std::memory_order_relaxed))
    return;
  sweep_chunks(deadline_ns);
}

}  // namespace di
