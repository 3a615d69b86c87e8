#include "replay/directory.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "heap/fixed_pages.h"
#include "process/learners.h"
#include "replay/ended_groups.h"
#include "replay/pace.h"
#include "replay/texts.h"

namespace di {
namespace {

void fill_header(TableHeader& header, const TableShape& shape) {
  // Atomic: writers of the table that had this header before may still read these two fields.
  __atomic_store_n(&header.capacity, shape.capacity, __ATOMIC_RELAXED);
  __atomic_store_n(&header.max_bytes, shape.max_bytes, __ATOMIC_RELAXED);
  header.next_number = 1;
  header.rng_counter = 0;
  header.seed = shape.seed;
  header.expect.store(static_cast<u64>(shape.expect * kExpectUnit), std::memory_order_relaxed);
  header.max_priority = 1;
  header.initial_priority = shape.initial_priority;
  header.item_bytes = shape.item_bytes;
  header.epoch = header.latest_epoch = 0;
  header.epochs = shape.epochs;
  header.shuffle = shape.shuffle ? 1 : 0;
  header.sampler = static_cast<u64>(shape.sampler);
  header.remover = static_cast<u64>(shape.remover);
  header.alpha = shape.alpha;
  header.beta = shape.beta_given ? shape.beta : std::nan("");
  header.stratified = shape.stratified ? 1 : 0;
  header.normalize_table = shape.normalize_table ? 1 : 0;
  header.max_times_sampled = shape.max_times_sampled;
  header.max_staleness = shape.max_staleness;
  header.weights = shape.weights == kNone ? 0 : shape.weights + 1;
  __atomic_store_n(&header.group_size, shape.group, __ATOMIC_RELAXED);
  header.finished = header.total_inserts = header.total_samples = header.total_removed = header.total_updates = 0;
  header.stale_updates = header.evicted_for_room = header.stale_dropped = header.episodes_cut = 0;
  header.groups_dropped = header.late_answers = header.gathered = header.ended_count = 0;
  header.unique_groups = shape.unique_groups ? 1 : 0;
  header.short_groups = shape.short_groups ? 1 : 0;
  header.group_deadline_ns = shape.group_deadline_ns;
  header.groups_short = 0;
  header.steps_left_out.store(0, std::memory_order_relaxed);
  header.sample_age = -1;
  store_limiter(header, shape.limiter);
  header.undo.count.store(0);
  std::memset(header.segment_block, 0, sizeof header.segment_block);
  std::memset(header.segment_slots, 0, sizeof header.segment_slots);
  header.schema_block.store(0);
  header.gone_block = 0;
  header.gone_count = 0;
  header.size = header.held = header.waiting = header.writers = header.dense_count = header.dense_left = 0;
  header.remover_count = header.remover_left = 0;
  header.leases = header.leased_used_up = header.given_back = 0;
  header.leased.store(0);
  os::random_bytes(&header.next_lease, sizeof header.next_lease);  // no lease of an earlier table or store is one here
  header.next_lease = header.next_lease >> 2 | kFirstLease;
  header.stat_size.store(0);
  header.last_insert_ns.store(os::now_ns());
  header.learned.store(0);
  header.lock.dirty.store(0);
}

}  // namespace

// Frees all that belongs to a table whose state is kMaking or kDropping, and then its header. Under the directory lock.
// It may be repeated: a kill at any step leaves the state unchanged until everything is freed.
void TableDirectory::clear(u32 index, Deadline deadline) const {
  Heap& heap = arena_->heap();
  TableHeader& header = arena_->table(index);
  heap.sweeper.wait_readers(index, deadline);
  heap.claims.forget_table(index, deadline);
  DI_FAULT("table.drop_generation");
  heap.free_meta_of(index, {}, deadline);
  header.slots = 0;
  header.links_block = 0;
  heap.chunks.sweep(deadline);
  header.become(TableState::kFree);
}

u32 TableDirectory::free_index(Deadline deadline) const {
  Arena& arena = *arena_;
  HeapHeader& heap = arena.heap_header();
  for (u32 i = 0; i < arena.table_count(); ++i)
    if (arena.table(i).is(TableState::kFree)) return i;
  const u32 index = arena.table_count();
  if (index == kMaxTables) {
    throw Error(Code::kCapacity, "a store holds at most 256 tables; drop one with store.drop_table()").told();
  }
  std::string why;
  const u64 offset = arena.places().tables + u64{index} * kTableHeaderBytes;
  if (arena.heap().available(kTableHeaderBytes, deadline) < kTableHeaderBytes)
    throw Error(Code::kCapacity, "no room for another table; delete objects, or store.resize(memory=…)");
  if (!commit_fixed(arena.heap(), offset, kTableHeaderBytes, deadline, &why))
    throw Error(Code::kCapacity, "no memory for the table: " + why);
  HeapGuard guard(arena.heap(), deadline);
  heap.fixed_bytes.fetch_add(kTableHeaderBytes);
  heap.table_count.store(index + 1, std::memory_order_release);  // pairs with the acquire in Memory::table_count()
  return index;
}

std::shared_ptr<Table> TableDirectory::find(const std::string& name) const {
  for (u32 i = 0; i < arena_->table_count(); ++i) {
    const TableHeader& header = arena_->table(i);
    const u32 generation = header.generation.load(std::memory_order_acquire);
    if (!header.is(TableState::kLive) || name != read_name(header.name)) continue;
    auto table = std::make_shared<Table>(arena_, i);
    // If the table was dropped since the look, return none: there was a moment without a table of this name.
    if (table->generation() == generation && table->live()) return table;
  }
  return nullptr;
}

std::vector<std::string> TableDirectory::names() const {
  std::vector<std::string> all;
  for (u32 i = 0; i < arena_->table_count(); ++i)
    if (arena_->table(i).is(TableState::kLive)) all.push_back(read_name(arena_->table(i).name));
  return all;
}

void TableDirectory::finish_broken(Deadline deadline) const {
  for (u32 i = 0; i < arena_->table_count(); ++i) {
    const TableHeader& header = arena_->table(i);
    if (!header.is(TableState::kMaking) && !header.is(TableState::kDropping)) continue;
    try {
      clear(i, deadline.at_most(100'000'000));
    } catch (const Error& error) {  // a process, perhaps stopped, still copies from the table: a later call tries again
      if (error.code() != Code::kTimeout) throw;
    }
  }
}

std::shared_ptr<Table> TableDirectory::create(const TableShape& shape, Deadline deadline) const {
  return patiently(*arena_, deadline, [&] { return try_create(shape, deadline); });
}

void TableDirectory::make_blocks(u32 index, const TableShape& shape, Deadline deadline) const {
  Heap& heap = arena_->heap();
  TableHeader& header = arena_->table(index);
  heap.claims.reserve(index, shape.reserve, deadline);
  const TableBlocks sizes =
      table_blocks(shape.slots, {shape.sampler, shape.remover, shape.normalize_table, shape.shuffle, shape.group != 0});
  const auto block = [&](u64 bytes) -> u32 {
    return bytes == 0 ? 0 : heap.maker.make_meta(bytes, index, deadline) + 1;
  };
  header.segment_slots[0] = shape.slots;
  header.segment_block[0] = block(shape.slots * sizeof(Item));
  header.links_block = block(sizes.links);
  header.dense_block = block(sizes.dense);
  header.sampler_block = block(sizes.sampler);
  header.remover_block = block(sizes.remover);
  header.minimum_block = block(sizes.minimum);
  header.groups_block = block(sizes.groups);
  header.ended_block = block(shape.group != 0 ? EndedGroups::bytes() : 0);
  const u32 config = block(shape.config.size() + 8);
  write_text(heap, config, shape.config);
  header.config_block.store(config, std::memory_order_release);  // pairs with the acquire in text()
  header.slots = shape.slots;
  DI_FAULT("table.create_blocks");
}

std::shared_ptr<Table> TableDirectory::try_create(const TableShape& shape, Deadline deadline) const {
  DirectoryGuard directory(*arena_, deadline);
  finish_broken(deadline);
  if (find(shape.name))
    throw Error(Code::kTableExists, "table '" + shape.name + "' exists; use exist_ok=True or store.table()");
  const u32 index = free_index(deadline);
  TableHeader& header = arena_->table(index);
  write_name(header.name, shape.name);
  fill_header(header, shape);
  forget_learners(*arena_, index);
  header.become(TableState::kMaking);
  DI_FAULT("table.create_state");
  try {
    make_blocks(index, shape, deadline);
  } catch (...) {
    finish_broken(deadline);  // if a lock is not available, the next create(), drop() or reap() frees the rest
    throw;
  }
  auto table = std::make_shared<Table>(arena_, index);
  table->begin_empty();
  header.limiter.since = pace_version(table->core);
  header.become(TableState::kLive);  // pairs with the acquire in find()
  return table;
}

void TableDirectory::drop(const std::string& name, Deadline deadline) const {
  std::shared_ptr<Table> table;
  patiently(*arena_, deadline, [&] {
    DirectoryGuard directory(*arena_, deadline);
    finish_broken(deadline);
    table = find(name);
    if (!table) throw Error(Code::kTableNotFound, "there is no table '" + name + "'");
    // Under the table's lock no call is in the middle of a change, and later calls see the new state. Without the
    // heap's lock nothing of the table could be freed, so wait for that lock before the state changes.
    TableGuard guard(table->core, deadline);
    HeapGuard free(arena_->heap(), deadline);
    table->header().become(TableState::kDropping);
  });
  TableHeader& header = table->header();
  for (Shared<u32>* seq : {&header.items_seq, &header.room_seq}) {
    seq->fetch_add(1);
    os::futex_wake(*seq, kMaxClients);
  }
  DI_FAULT("table.drop_state");
  // From here on no process finds the table. If a process, perhaps stopped, still copies from it, the next create(),
  // drop() or reap() frees the table's bytes.
  patiently(*arena_, deadline, [&] {
    DirectoryGuard directory(*arena_, deadline);
    if (header.is(TableState::kDropping) && header.generation.load() == table->generation())
      clear(table->index(), deadline);
  });
}

}  // namespace di
