#include "heap/budget.h"

#include <algorithm>

namespace di {
namespace {

constexpr u64 kSpareDescriptors = 32;  // for blocks of the heap's own: ledgers, layouts, the index

// Pages that only the heap's own blocks may take: a reader of a store that is full of rows needs a block for its
// ledger.
constexpr u64 kOwnPages = 64 << 10;

u64 relaxed(const Shared<u64>& value) { return value.load(std::memory_order_relaxed); }

u64 resident_of(const TableHeader& table) { return relaxed(table.used_bytes) - relaxed(table.dropped_bytes); }

// How many chunks a table's reserve holds, and so how many descriptors.
u64 promised_by(const TableHeader& table) {
  const u64 block = table.chunk_block.load(std::memory_order_relaxed);
  return block == 0 ? 0 : table.reserve_wanted.load(std::memory_order_relaxed) / block;
}

std::string kib(u64 bytes) { return std::to_string(bytes >> 10) + " KiB"; }

}  // namespace

u64 Budget::claim_of(const TableHeader& table) const {
  return std::max(in_memory(memory_, reserve_of(table)) + relaxed(table.held_bytes), resident_of(table));
}

u64 Budget::claimed() const {
  const HeapHeader& heap = memory_.heap_header();
  return heap.object_bytes + heap.meta_bytes + heap.fixed_bytes + heap.table_charge;
}

u64 Budget::committed() const {
  const HeapHeader& heap = memory_.heap_header();
  return heap.object_bytes + heap.chunk_bytes + heap.meta_bytes + heap.fixed_bytes + heap.free_bytes;
}

u64 Budget::spendable() const { return di::spendable(limit()); }

std::string Budget::room_text() const {
  const HeapHeader& heap = memory_.heap_header();
  const auto mib = [](u64 bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  return "store '" + memory_.name() + "' is full: " + mib(heap.object_bytes) + " objects (" + mib(heap.pinned_bytes) +
         " pinned), " + mib(heap.table_charge) + " set aside for tables, " + mib(heap.meta_bytes + heap.fixed_bytes) +
         " of its own, of memory=" + mib(heap.budget.load());
}

std::string Budget::room_text(u64 wanted, std::span<const u32> tables) const {
  u64 own = 0;
  for (const u32 table : tables) own += claim_of(memory_.table(table));
  const u64 used = claimed(), most = spendable(), charge = memory_.heap_header().table_charge;
  const std::string others = ", " + kib(charge - std::min(charge, own)) + " are reserved for other tables";
  return room_text() + "; " + kib(wanted) + " are wanted, " + kib(most - std::min(most, used)) + " are free" +
         (tables.empty() ? "" : others);
}

void Budget::announce_room() {
  HeapHeader& heap = memory_.heap_header();
  heap.room_seq.fetch_add(1);
  if (heap.room_waiters.load() != 0) os::futex_wake(heap.room_seq, kNone >> 1);
}

// ---------------------------------------------------------------------------------------------------------- admission

u32 Budget::evictable(std::span<const u32> tables, u64 block) const {
  u32 found = kNone;
  for (const u32 index : tables) {
    const TableHeader& table = memory_.table(index);
    if (table.used_bytes.load() == table.open_bytes.load()) continue;
    // A table frees no memory for others as long as it uses no more than this. With a disk tier this is less than its
    // reserve.
    const u64 kept = in_memory(memory_, reserve_of(table)) + table.held_bytes;
    if (block != 0 && resident_of(table) + block <= kept) continue;
    if (__atomic_load_n(&table.limiter.queue, __ATOMIC_RELAXED) == 0) return index;  // [table], but never changed
    found = index;
  }
  return found;
}

u64 Budget::least_claim(std::span<const u32> tables, u64 block) const {
  const HeapHeader& heap = memory_.heap_header();
  u64 total = heap.meta_bytes + heap.fixed_bytes;
  for (u32 i = 0; i < memory_.table_count(); ++i) {
    const TableHeader& table = memory_.table(i);
    const bool grows = std::find(tables.begin(), tables.end(), i) != tables.end();
    total += std::max<u64>(in_memory(memory_, reserve_of(table)), table.open_bytes + (grows ? block : 0));
  }
  return total;
}

Shortage Budget::short_of_own(u32 index, u64 items, u64 open, u64 most) const {
  const TableHeader& header = memory_.table(index);
  Shortage shortage;
  shortage.bytes = ~u64{0};
  shortage.never = items == 0;
  const std::string table = "table '" + std::string(header.name) + "' ";
  if (shortage.never) {
    shortage.why = table + "has " + kib(open) +
                   " in open episodes and unfinished calls, of max_bytes=" + std::to_string(most) +
                   "; raise max_bytes=, open fewer lanes, or end episodes sooner";
  } else {
    shortage.short_table = index;
    shortage.why = table + "uses " + kib(header.used_bytes) + " of its " +
                   kib(header.reserve_bytes + header.held_bytes) + ", " + kib(items) +
                   " of them for items that are drawn, read or wait in a queue, and " + kib(open - header.open_bytes) +
                   " more are wanted; raise capacity=, max_bytes= or the store's memory=";
  }
  return shortage;
}

Shortage Budget::short_of_store(const MakeRequest& request, u64 block, u64 grow) const {
  Shortage shortage;
  shortage.bytes = claimed() + grow - spendable();
  const u64 least = least_claim(request.tables, block);
  shortage.never = least > spendable();
  if (shortage.never) {
    shortage.why = "open episodes and the space reserved for tables need " + kib(least) +
                   " of memory=" + std::to_string(limit()) +
                   ", whatever is evicted or deleted; raise memory= (store.resize), open fewer lanes, lower "
                   "max_length or capacity=, or end episodes sooner";
  } else {
    shortage.short_table = evictable(request.tables, block);
    shortage.why = room_text(grow, request.tables) + "; space is freed by " +
                   (shortage.short_table != kNone ? "evicting items or deleting objects" : "deleting objects");
  }
  return shortage;
}

// Each table is charged for the chunks that its items hold and that its view may still reach. A table may exceed what
// it has set aside by taking free memory: its items at most as much again, its open chunks as much as there is. Only
// items can be evicted, so a table without items in closed chunks is never named.
Shortage Budget::admit_chunk(const MakeRequest& request, u64 block) const {
  u64 grow = 0;
  for (const u32 index : request.tables) {
    const TableHeader& table = memory_.table(index);
    const u64 used = table.used_bytes + block, own = table.reserve_bytes + table.held_bytes;
    const u64 open = table.open_bytes + block;
    const u64 kept = in_memory(memory_, reserve_of(table)) + table.held_bytes;
    const u64 resident = resident_of(table);
    if (resident + block > kept) grow += resident + block - std::max(kept, resident);
    const u64 most = __atomic_load_n(&table.max_bytes, __ATOMIC_RELAXED);  // an old value counts for a moment longer
    if (used <= std::min(most, own + std::max(own, open) + block)) continue;
    return short_of_own(index, used - open, open, most);
  }
  if (grow == 0 || claimed() + grow <= spendable()) return {};
  return short_of_store(request, block, grow);
}

Shortage Budget::admit(const MakeRequest& request, const Blocks::Choice& choice) const {
  Shortage shortage;
  if (is_of_chunk(request.kind)) {
    shortage = admit_chunk(request, choice.bytes + request.body_block);
  } else if (const u64 grow = choice.taken_bytes + choice.table_bytes; grow != 0 && claimed() + grow > spendable()) {
    shortage.why = room_text(grow, {});  // a table's own reserve suffices, whatever others have taken
    shortage.bytes = claimed() + grow - spendable();
  }
  if (shortage.bytes != 0) return shortage;
  const u64 pages = committed() + choice.missing_bytes + choice.table_bytes;
  const u64 most = limit() - std::min(limit(), kOwnPages);
  shortage.pages = pages > most ? pages - most : 0;
  return shortage;
}

// ------------------------------------------------------------------------------------------------------ tables' claims

void Budget::charge(u32 index, i64 used_bytes, i64 open_bytes, i64 chunks) {
  TableHeader& table = memory_.table(index);
  const u64 before = claim_of(table);
  add_bytes(table.used_bytes, static_cast<u64>(used_bytes));
  add_bytes(table.open_bytes, static_cast<u64>(open_bytes));
  add_bytes(table.used_chunks, static_cast<u64>(chunks));
  // A lowered reserve follows the chunks. After a shrink, chunks may still take more than the new reserve. Then the
  // next chunk would evict items that are within the new capacity.
  const u64 least = std::max(table.reserve_wanted.load(), table.used_bytes.load());
  if (const u64 reserve = table.reserve_bytes.load(); least < reserve) {
    note_spare(memory_, (reserve / kSliceBytes - least / kSliceBytes) * kSliceBytes);  // small steps add up
    table.reserve_bytes.store(least);
  }
  add_bytes(memory_.heap_header().table_charge, claim_of(table) - before);
}

u64 Budget::own_claim(u32 index) const {
  const TableHeader& table = memory_.table(index);
  return claim_of(table) - relaxed(table.held_bytes);
}

u64 Budget::missing_for(u32 index, const Reserve& reserve, u64 held, u64 beside) const {
  const TableHeader& table = memory_.table(index);
  const u64 before = claim_of(table), after = std::max(in_memory(memory_, reserve) + held, resident_of(table));
  if (memory_.tiered()) {
    const u64 wanted = in_tiers(table, reserve), own = own_tiers(table);
    const u64 left = wanted > own ? left_in_tiers(memory_, spendable()) : 0;
    if (wanted > own + left) return wanted - own - left;
  }
  const u64 claim = claimed() - before + after + beside;
  return after + beside > before && claim > spendable() ? claim - spendable() : 0;
}

void Budget::charge_dropped(u32 index, i64 bytes) {
  TableHeader& table = memory_.table(index);
  const u64 before = claim_of(table);
  add_bytes(table.dropped_bytes, static_cast<u64>(bytes));
  add_bytes(memory_.heap_header().table_charge, claim_of(table) - before);
}

void Budget::set_claims(u32 index, const Reserve& reserve, u64 held_bytes) {
  HeapHeader& heap = memory_.heap_header();
  TableHeader& table = memory_.table(index);
  const u64 before = claim_of(table);
  table.chunk_block.store(reserve.chunk_block);
  table.chunk_head.store(reserve.chunk_head);
  table.reserve_bytes.store(reserve.bytes);
  table.reserve_open.store(reserve.open_bytes);
  table.held_bytes.store(held_bytes);
  const u64 after = claim_of(table);
  heap.table_charge.store(heap.table_charge - before + after);
  if (after < before) announce_room();
}

void note_spare(Memory& memory, u64 bytes) {
  Shared<u32>& spare = memory.heap_header().spare_slices;
  spare.store(static_cast<u32>(std::min<u64>(spare.load() + bytes / kSliceBytes, ~u32{0})));
}

void Budget::end_claims(u32 index) {
  TableHeader& table = memory_.table(index);
  note_spare(memory_, table.reserve_bytes.load());
  Shared<u64>& charge = memory_.heap_header().table_charge;
  charge.store(charge - claim_of(table));
  table.generation.fetch_add(1);
  for (Shared<u64>* bytes :
       {&table.reserve_bytes, &table.reserve_wanted, &table.reserve_open, &table.held_bytes, &table.used_bytes,
        &table.open_bytes, &table.dropped_bytes, &table.chunk_block, &table.chunk_head, &table.used_chunks})
    bytes->store(0);
  recount_promised();
}

void Budget::recount_claims() {
  u64 total = 0;
  for (u32 i = 0; i < memory_.table_count(); ++i) {
    TableHeader& table = memory_.table(i);
    table.reserve_wanted.store(std::min(table.reserve_wanted.load(), table.reserve_bytes.load()));
    table.reserve_open.store(std::min(table.reserve_open.load(), table.reserve_wanted.load()));
    total += claim_of(table);
  }
  memory_.heap_header().table_charge.store(total);
  recount_promised();
}

void Budget::recount_promised() {
  u64 total = 0;
  for (u32 i = 0; i < memory_.table_count(); ++i) total += promised_by(memory_.table(i));
  memory_.heap_header().promised = total;
}

u64 Budget::unkept(u32 index, u64 promised) const {
  u64 total = index == kNone ? promised : 0;
  for (u32 i = 0; i < memory_.table_count(); ++i) {
    const u64 of_it = i == index ? promised : promised_by(memory_.table(i)), used = memory_.table(i).used_chunks.load();
    total += of_it > used ? of_it - used : 0;
  }
  return total == 0 ? 0 : total + kSpareDescriptors;
}

bool Budget::keeps_all_free() const {
  const HeapHeader& heap = memory_.heap_header();
  return heap.free_count <= heap.promised && heap.free_count <= unkept(kNone, 0);
}

}  // namespace di
