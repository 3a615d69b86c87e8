#include "snapshot/restore.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "objects/draft.h"
#include "objects/weights.h"
#include "replay/limiter.h"
#include "replay/recovery.h"
#include "tier/body_packs.h"

namespace di {
namespace {

constexpr u64 kMostUnpacked = u64{1} << 15;  // the most bytes that zstd unpacks from one: 128 KiB of equal bytes take 4
constexpr u64 kMostVersions = u64{1} << 40;  // no version is removed

[[noreturn]] void damaged(const std::string& what) {
  throw Error(Code::kCorruptData, "the checkpoint is damaged: " + what);
}

}  // namespace

// -------------------------------------------------------------------------------------------------------------- chunks

u32 Restore::add_layout(const std::string& bytes, Deadline deadline) {
  LayoutHeader header;
  const u64 columns_at = offsetof(LayoutHeader, column);
  if (bytes.size() < sizeof header) damaged("the description of its rows is too short");
  std::memcpy(static_cast<void*>(&header), bytes.data(), sizeof header);
  const u64 text_at = sizeof(LayoutHeader) + sizeof(ColumnLayout) * u64{header.columns};
  if (header.columns > kMaxColumns || text_at + header.text_bytes > bytes.size())
    damaged("the description of its rows ends too early");
  std::vector<ColumnLayout> columns(header.columns);
  std::memcpy(static_cast<void*>(columns.data()), bytes.data() + columns_at, columns.size() * sizeof(ColumnLayout));
  const u32 index = publish_layout(*arena_, header, columns, bytes.substr(text_at, header.text_bytes), deadline);
  layouts_.push_back(read_layout(*arena_, index));
  return static_cast<u32>(layouts_.size() - 1);
}

// Commits memory for the real unpacked size of the file's blocks, not for the size in its header.
std::span<const u8> Restore::unpacked(SavedFile& file, const RecordHeader& record, std::vector<u8>* head, bool apart,
                                      Unpacked* room) {
  const std::span<const u8> stored = file.body(record);
  if (record.codec == static_cast<u8>(BodyCodec::kRaw)) return stored;
  const ChunkTier* const tier = apart ? find_tier(head->data(), head->size()) : nullptr;
  if (tier == nullptr || record.codec != static_cast<u8>(BodyCodec::kZstd))
    damaged("a chunk does not say how it is packed");
  if (tier->body_bytes > record.raw_bytes) damaged("the size of a chunk");
  const std::optional<BodyPacks> packs = packs_of(*head, *tier);
  if (!packs) damaged("a chunk does not say how it is packed");
  const PackPlan& plan = packs->plan;
  room->reset(static_cast<u8*>(std::calloc(std::max<u64>(plan.body_bytes(), 1), 1)));  // zeros, between the parts too
  if (*room == nullptr) throw std::bad_alloc();
  const PackedBody packed(plan, packs->ends, stored);
  for (u32 number = 0; number < plan.blocks(); ++number) {
    const u32 part = plan.part_of(number);
    const PackPlan::Block block = plan.block(part, number);
    packed.block(part, number, {room->get() + block.offset, block.bytes});
  }
  return {room->get(), plan.body_bytes()};
}

void Restore::link_files(const FilePages& files, const FilePages& loaded, bool own, Deadline deadline) {
  if (!arena_->tiered()) return;
  std::vector<LinkedBodies::Wanted> wanted;
  for (const auto& [file, pages] : files) {
    LinkedBodies::Wanted& each = wanted.emplace_back(LinkedBodies::Wanted{file, 0});
    for (const u32 page : pages) {
      const RecordHeader record = file->with_body_at(page);
      each.needed += (end_page(record) - record.page) * kPageBytes;
    }
  }
  u64 beside = 0;
  for (const auto& [file, pages] : loaded)
    for (const u32 page : pages) beside += file->with_body_at(page).raw_bytes;
  linked_.link(std::move(wanted), beside, own, deadline);
}

namespace {

// The number of rows per item for which the body was packed, from the saved head. 0: it is never packed. nullopt: not
// known.
std::optional<u32> saved_pack_rows(std::span<u8> head) {
  constexpr u32 kMost = 64;  // a larger number makes no difference
  const ChunkTier* const tier = find_tier(head.data(), head.size());
  if (tier == nullptr) return std::nullopt;
  const std::optional<BodyPacks> packs = packs_of(head, *tier);
  if (!packs) return 0;
  for (u32 rows = 1; rows <= kMost; ++rows) {
    const auto fits = [rows](const PackPart& part) { return block_rows(part.row_bytes, rows) == part.block_rows; };
    if (std::all_of(packs->plan.parts().begin(), packs->plan.parts().end(), fits)) return rows;
  }
  return std::nullopt;
}

}  // namespace

ChunkPlan Restore::plan_for(const SavedRows& saved, std::span<u8> head, u64 uid, const std::vector<u32>& tables) const {
  ChunkPlan plan;
  plan.rows = saved.header().row_capacity;
  plan.heap_bytes = saved.heap_bytes();
  plan.tiered = arena_->tiered();
  plan.stream = saved.header().stream;
  plan.uid = uid;
  for (const u32 number : tables) {
    const RestoredTable& to = tables_.at(number);
    const Attachment* const at = saved.attachment_of(to.index, to.generation);
    if (at == nullptr) damaged("a chunk was not written for the table whose items need it");
    plan.tables.push_back(to.table->index());
    plan.table_generations.push_back(to.table->generation());
    plan.table_needs.push_back(at->needs);
    plan.group_columns.push_back(at->group_column);
    if (plan.tiered) plan.pack_rows = std::max(plan.pack_rows, to.pack_rows);
  }
  // As the chunk was written: tables that no longer need it influenced its form.
  const auto anew = [this](u32 number) { return tables_[number].packed_anew; };
  for (const Attachment& at : saved.attachments()) plan.groups = plan.groups || at.group_column != 0;
  if (plan.tiered && std::none_of(tables.begin(), tables.end(), anew))
    plan.pack_rows = saved_pack_rows(head).value_or(plan.pack_rows);
  return plan;
}

u32 Restore::add_chunk(SavedFile& file, u32 page, SavedFile* stored, u32 body_page, u32 layout_number, u32 rows,
                       const std::vector<u32>& tables, Deadline deadline) {
  RecordHeader record;
  std::vector<u8> head = file.head(page, &record);
  if (record.kind != RecordKind::kChunk || head.size() < sizeof(ChunkHeader)) damaged("a record is no chunk");
  const bool apart = (record.flags & kHeadApart) != 0;
  const RecordHeader with_body = stored == nullptr ? record : stored->with_body_at(body_page);
  if (with_body.uid != record.uid) damaged("head and body of a chunk do not belong together");
  if (with_body.raw_bytes / kMostUnpacked > with_body.stored_bytes) damaged("the size of a chunk");
  const LayoutInfo& layout = layouts_.at(layout_number);
  const SavedRows saved(head, nullptr, with_body.raw_bytes, apart ? 0 : head.size(), layout, rows);
  const ChunkPlan plan = plan_for(saved, head, record.uid, tables);
  OpenChunk chunk;
  std::string why;
  const MakeResult made = OpenChunk::open(*arena_, layout, plan, deadline, &chunk, &why, nullptr);
  if (made != MakeResult::kMade)
    throw Error(Code::kCapacity, "the rows do not fit: " + why + "; give more memory=, or disk=, or a smaller capacity")
        .told();
  const u32 number = chunk.descriptor();
  u32 entry = kNone;
  try {
    if (plan.tiered && apart && stored != nullptr && linked_.fits(number, head, with_body))
      entry = linked_.entry_of(*stored);
    if (entry != kNone) {
      saved.copy_head_to(chunk.places(), layout);
      linked_.adopt(number, head, with_body, entry, body_page, deadline);
    } else {
      Unpacked room;
      const std::span<const u8> body = unpacked(stored == nullptr ? file : *stored, with_body, &head, apart, &room);
      const SavedRows whole(head, body.data(), body.size(), apart ? 0 : head.size(), layout, rows);
      whole.copy_to(chunk.places(), layout, *arena_);
    }
    chunk.publish(rows);
    // A use for items to come keeps the chunk; fill() counts the items' uses.
    for (u32 i = 0; i < plan.tables.size(); ++i) arena_->heap().chunk_memory.uses_at(number, i).fetch_add(kUseOfItem);
  } catch (...) {
    arena_->heap().chunks.close(number, kNone, chunk.entry(), deadline);
    throw;
  }
  arena_->heap().chunks.close(number, kNone, chunk.entry(), deadline);
  const std::lock_guard<std::mutex> guard(mutex_);
  chunks_.push_back(number);
  return number;
}

void Restore::link(u32 chunk, u32 next) {
  arena_->heap().chunk_memory.head(chunk).next.store(next + 1, std::memory_order_release);
}

// --------------------------------------------------------------------------------------------------------------- items

namespace {

// Sets the counts that don't follow from the items.
void set_counts(TableHeader& header, const TableImage& image) {
  const TableCounts& counts = image.counts;
  header.next_number = counts.next_number;
  header.rng_counter = counts.rng_counter;
  header.epoch = counts.epoch;
  header.latest_epoch = counts.latest_epoch;
  header.finished = counts.finished;
  header.total_inserts = counts.total_inserts;
  header.total_samples = counts.total_samples;
  header.total_removed = counts.total_removed;
  header.total_updates = counts.total_updates;
  header.stale_updates = counts.stale_updates;
  header.evicted_for_room = counts.evicted_for_room;
  header.stale_dropped = counts.stale_dropped;
  header.episodes_cut = counts.episodes_cut;
  header.steps_left_out.store(counts.steps_left_out, std::memory_order_relaxed);
  header.groups_dropped = counts.groups_dropped;
  header.groups_short = counts.groups_short;
  header.late_answers = counts.late_answers;
  header.max_priority = counts.max_priority;
  header.alpha = image.alpha;
  header.beta = image.beta;
  header.max_staleness = image.max_staleness;
  LimiterState limiter = image.limiter;
  limiter.weights = header.limiter.weights;  // their entry in this store
  store_limiter(header, limiter);
}

// Derives everything else from the items, as after a death. The caller holds the table's lock.
void recover(TableCore& core, Deadline deadline) DI_UNCHECKED { TableRecovery(core).recover(deadline); }

}  // namespace

void Restore::fill(u32 number, const TableImage& image, Deadline deadline) {
  Table& table = *tables_.at(number).table;
  TableCore& core = table.core;
  TableHeader& header = core.header;
  std::sort(chunks_.begin(), chunks_.end());
  {
    TableGuard guard(core, deadline);
    const u64 slots = core.items.slots();
    if (image.items.size() != slots) damaged("the number of items of a table");
    const auto are_slots = [slots](const std::vector<u32>& all) {
      return all.size() <= slots && std::all_of(all.begin(), all.end(), [slots](u32 slot) { return slot < slots; });
    };
    if (!are_slots(image.dense) || !are_slots(image.removed_from) || !are_slots(image.free))
      damaged("the order of items");
    if (!core.groups.on() && !image.ended.empty()) damaged("groups of a table without groups");
    for (const Item& item : image.items)
      if (!item.is(ItemState::kFree) && !std::binary_search(chunks_.begin(), chunks_.end(), item.chunk()))
        damaged("an item's rows are not in it");
    core.change();
    for (u32 slot = 0; slot < slots; ++slot) {
      Item& item = core.items[slot] = image.items[slot];
      if (core.groups.on() && item.is(ItemState::kWaiting)) item.state = item.state_of_group_begun(os::boot_ns());
    }
    set_counts(header, image);
    for (const u64 value : image.ended) {
      core.ended.add(value);
      core.undo.commit();
    }
    recover(core, deadline);
    core.change();
    restore_orders(core, image);
    core.commit();
  }
  // The table's chunks may date from a larger capacity: see Budget::charge().
  arena_->heap().claims.cover_used(core.index, deadline);
  // Undelivered draws are given back, as those of processes that died.
  for (const u64 key : image.draws) {
    const u32 entry = arena_->ledger().take_one(deadline);
    LedgerEntry& draw = arena_->ledger().entry(entry);
    draw.ref.store(key);
    draw.what.store(ledger_what(LedgerKind::kDraw, core.index, kNone));
    table.draws.settle_entry(draw, deadline);
    arena_->ledger().give(entry);
  }
  core.do_deferred(deadline);
}

namespace {

// Restores the saved order of a set's members.
void reorder(u8* block, u64 slots, const std::vector<u32>& order, u64 in_front, u64* count, u64* left) {
  DenseSet set(block, slots, count, left);
  std::vector<u32> all(*count);
  for (u64 i = 0; i < all.size(); ++i) all[i] = set.at(i);
  std::vector<u32> wanted = order;
  std::sort(all.begin(), all.end());
  std::sort(wanted.begin(), wanted.end());
  if (all != wanted || in_front > order.size()) damaged("the order of items");
  set.clear();
  for (const u32 slot : order) set.insert(slot, true);
  *left = in_front;
}

}  // namespace

void Restore::restore_orders(TableCore& core, const TableImage& image) {
  TableHeader& header = core.header;
  const Heap& heap = arena_->heap();
  const u64 slots = core.items.slots();
  if (header.dense_block != 0)
    reorder(heap.block(header.dense_block - 1), slots, image.dense, image.dense_left, &header.dense_count,
            &header.dense_left);
  if (static_cast<SamplerKind>(header.remover) == SamplerKind::kUniform && header.remover_block != 0)
    reorder(heap.block(header.remover_block - 1), slots, image.removed_from, image.removed_left, &header.remover_count,
            &header.remover_left);
  OrderList& order = core.items.order();
  std::vector<u32> free, wanted = image.free;
  for (u32 slot = order.free_pop(); slot != kNone; slot = order.free_pop()) free.push_back(slot);
  std::sort(free.begin(), free.end());
  std::sort(wanted.begin(), wanted.end());
  for (const u32 slot : free == wanted ? image.free : free) order.free_push(slot);
  if (free != wanted) damaged("the order of free slots");
}

// ------------------------------------------------------------------------------------------------------------- objects

void Restore::add_objects(SavedFile& file, u32 page, const std::map<std::string, std::pair<u32, i64>>& versions,
                          Deadline deadline) {
  RecordHeader record;
  const std::vector<u8>& head = file.head(page, &record);
  if (record.kind != RecordKind::kObject || record.codec != 0 || head.size() % sizeof(SavedObject) != 0)
    damaged("a record holds no objects");
  const std::span<const u8> body = file.body(record);
  u64 done = 0;
  for (u64 at = 0; at < head.size(); at += sizeof(SavedObject)) {
    SavedObject saved;
    std::memcpy(&saved, head.data() + at, sizeof saved);
    if (saved.bytes > body.size() - done) damaged("an object ends after its record");
    const auto version = versions.find(std::string(reinterpret_cast<const char*>(saved.id), sizeof saved.id));
    if (version != versions.end() || (saved.flags & kFlagWeights) == 0)
      add_object(saved, body.data() + done, version == versions.end() ? nullptr : &version->second, deadline);
    done += saved.bytes;
  }
}

void Restore::add_object(const SavedObject& saved, const u8* bytes, const std::pair<u32, i64>* version,
                         Deadline deadline) {
  Draft draft(*arena_, deadline);
  DraftRequest request;
  request.bytes = saved.bytes;
  request.id = version == nullptr ? saved.id : nullptr;
  request.expires_ns = saved.left_ns == 0 ? 0 : os::boot_ns() + saved.left_ns;
  std::memcpy(draft.make_block(request, deadline), bytes, saved.bytes);
  if (version == nullptr) return draft.seal();
  WeightsEntry& entry = arena_->weights(version->first);
  const i64 newest = entry.newest.load();
  entry.newest.store(version->second - 1);
  Weights(arena_->heap()).publish(version->first, &draft, kMostVersions, deadline);
  entry.newest.store(newest);
}

// The newest versions come last, so each is published as the next one. The numbers of removed versions stay used.
u32 Restore::add_weights(const std::string& name, i64 newest, i64 oldest, Deadline deadline) {
  const u32 entry = Weights(arena_->heap()).entry(name, deadline);
  const HeapGuard guard(arena_->heap(), deadline);
  WeightsEntry& at = arena_->weights(entry);
  if (at.durable.load() == 0) {
    at.newest.store(newest);
    at.oldest.store(oldest);
  } else if (newest > at.newest.load()) {  // durable weights exist already; newer versions were not durable
    at.lost.store(newest);
    at.newest.store(newest);
  }
  return entry;
}

}  // namespace di
