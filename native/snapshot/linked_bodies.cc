#include "snapshot/linked_bodies.h"

#include <algorithm>
#include <cstring>

#include "os/filesystem.h"
#include "tier/body_packs.h"
#include "tier/table_locks.h"

namespace di {
namespace {

constexpr u64 kSlackShare = 8;

bool same_parts(const PackPlan& a, const PackPlan& b) {
  const auto same = [](const PackPart& x, const PackPart& y) {
    return x.offset == y.offset && x.row_bytes == y.row_bytes && x.rows == y.rows && x.block_rows == y.block_rows;
  };
  return std::equal(a.parts().begin(), a.parts().end(), b.parts().begin(), b.parts().end(), same);
}

}  // namespace

u32 LinkedBodies::link_one(const SavedFile& file, bool own, Deadline deadline) {
  const TierHeader& header = heap_.memory.tier_header();
  u32 entry = kNone, name = 0;
  {
    HeapGuard guard(heap_, deadline);
    entry = heap_.disk.take_link(file.bytes(), file.filled_bytes(), own, &name);
  }
  if (entry == kNone) return kNone;
  DI_FAULT("restore.link_counted");
  if (os::link_file(file.path(), folder_of(header) + "/" + segment_name(name)) == 0) return entry;
  HeapGuard guard(heap_, deadline);
  heap_.disk.seal(entry, true);
  return kNone;
}

void LinkedBodies::link(std::vector<Wanted> files, u64 beside, bool own, Deadline deadline) {
  const TierHeader& header = heap_.memory.tier_header();
  const auto dense = [](const Wanted& each) {
    return static_cast<double>(each.needed) / static_cast<double>(each.file->bytes());
  };
  std::sort(files.begin(), files.end(), [&](const Wanted& a, const Wanted& b) { return dense(a) > dense(b); });
  // Room is also needed for the other bytes (in files that do not get quite full), for one file that is being filled,
  // and for one to copy forward into.
  const u64 working = 2 * segment_bytes(header.capacity.load());
  u64 linked = header.file_bytes.load() + working, rest = beside;
  for (const Wanted& each : files) linked += each.file->bytes();
  const auto saves = [](const Wanted& each) { return each.needed + each.needed / kSlackShare < each.file->bytes(); };
  while (!own && !files.empty() && saves(files.back()) && linked + rest + rest / kSlackShare > header.capacity.load()) {
    linked -= files.back().file->bytes();
    rest += files.back().needed;
    files.pop_back();
  }
  for (const Wanted& each : files)
    if (const u32 entry = link_one(*each.file, own, deadline); entry != kNone) entries_.emplace(each.file, entry);
}

u32 LinkedBodies::entry_of(const SavedFile& file) const {
  const auto found = entries_.find(&file);
  return found == entries_.end() ? kNone : found->second;
}

bool LinkedBodies::fits(u32 chunk, std::span<u8> head, const RecordHeader& record) const {
  const ChunkTier* const saved = find_tier(head.data(), head.size());
  if (saved == nullptr) return false;
  const ChunkTier& made = *heap_.chunk_memory.tier(chunk);
  const std::span<u8> made_head = heap_.chunk_memory.head_bytes(chunk);
  const ChunkHeader& from = *reinterpret_cast<const ChunkHeader*>(head.data());
  const ChunkHeader& to = heap_.chunk_memory.head(chunk);
  const bool records = from.records_in_head == to.records_in_head &&
                       (from.records_in_head != 0 || from.records_offset == to.records_offset);
  if (!records || from.row_capacity != to.row_capacity || from.columns_offset != to.columns_offset) return false;
  if (from.heap_offset != to.heap_offset || from.heap_end != to.heap_end) return false;
  if (saved->body_bytes != made.body_bytes || record.raw_bytes != made.body_bytes) return false;
  if (page_checksums(head, *saved, record.stored_bytes).empty()) return false;
  if (page_checksums(made_head, made, record.stored_bytes).empty()) return false;
  if (record.codec == static_cast<u8>(BodyCodec::kRaw)) return record.stored_bytes == record.raw_bytes;
  if (record.codec != static_cast<u8>(BodyCodec::kZstd)) return false;
  const std::optional<BodyPacks> before = packs_of(head, *saved), after = packs_of(made_head, made);
  return before && after && same_parts(before->plan, after->plan);
}

// Sets the same state as a body that was written and has then left memory.
void LinkedBodies::adopt(u32 chunk, std::span<u8> head, const RecordHeader& record, u32 entry, u32 page,
                         Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  ChunkTier& tier = *heap_.chunk_memory.tier(chunk);
  const std::span<u8> made = heap_.chunk_memory.head_bytes(chunk);
  const ChunkTier& saved = *find_tier(head.data(), head.size());
  const std::span<const u32> crcs = page_checksums(head, saved, record.stored_bytes);
  std::copy(crcs.begin(), crcs.end(), page_checksums(made, tier, record.stored_bytes).begin());
  if (record.codec == static_cast<u8>(BodyCodec::kZstd)) {
    const std::optional<BodyPacks> packs = packs_of(head, saved);
    std::copy_n(packs->ends, packs->plan.blocks(), packs_of(made, tier)->ends);
  }
  tier.place.store(stored_place(entry, page));
  tier.stored_bytes = record.stored_bytes;
  tier.codec = record.codec;
  DI_FAULT("restore.before_adopt");
  // Counts pages as if the record had this head, because a process that copies the body forward writes this head.
  tier.stored_pages.store(static_cast<u32>(record_pages(made.size(), record.stored_bytes)));
  heap_.note_body(chunk);
  heap_.disk.add(entry, u64{tier.stored_pages.load()} * kPageBytes, tier.body_bytes);
  add_bytes(heap_.memory.tier_header().clean_bytes, tier.body_bytes);
  heap_.free_body(chunk);
  const i64 block = static_cast<i64>(Blocks::block_bytes(tier.body_bytes));
  for (const u32 table : tables_of(heap_, chunk)) heap_.budget.charge_dropped(table, block);
}

void LinkedBodies::end(Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  for (const auto& [file, entry] : entries_) heap_.disk.seal(entry);
  entries_.clear();
}

}  // namespace di
