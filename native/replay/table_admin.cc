// Making, finding and dropping tables; changing them while everybody runs.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "arena/learners.h"
#include "replay/priorities.h"
#include "replay/table.h"

namespace di {
namespace {

class DirectoryGuard {  // one maker, dropper or reaper at a time; first in the lock order
 public:
  DirectoryGuard(const Arena& arena, u64 deadline_ns)
      : lock_(arena, arena.header().reap_lock, "the store's directory") {
    lock_.acquire(deadline_ns);
  }
  ~DirectoryGuard() { lock_.release(); }
  DirectoryGuard(const DirectoryGuard&) = delete;
  DirectoryGuard& operator=(const DirectoryGuard&) = delete;

 private:
  SharedLock lock_;
};

void write_text_into(const Heap& heap, u32 block, const std::string& text) {
  u8* at = heap.block(block - 1);
  const u64 size = text.size();
  std::memcpy(at, &size, 8);
  std::memcpy(at + 8, text.data(), text.size());
}

u64 word_at(const void* at) { return __atomic_load_n(static_cast<const u64*>(at), __ATOMIC_ACQUIRE); }

void write_name(char (&name)[kNameBytes], const std::string& text) {
  char padded[kNameBytes] = {};
  std::strncpy(padded, text.c_str(), kNameBytes - 1);
  for (u32 i = 0; i < kNameBytes; i += 8) {
    u64 word;
    std::memcpy(&word, padded + i, 8);
    __atomic_store_n(reinterpret_cast<u64*>(name + i), word, __ATOMIC_RELAXED);
  }
}

// A text of a table, read without a lock and perhaps while the table is dropped: its block may be somebody else's by
// now. Whatever is read lies within the store, and the caller takes it only if the table is still the same afterwards.
// No word is used before that but the size, which is bounded by what the descriptor said. The thread sanitizer is told
// to look away, here and nowhere else (docs/concurrency.md).
DI_NO_TSAN bool read_text(const Arena& arena, u32 block, std::string* out) {
  const Descriptor& entry = arena.heap().descriptor(block - 1);
  const u64 offset = __atomic_load_n(&entry.offset, __ATOMIC_ACQUIRE);
  const u64 bytes = __atomic_load_n(&entry.bytes, __ATOMIC_ACQUIRE);
  if (bytes < 8 || offset % 8 != 0 || offset > arena.file_bytes() || bytes > arena.file_bytes() - offset) return false;
  const u8* at = arena.at(offset, bytes);
  const u64 size = __atomic_load_n(reinterpret_cast<const u64*>(at), __ATOMIC_ACQUIRE);
  if (size > bytes - 8) return false;
  out->resize(size);
  for (u64 i = 0; i < size; ++i) (*out)[i] = static_cast<char>(__atomic_load_n(at + 8 + i, __ATOMIC_ACQUIRE));
  return true;
}

void fill_header(TableHeader& header, const TableShape& shape) {
  // Writers of a table that was here before may still read these two.
  __atomic_store_n(&header.capacity, shape.capacity, __ATOMIC_RELAXED);
  __atomic_store_n(&header.max_bytes, shape.max_bytes, __ATOMIC_RELAXED);
  header.next_number = 1;
  header.rng_counter = 0;
  header.seed = shape.seed;
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
  header.finished = header.total_inserts = header.total_samples = header.total_removed = header.total_updates = 0;
  header.stale_updates = header.evicted_for_room = header.stale_dropped = header.episodes_cut = 0;
  header.limiter = shape.limiter;
  header.undo.count.store(0);
  std::memset(header.segment_block, 0, sizeof header.segment_block);
  std::memset(header.segment_slots, 0, sizeof header.segment_slots);
  header.schema_block.store(0);
  header.size = header.held = header.writers = header.dense_count = header.dense_left = 0;
  header.remover_count = header.remover_left = 0;
  header.stat_size.store(0);
  header.last_insert_ns.store(os::now_ns());
  header.learned.store(0);
  header.lock.dirty.store(0);
}

// Frees all that belongs to a table whose state is creating or dropping, and makes its header free again.
void clear_table(const Arena& arena, u32 index, u64 deadline_ns) {
  Heap& heap = arena.heap();
  TableHeader& header = arena.table(index);
  heap.wait_readers(index, deadline_ns);
  heap.forget_table(index, deadline_ns);
  DI_FAULT("table.drop_generation");
  heap.free_meta_of(index, {}, deadline_ns);
  header.slots = 0;
  header.links_block = 0;
  heap.sweep_chunks(deadline_ns);
  header.state.store(0, std::memory_order_release);
}

u32 free_index(Arena& arena, u64 deadline_ns) {
  HeapHeader& heap = arena.heap_header();
  for (u32 i = 0; i < arena.table_count(); ++i)
    if (arena.table(i).state.load() == 0) return i;
  const u32 index = arena.table_count();
  if (index == kMaxTables) throw Error(Code::kCapacity, "a store holds at most 256 tables; store.drop_table() one");
  std::string why;
  const u64 offset = arena.header().tables.value + u64{index} * kTableHeaderBytes;
  if (arena.heap().available(deadline_ns) < kTableHeaderBytes)
    throw Error(Code::kCapacity, "no room for another table; delete objects, or store.resize(memory=…)");
  if (!arena.commit(offset, kTableHeaderBytes, &why)) throw Error(Code::kCapacity, "no memory for the table: " + why);
  Heap::Guard guard(arena.heap(), deadline_ns);
  heap.fixed_bytes.fetch_add(kTableHeaderBytes);
  heap.table_count.store(index + 1, std::memory_order_release);  // pairs with the acquire in Arena::table_count()
  return index;
}

}  // namespace

std::shared_ptr<Table> Table::find(const std::shared_ptr<Arena>& arena, const std::string& name) {
  for (u32 i = 0; i < arena->table_count(); ++i) {
    const TableHeader& header = arena->table(i);
    const u32 generation = header.generation.load(std::memory_order_acquire);
    if (header.state.load(std::memory_order_acquire) != 2 || name != read_name(header.name)) continue;
    auto table = std::make_shared<Table>(arena, i);
    // Dropped since, and perhaps made anew under another name: then there was a moment without it.
    if (table->generation_ == generation && table->live()) return table;
  }
  return nullptr;
}

std::vector<std::string> Table::names(const Arena& arena) {
  std::vector<std::string> all;
  for (u32 i = 0; i < arena.table_count(); ++i)
    if (arena.table(i).state.load(std::memory_order_acquire) == 2) all.push_back(read_name(arena.table(i).name));
  return all;
}

void Table::finish_broken(const std::shared_ptr<Arena>& arena, u64 deadline_ns) {
  for (u32 i = 0; i < arena->table_count(); ++i) {
    const u32 state = arena->table(i).state.load();
    if (state != 1 && state != 3) continue;
    try {
      clear_table(*arena, i, std::min(deadline_ns, os::now_ns() + 100'000'000));
    } catch (const Error& error) {  // somebody still copies from it, perhaps stopped: the next one here tries again
      if (error.code() != Code::kTimeout) throw;
    }
  }
}

std::shared_ptr<Table> Table::create(const std::shared_ptr<Arena>& arena, const TableShape& shape, u64 deadline_ns) {
  return patiently(*arena, deadline_ns, [&] { return try_create(arena, shape, deadline_ns); });
}

std::shared_ptr<Table> Table::try_create(const std::shared_ptr<Arena>& arena, const TableShape& shape,
                                         u64 deadline_ns) {
  DirectoryGuard directory(*arena, deadline_ns);
  finish_broken(arena, deadline_ns);
  if (find(arena, shape.name))
    throw Error(Code::kTableExists, "table '" + shape.name + "' exists; use exist_ok=True or store.table()");
  const u32 index = free_index(*arena, deadline_ns);
  TableHeader& header = arena->table(index);
  Heap& heap = arena->heap();
  write_name(header.name, shape.name);
  fill_header(header, shape);
  forget_learners(*arena, index);
  header.state.store(1, std::memory_order_release);
  DI_FAULT("table.create_state");
  try {
    std::string why;
    if (!heap.reserve(index, shape.reserve, deadline_ns, &why)) throw Error(Code::kCapacity, why);
    const TableBlocks sizes =
        table_blocks(shape.slots, shape.sampler, shape.remover, shape.normalize_table, shape.shuffle);
    const auto block = [&](u64 bytes) -> u32 { return bytes == 0 ? 0 : heap.make_meta(bytes, index, deadline_ns) + 1; };
    header.segment_slots[0] = shape.slots;
    header.segment_block[0] = block(shape.slots * sizeof(Item));
    header.links_block = block(sizes.links);
    header.dense_block = block(sizes.dense);
    header.sampler_block = block(sizes.sampler);
    header.remover_block = block(sizes.remover);
    header.minimum_block = block(sizes.minimum);
    const u32 config = block(shape.config.size() + 8);
    write_text_into(heap, config, shape.config);
    header.config_block.store(config, std::memory_order_release);  // pairs with the acquire in text()
    header.slots = shape.slots;
    DI_FAULT("table.create_blocks");
  } catch (...) {
    finish_broken(arena, deadline_ns);  // where that is held up: the next maker, dropper or reaper
    throw;
  }
  auto table = std::make_shared<Table>(arena, index);
  table->refresh();
  table->fill();
  header.state.store(2, std::memory_order_release);  // pairs with the acquire in find()
  return table;
}

void Table::drop(const std::shared_ptr<Arena>& arena, const std::string& name, u64 deadline_ns) {
  std::shared_ptr<Table> table;
  patiently(*arena, deadline_ns, [&] {
    DirectoryGuard directory(*arena, deadline_ns);
    finish_broken(arena, deadline_ns);
    table = find(arena, name);
    if (!table) throw Error(Code::kTableNotFound, "there is no table '" + name + "'");
    Guard guard(*table, deadline_ns);              // nobody is inside; who comes later sees the state
    Heap::Guard free(arena->heap(), deadline_ns);  // else nothing of it could be freed
    table->header_.state.store(3, std::memory_order_release);
  });
  TableHeader& header = table->header_;
  for (Shared<u32>* seq : {&header.items_seq, &header.room_seq}) {
    seq->fetch_add(1);
    os::futex_wake(*seq, kMaxClients);
  }
  DI_FAULT("table.drop_state");
  // It is gone for everybody. Where somebody still copies from it, perhaps stopped, its bytes come back later: with the
  // next maker, dropper or reaper.
  patiently(*arena, deadline_ns, [&] {
    DirectoryGuard directory(*arena, deadline_ns);
    if (header.state.load() == 3 && header.generation.load() == table->generation_)
      clear_table(*arena, table->index_, deadline_ns);
  });
}

// --------------------------------------------------------------------------------------------------- schema, contents

std::string read_name(const char (&name)[kNameBytes]) {
  char copy[kNameBytes + 1] = {};
  for (u32 i = 0; i < kNameBytes; i += 8) {
    const u64 word = word_at(name + i);
    std::memcpy(copy + i, &word, 8);
  }
  return copy;
}

std::string Table::text(const Shared<u32>& block) const {
  const u32 named = block.load(std::memory_order_acquire);
  std::string found;
  const bool sound = named == 0 || read_text(*arena_, named, &found);
  require_live();  // else this was some other table's
  if (!sound) throw Error(Code::kCorruptData, "a text of table '" + name_ + "' is damaged");
  return found;
}
std::string Table::config() const { return text(header_.config_block); }
std::string Table::schema() const { return text(header_.schema_block); }

bool Table::declare_schema(const std::string& text, const Reserve& reserve, u64 item_bytes, u64 deadline_ns) {
  return patiently(*arena_, deadline_ns, [&] { return try_declare(text, reserve, item_bytes, deadline_ns); });
}

bool Table::try_declare(const std::string& text, const Reserve& reserve, u64 item_bytes, u64 deadline_ns) {
  std::string why;
  Heap& heap = arena_->heap();
  NewBlocks made(*arena_, index_);
  const u32 block = made.add(text.size() + 8, deadline_ns);
  write_text_into(heap, block, text);
  Guard guard(*this, deadline_ns);
  if (header_.schema_block != 0) return false;
  if (reserve.bytes == 0)
    header_.chunk_block.store(reserve.chunk_block);
  else if (!heap.reserve(index_, reserve, deadline_ns, &why))
    throw Error(Code::kCapacity, why);
  heap.settle_reserve(index_, deadline_ns);
  change();
  made.seal();
  header_.item_bytes = item_bytes;
  header_.schema_block.store(block, std::memory_order_release);  // pairs with the acquire in text()
  return true;
}

u64 Table::remove(std::span<const u64> keys, u64 deadline_ns) {
  u64 removed = 0;
  for (std::size_t first = 0; first < keys.size(); first += kBatchStep) {
    {
      Guard guard(*this, deadline_ns);
      change();
      for (std::size_t i = first; i < std::min(keys.size(), first + kBatchStep); ++i) {
        if (!holds(keys[i])) continue;
        remove_slot(key_slot(keys[i]), true);
        ++removed;
      }
      commit();
      settle_held_soon();
      wake(header_.room_seq, header_.room_waiters, kMaxClients);
    }
    settle(0);
  }
  return removed;
}

void Table::reset(u64 deadline_ns) {
  for (bool more = true; more;) {
    {
      Guard guard(*this, deadline_ns);
      change();
      for (u32 i = 0; i < kBatchStep && parts_.order->first() != kNone; ++i) remove_slot(parts_.order->first(), false);
      more = parts_.order->first() != kNone;
      if (!more) count_anew();
      commit();
      settle_held_soon();
      if (!more) wake(header_.room_seq, header_.room_waiters, kMaxClients);
    }
    settle(0);
  }
}

void Table::set_limiter(const LimiterState& anew) {
  constexpr u64 kWords = sizeof(LimiterState) / sizeof(u64);
  u64 words[kWords];
  std::memcpy(words, &anew, sizeof words);
  for (u64 i = 0; i < kWords; ++i) undo_.set(reinterpret_cast<u64*>(&header_.limiter)[i], words[i]);
}

// The table is empty: it is as it was when it was made, but for what it was told meanwhile and the largest priority.
void Table::count_anew() {
  forget_undelivered();
  LimiterState anew = header_.limiter;
  anew.inserts = anew.samples = 0;
  set_limiter(anew);
  for (u64* word : {&header_.epoch, &header_.latest_epoch, &header_.finished, &header_.total_inserts,
                    &header_.total_samples, &header_.total_removed})
    undo_.set(*word, 0);
  header_.total_updates = header_.stale_updates = header_.evicted_for_room = 0;
  header_.stale_dropped = header_.episodes_cut = 0;
}

// Whether the priorities of all items, and those that new ones get, can be raised to it.
void Table::require_alpha(double alpha) {
  const PriorityRange range = priority_range(static_cast<SamplerKind>(header_.sampler), alpha);
  const double fresh = header_.initial_priority >= 0 ? header_.initial_priority : header_.max_priority;
  require_priorities(range, {&fresh, 1}, "the priority of new items; alpha was not changed");
  for (u32 slot = 0; slot < parts_.slots; ++slot)
    if ((item(slot).state & 15) != static_cast<u64>(ItemState::kFree))
      require_priorities(range, {&item(slot).priority, 1}, "an item's; alpha was not changed");
}

void Table::configure(const LimiterState* limiter, const double* alpha, const double* beta, const i64* max_staleness,
                      u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  if (alpha != nullptr && *alpha != header_.alpha) require_alpha(*alpha);
  change();
  if (limiter != nullptr) {
    if (limiter->queue == 0) uncount_draws();
    set_limiter(counted_anew(*limiter, static_cast<i64>(header_.size), static_cast<i64>(header_.held)));
    commit();
  }
  if (beta != nullptr) header_.beta = *beta;
  if (max_staleness != nullptr) header_.max_staleness = *max_staleness;
  if (alpha != nullptr && *alpha != header_.alpha) {
    double raised_to = *alpha;
    __atomic_store(&header_.alpha, &raised_to, __ATOMIC_RELAXED);  // who gives priorities reads it freely
    fill();
  }
  wake(header_.items_seq, header_.items_waiters, kMaxClients);
  wake(header_.room_seq, header_.room_waiters, kMaxClients);
}

void Table::finish(u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  header_.finished = 1;
  wake(header_.items_seq, header_.items_waiters, kMaxClients);
  wake(header_.room_seq, header_.room_waiters, kMaxClients);
}

u64 Table::check(bool repair, u64 deadline_ns, std::vector<std::string>* findings) {
  return patiently(*arena_, deadline_ns, [&] { return try_check(repair, deadline_ns, findings); });
}

u64 Table::try_check(bool repair, u64 deadline_ns, std::vector<std::string>* findings) {
  Guard guard(*this, deadline_ns);
  if (!repair) {
    // What the copy has not written to is still the store itself: while uses are counted, no chunk may be freed and its
    // block become something else, whose bytes would be taken for a chunk's header.
    Heap::Guard still(arena_->heap(), deadline_ns);
    const std::shared_ptr<Arena> copy = arena_->private_copy();
    for (LockWord* lock : {&copy->table(index_).lock, &copy->heap_header().lock}) {
      lock->word.store(0);  // held by us
      lock->dirty.store(0);
    }
    return Table(copy, index_).check(true, deadline_ns, findings);
  }
  change();
  const u64 size = header_.size, held = header_.held, free_slots = header_.free_slots;
  const u64 writers = header_.writers, dense = header_.dense_count, left = header_.dense_left;
  const u32 first = header_.first_live, last = header_.last_live, best = parts_.best ? parts_.best->best() : 0;
  const double total = parts_.sums ? parts_.sums->total() : 0;
  const u64 wrong = rebuild(deadline_ns);
  const std::string name = "table '" + name_ + "': ";
  const auto compare = [&](const char* what, u64 before, u64 after) {
    if (before != after)
      findings->push_back(name + what + " " + std::to_string(before) + ", recounted " + std::to_string(after));
  };
  compare("items", size, header_.size);
  compare("held items", held, header_.held);
  compare("free slots", free_slots, header_.free_slots);
  compare("open writers", writers, header_.writers);
  compare("slots to draw from", dense, header_.dense_count);
  compare("slots left in this epoch", left, header_.dense_left);
  compare("oldest item", first, header_.first_live);
  compare("newest item", last, header_.last_live);
  compare("next by priority", best, parts_.best ? parts_.best->best() : 0);
  compare("miscounted chunks", wrong, 0);
  const u64 held_bytes = header_.held * header_.item_bytes;  // more are charged while the heap is held up, never fewer
  compare("bytes of held items", std::min<u64>(header_.held_bytes, held_bytes), held_bytes);
  settle_held(deadline_ns);
  if (parts_.sums && std::abs(total - parts_.sums->total()) > 1e-9 * std::abs(total) + 1e-300)
    findings->push_back(name + "sum of priorities is off");
  return findings->size();
}

}  // namespace di
