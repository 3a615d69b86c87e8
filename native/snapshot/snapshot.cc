#include "snapshot/snapshot.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rows/saved_rows.h"
#include "tier/lost_bodies.h"

namespace di {
namespace {

constexpr u64 kSpareShare = 8, kSpareLeast = 256;  // entries beyond those that the last count needs
constexpr int kMostTries = 16;

// Holds all tables' locks, taken by index.
class AllTables {
 public:
  AllTables(const std::vector<std::shared_ptr<Table>>& tables, Deadline deadline) DI_UNCHECKED {
    for (const std::shared_ptr<Table>& table : tables) {
      held_.push_back(std::make_unique<TableGuard>(table->core, deadline));
    }
  }
  ~AllTables() {
    while (!held_.empty()) held_.pop_back();
  }
  AllTables(const AllTables&) = delete;
  AllTables& operator=(const AllTables&) = delete;

 private:
  std::vector<std::unique_ptr<TableGuard>> held_;
};

bool is_there(u64 word, ObjectKind kind) {
  return word_kind(word) == kind && (word_state(word) == ObjectState::kSealed ||
                                     (kind == ObjectKind::kChunk && word_state(word) == ObjectState::kCreating));
}

// The late columns in a chunk's head; empty: there are none, or their place is damaged.
std::span<const u8> late_part(std::span<const u8> head) {
  const ChunkHeader& header = *reinterpret_cast<const ChunkHeader*>(head.data());
  const u64 from = header.late_offset, to = header.marks_offset;
  return from == 0 || from > to || to > head.size() ? std::span<const u8>{} : head.subspan(from, to - from);
}

std::vector<u32> order_of(const Heap& heap, u32 block, u64 slots, u64 count) {
  std::vector<u32> all(count);
  u64 seen = count, left = count;
  const DenseSet set(heap.block(block - 1), slots, &seen, &left);
  for (u64 i = 0; i < count; ++i) all[i] = set.at(i);
  return all;
}

bool has_dense(const TableHeader& header) { return header.dense_block != 0; }

bool has_own_set(const TableHeader& header) {  // of the remover
  return static_cast<SamplerKind>(header.remover) == SamplerKind::kUniform && header.remover_block != 0;
}

// Turns leased items of the image into items with an undelivered draw, which restore gives back. The sets of the table's
// slots lack them, and the image's sets have them: with Once, those still to be drawn come first.
void copy_leased(const TableCore& core, TableImage* image) {
  image->draws.clear();
  for (u64 place = 0; place < core.leases.places(); ++place) {
    if (!is_held(core.leases.at(place))) continue;
    const u64 key = core.leases.at(place).key;
    const u32 slot = key_slot(key);
    Item& item = image->items.at(slot);
    image->draws.push_back(key);
    if ((core.leases.at(place).holder & kLeaseUncounted) != 0) ++image->limiter.samples;  // restore counts it back
    const bool drawn = core.uses.by_epochs() && core.uses.drawn_epochs(item) > core.header.epoch;
    const bool used_up = core.uses.limited() && core.uses.used_up(item);
    item.state = item.state_as(used_up ? ItemState::kHeld : ItemState::kLive);
    if (core.uses.limited()) item.state += UseCounts::kUndelivered;
    if (used_up) continue;
    if (has_dense(core.header)) {
      image->dense.push_back(slot);
      if (!drawn) std::swap(image->dense.back(), image->dense[image->dense_left++]);
    }
    if (has_own_set(core.header)) {
      image->removed_from.push_back(slot);
      ++image->removed_left;
    }
  }
}

}  // namespace

Snapshot::Snapshot(std::shared_ptr<Arena> arena, const std::vector<std::string>* names, Deadline deadline)
    : arena_(std::move(arena)),
      heap_(arena_->heap()),
      all_(names == nullptr),
      names_(all_ ? std::vector<std::string>{} : *names),
      fork_generation_(arena_->fork_generation()) {
  try {
    for (int tries = 0;; ++tries) {
      try {
        reserve(deadline);
        if (patiently(*arena_, deadline, [&] { return capture(deadline); })) break;
      } catch (const Error& error) {  // a table was dropped after it was listed
        if (error.code() != Code::kTableNotFound || tries == kMostTries) throw;
      }
      forget(deadline);
      if (tries == kMostTries) throw Error(Code::kTimeout, "the store grows faster than it can be scanned");
    }
  } catch (...) {
    forget(Deadline::brief());
    throw;
  }
  DI_FAULT("snapshot.taken");
}

Snapshot::~Snapshot() {
  if (!arena_->owns(fork_generation_)) return;
  try {
    release_all(Deadline::brief());
  } catch (...) {  // the reaper ends the other holds when this process is gone
  }
}

// Sets room aside for the copies, so that little is allocated while all other processes wait.
void Snapshot::reserve(Deadline deadline) {
  const TableDirectory directory(arena_);
  tables_.clear();
  for (const std::string& name : all_ ? directory.names() : names_)
    // A table that is being imported does not count yet.
    if (std::shared_ptr<Table> table = directory.find(name);
        table != nullptr && !is_being_imported(table->header().limiter))
      tables_.push_back(std::move(table));
  std::sort(tables_.begin(), tables_.end(), [](const auto& a, const auto& b) { return a->index() < b->index(); });
  images_.assign(tables_.size(), {});
  image_of_.assign(kMaxTables, kNone);
  for (u32 i = 0; i < tables_.size(); ++i) {
    TableImage& image = images_[i];
    image.index = tables_[i]->index();
    image.generation = tables_[i]->generation();
    image.name = tables_[i]->name();
    image.config = tables_[i]->settings.config();
    image_of_[image.index] = i;
    image.items.resize(tables_[i]->header().slots);
    image.free.reserve(image.items.size());
    image.dense.reserve(image.items.size());
  }
  u64 chunks = 0, objects = 0;
  for (u32 i = 0; i < heap_.descriptor_count(); ++i) {
    const u64 word = heap_.descriptor(i).word.load();
    chunks += is_there(word, ObjectKind::kChunk) ? 1 : 0;
    objects += is_there(word, ObjectKind::kData) ? 1 : 0;
  }
  chunks_.reserve(chunks + chunks / kSpareShare + kSpareLeast);
  objects_.reserve(objects + objects / kSpareShare + kSpareLeast);
  heap_.ledger.take(static_cast<u32>(chunks_.capacity() + objects_.capacity()), &spare_, deadline);
}

bool Snapshot::capture(Deadline deadline) {
  const AllTables guards(tables_, deadline);
  for (u32 i = 0; i < tables_.size(); ++i)
    if (tables_[i]->header().slots > images_[i].items.size()) return false;
  for (u32 i = 0; i < tables_.size(); ++i) copy_table(*tables_[i], &images_[i]);
  copy_draws();
  bool all = false;
  {
    const HeapGuard guard(heap_, deadline);  // first: if the wait for this lock fails, no table must be rebuilt
    for (const std::shared_ptr<Table>& table : tables_) table->core.change();
    all = hold_all();
    for (const std::shared_ptr<Table>& table : tables_) table->core.commit();
  }
  return all;
}

void Snapshot::copy_table(Table& table, TableImage* image) {
  TableCore& core = table.core;
  const TableHeader& header = core.header;
  image->items.resize(core.items.slots());
  for (u32 slot = 0; slot < image->items.size(); ++slot) image->items[slot] = core.items[slot];
  if (has_dense(header)) {
    image->dense = order_of(heap_, header.dense_block, core.items.slots(), header.dense_count);
    image->dense_left = header.dense_left;
  }
  if (has_own_set(header)) {
    image->removed_from = order_of(heap_, header.remover_block, core.items.slots(), header.remover_count);
    image->removed_left = header.remover_left;
  }
  image->free.clear();
  for (u32 slot = header.free_head - 1; slot != kNone && image->free.size() < header.free_slots;
       slot = core.items.order().next(slot))
    image->free.push_back(slot);
  image->schema = table.settings.schema();
  image->capacity = header.capacity;
  image->max_bytes = header.max_bytes;
  image->alpha = header.alpha;
  image->beta = header.beta;
  image->max_staleness = header.max_staleness;
  image->limiter = header.limiter;
  image->counts = {header.next_number,
                   header.rng_counter,
                   header.epoch,
                   header.latest_epoch,
                   header.finished == kFinished ? u64{1} : u64{0},  // a store made from it is another node
                   header.total_inserts,
                   header.total_samples,
                   header.total_removed,
                   header.total_updates,
                   header.stale_updates,
                   header.evicted_for_room,
                   header.stale_dropped,
                   header.episodes_cut,
                   header.groups_dropped,
                   header.groups_short,
                   header.late_answers,
                   header.steps_left_out.load(std::memory_order_relaxed),
                   header.max_priority};
  image->ended = core.ended.values();
  copy_leased(core, image);
}

void Snapshot::copy_draws() {
  for_ledgers(heap_, [this](u32, const LedgerEntry& entry) {
    const u64 what = entry.what.load();
    if (ledger_kind(what) != LedgerKind::kDraw) return;
    const u32 image = image_of_[ledger_table(what)];
    if (image == kNone) return;
    images_[image].draws.push_back(entry.ref.load());
    if ((what & kLedgerDropped) != 0) ++images_[image].limiter.samples;  // restore counts it back
  });
}

u32 Snapshot::spare_entry() {
  const u32 entry = spare_.back();
  spare_.pop_back();
  return entry;
}

bool Snapshot::hold_all() {
  next_uid_ = arena_->heap_header().next_uid;
  const u32 count = heap_.descriptor_count();
  for (u32 i = 0; i < count; ++i) {
    const u64 word = heap_.descriptor(i).word.load();
    if (is_there(word, ObjectKind::kChunk) && !hold_chunk(i)) return false;
    if (all_ && is_there(word, ObjectKind::kData) && !hold_object(i)) return false;
  }
  for (u32 i = 0; i < kMaxWeights; ++i) {
    const WeightsEntry& entry = arena_->weights(i);
    if (entry.state.load() == 0) continue;
    weights_.push_back({{entry.name, strnlen(entry.name, kNameBytes)}, entry.newest.load(), entry.oldest.load()});
  }
  return true;
}

// Does what Reads::hold() does. False: there are more chunks than entries.
bool Snapshot::hold_chunk(u32 chunk) {
  if (!heap_.chunk_memory.has_attachments(chunk)) return true;
  const std::span<Attachment> all = heap_.chunk_memory.attachments(chunk);
  u32 table = kNone;
  for (const Attachment& at : all) {
    const u32 image = at.attached.load() == 0 || at.table >= kMaxTables ? kNone : image_of_[at.table];
    if (image != kNone && images_[image].generation == at.table_generation) table = image;
  }
  if (table == kNone || is_given_up(heap_, chunk)) return true;
  if (spare_.empty() || chunks_.size() == chunks_.capacity()) return false;
  const ChunkHeader& header = heap_.chunk_memory.head(chunk);
  ChunkImage& made = chunks_.emplace_back();
  made.chunk = chunk;
  made.layout = header.layout;
  made.rows = header.published.load();
  made.next = header.next.load() - 1;
  made.closed = word_state(heap_.descriptor(chunk).word.load()) == ObjectState::kSealed ? 1 : 0;
  // The highest uid with this low half: no chunk lives so long that 2^32 others are made meanwhile.
  made.uid = next_uid_ - static_cast<u32>(static_cast<u32>(next_uid_) - all[0].serial);
  made.table = table;
  made.late = header.late_offset != 0 ? 1 : 0;
  made.entry = spare_entry();
  tables_[table]->core.chunks.hold(chunk);
  LedgerEntry& ledger = heap_.ledger.entry(made.entry);
  ledger.ref.store(0, std::memory_order_relaxed);
  ledger.what.store(ledger_what(LedgerKind::kRead, images_[table].index, chunk, 1), std::memory_order_release);
  if (made.late != 0) copy_late(made);
  return true;
}

bool Snapshot::hold_object(u32 descriptor) {
  Descriptor& object = heap_.descriptor(descriptor);
  if (has_expired(object) || (object.flags & kFlagHasId) == 0) return true;
  if (spare_.empty() || objects_.size() == objects_.capacity()) return false;
  ObjectImage& made = objects_.emplace_back();
  std::memcpy(&made.id, object.name.id, sizeof made.id);
  made.bytes = object.bytes;
  made.expires_ns = object.expires_ns;
  made.flags = object.flags & (kFlagHasId | kFlagWeights);
  made.descriptor = descriptor;
  made.entry = spare_entry();
  heap_.object_ends.pin(descriptor, made.entry, true);
  return true;
}

// Late columns change after their rows were written, under the locks that are held now.
void Snapshot::copy_late(const ChunkImage& chunk) {
  const std::span<const u8> late = late_part(heap_.chunk_memory.head_bytes(chunk.chunk));
  late_parts_.emplace_back(chunk.chunk, std::vector<u8>(late.begin(), late.end()));
}

std::vector<u8> Snapshot::head_of(const ChunkImage& chunk) const {
  const std::span<const u8> head = heap_.chunk_memory.head_bytes(chunk.chunk);
  const u64 bytes = saved_head_bytes(heap_.chunk_memory.head(chunk.chunk), head.size(), arena_->tiered());
  if (bytes > head.size()) throw Error(Code::kCorruptData, "damaged store: a chunk's records begin after its end");
  std::vector<u8> copy(head.begin(), head.begin() + static_cast<i64>(bytes));
  const auto found = std::lower_bound(late_parts_.begin(), late_parts_.end(), chunk.chunk,
                                      [](const auto& a, u32 b) { return a.first < b; });
  if (found == late_parts_.end() || found->first != chunk.chunk) return copy;
  // The late part as of the instant; parts that a copy on disk has added since, as they are now.
  const std::span<const u8> now = late_part(copy);
  if (now.size() == found->second.size())
    std::copy(found->second.begin(), found->second.end(), copy.begin() + (now.data() - copy.data()));
  return copy;
}

void Snapshot::find_copies(Deadline deadline) {
  if (!arena_->tiered()) return;
  const HeapGuard guard(heap_, deadline);
  const TierHeader& header = arena_->tier_header();
  for (ChunkImage& chunk : chunks_) {
    if (chunk.entry == kNone || chunk.closed == 0) continue;
    const ChunkTier& tier = *heap_.chunk_memory.tier(chunk.chunk);
    const u64 place = tier.place.load();
    if (tier.stored_pages.load() == 0 || place_segment(place) >= kMaxSegments) continue;
    chunk.file = header.segment[place_segment(place)].file;
    chunk.page = place_page(place);
    chunk.stored_bytes = tier.stored_bytes;
    chunk.codec = tier.codec;
  }
}

void Snapshot::release(std::span<const u32> numbers, Deadline deadline) {
  std::vector<DrawSet> sets(tables_.size());
  for (const u32 number : numbers) {
    const ChunkImage& chunk = chunks_.at(number);
    if (chunk.entry == kNone) continue;
    Drawn& held = sets[chunk.table].items.emplace_back();
    held = Drawn{};
    held.number = number;
    held.chunk = chunk.chunk;
    held.chunks = 1;
    held.entry = chunk.entry;
  }
  for (u32 i = 0; i < sets.size(); ++i) {
    const std::vector<Drawn> held = sets[i].items;
    // The entries of a set that is empty by now were given back, and another thread may have taken them.
    const auto note_ended = [&] {
      const bool all = sets[i].items.empty();
      for (const Drawn& each : held) {
        if (!all && heap_.ledger.entry(each.entry).what.load() != 0) continue;
        if (!all) heap_.ledger.give(each.entry);
        chunks_[each.number].entry = kNone;
      }
    };
    try {
      if (!held.empty()) tables_[i]->draws.deliver(&sets[i], deadline);
    } catch (...) {
      note_ended();
      throw;
    }
    note_ended();
  }
}

void Snapshot::release_objects(u64 first, u64 count) {
  for (u64 i = first; i < first + count; ++i)
    if (objects_.at(i).entry != kNone) heap_.ledger.drop(std::exchange(objects_[i].entry, kNone));
}

void Snapshot::release_all(Deadline deadline) {
  std::vector<u32> numbers(chunks_.size());
  for (u32 i = 0; i < numbers.size(); ++i) numbers[i] = i;
  release(numbers, deadline);
  for (ObjectImage& object : objects_)
    if (object.entry != kNone) heap_.ledger.drop(std::exchange(object.entry, kNone));
  heap_.ledger.give(spare_);
  spare_.clear();
  try {
    heap_.ledger.sweep(Deadline::only_try());
  } catch (const Error& error) {  // a later call settles the released entries
    if (error.code() != Code::kTimeout) throw;
  }
}

// Releases all that a try has taken, before the next try.
void Snapshot::forget(Deadline deadline) {
  release_all(deadline);
  chunks_.clear();
  objects_.clear();
  weights_.clear();
  late_parts_.clear();
}

}  // namespace di
