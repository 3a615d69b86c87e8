#include "rows/chunks.h"

#include <algorithm>
#include <cstring>

#include "rows/chunk_view.h"
#include "tier/packing.h"

namespace di {
namespace {

constexpr u32 kMarkEvery = 64;
constexpr u64 kSmallRecord = 16;  // a record is small if it has at most this part (1/n) of its row's other bytes

u64 round_up(u64 value, u64 to) { return (value + to - 1) / to * to; }

// Where the parts of a chunk lie. Offsets of body parts count from the body's start, which without a disk tier is the
// head's start.
struct ChunkParts {
  u64 tier, crcs, packs, late, marks, head_end;
  u64 records, columns, heap, end;
  u32 pack_parts;
  bool records_in_head;
};

// Records that are small compared with the rest of the row stay in the head, so that reading a row from disk reads only
// its columns. Records with a column by which a table groups its items stay there too, because recovery reads them.
bool keeps_records(const LayoutInfo& layout, const ChunkPlan& plan) {
  const bool groups = plan.groups || std::any_of(plan.group_columns.begin(), plan.group_columns.end(),
                                                 [](u32 column) { return column; });
  const u64 rest = layout.column_bytes + plan.heap_bytes / std::max<u32>(plan.rows, 1);
  return plan.tiered && (groups || layout.record_bytes <= rest / kSmallRecord);
}

// Calls use(PackPart) for each part of a body that may be packed.
template <class Use>
void for_pack_parts(const LayoutInfo& layout, const ChunkPlan& plan, const ChunkParts& parts, Use&& use) {
  if (!plan.tiered || plan.pack_rows == 0 || parts.end > ~u32{0}) return;
  const auto part = [&](u64 offset, u64 row_bytes, u64 rows) {
    if (row_bytes != 0 && rows != 0) use(PackPart{offset, row_bytes, rows, block_rows(row_bytes, plan.pack_rows)});
  };
  if (!parts.records_in_head) part(parts.records, layout.record_bytes, plan.rows);
  for (const ColumnLayout& column : layout.columns)
    if (column.place == static_cast<u32>(ColumnPlace::kColumn))
      part(column_base(parts.columns, plan.rows, column), column.row_bytes, plan.rows);
  part(parts.heap, 1, plan.heap_bytes);
}

// Adds room in the head for the data that unpacking needs, after the checksums.
void add_packs(const LayoutInfo& layout, const ChunkPlan& plan, ChunkParts* parts) {
  u64 blocks = 0;
  for_pack_parts(layout, plan, *parts, [&](const PackPart& part) {
    ++parts->pack_parts;
    blocks += (part.rows + part.block_rows - 1) / part.block_rows;
  });
  if (parts->pack_parts == 0) return;
  parts->packs = round_up(parts->head_end, alignof(PackPart));
  parts->head_end = parts->packs + parts->pack_parts * sizeof(PackPart) + blocks * sizeof(u32);
}

ChunkParts parts_of(const LayoutInfo& layout, const ChunkPlan& plan) {
  const u64 rows = plan.rows, tables = std::max<u64>(plan.tables.size(), 1);
  const u64 record_bytes = round_up(rows * layout.record_bytes, 64);
  ChunkParts parts{};
  parts.records_in_head = keeps_records(layout, plan);
  parts.tier = round_up(sizeof(ChunkHeader) + sizeof(Attachment) * (tables - 1), 64);
  parts.late = parts.tier + (plan.tiered ? round_up(sizeof(ChunkTier), 64) : 0);
  parts.marks = parts.late + round_up(late_size(rows, tables, layout.late_bytes), 64);
  parts.head_end = round_up(parts.marks + sizeof(RowMark) * ((rows + kMarkEvery - 1) / kMarkEvery), 64);
  if (parts.records_in_head) {
    parts.records = parts.head_end;
    parts.head_end += record_bytes;
  } else {
    parts.records = plan.tiered ? 0 : parts.head_end;
    parts.columns = parts.records + record_bytes;
  }
  u64 wide = 0;
  for (const ColumnLayout& column : layout.columns) wide += column.place == static_cast<u32>(ColumnPlace::kColumn);
  parts.heap = round_up(parts.columns + rows * layout.column_bytes + 64 * (wide + 1), 64);
  parts.end = parts.heap + plan.heap_bytes;
  if (plan.tiered) {
    parts.crcs = parts.head_end;
    parts.head_end += (parts.end + kPageBytes - 1) / kPageBytes * sizeof(u32);
    add_packs(layout, plan, &parts);
  }
  return parts;
}

// Whether a little-endian floating-point number is 0.0 or -0.0.
bool is_zero(const u8* number, u32 bytes) {
  u8 any = number[bytes - 1] & 0x7f;
  for (u32 i = 0; i + 1 < bytes; ++i) any |= number[i];
  return any == 0;
}

u64 text_hash(const std::string& text) {
  u64 hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<u8>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------- layouts

u32 publish_layout(Arena& arena, const LayoutHeader& header, std::span<const ColumnLayout> columns,
                   const std::string& text, Deadline deadline) {
  if (columns.size() > kMaxColumns) throw Error(Code::kInvalid, "a step has at most 256 columns");
  const u64 hash = text_hash(text);
  Heap& heap = arena.heap();
  u32 seen = 0;
  const auto known = [&](u32 from) -> u32 {
    const u32 count = arena.header().layout_count.load(std::memory_order_acquire);
    for (u32 i = from; i < count; ++i) {
      const LayoutHeader& at = *reinterpret_cast<const LayoutHeader*>(layout_bytes(arena, i).data());
      const bool same = at.columns == columns.size() && std::equal(columns.begin(), columns.end(), at.column);
      if (at.hash == hash && same && read_layout_text(arena, i) == text) return i;
    }
    seen = count;
    return kNone;
  };
  if (const u32 index = known(0); index != kNone) return index;
  const u64 text_at = sizeof(LayoutHeader) + sizeof(ColumnLayout) * columns.size();
  const u32 entry = arena.ledger().take_one(deadline);
  u32 block = kNone;
  try {
    block = heap.maker.begin_meta(text_at + text.size(), kOwnerLayout, entry, deadline);
  } catch (...) {
    arena.ledger().give_unused(entry);
    throw;
  }
  LayoutHeader& fresh = *reinterpret_cast<LayoutHeader*>(heap.block(block));
  fresh = header;
  fresh.columns = static_cast<u32>(columns.size());
  fresh.hash = hash;
  fresh.text_bytes = static_cast<u32>(text.size());
  std::copy(columns.begin(), columns.end(), fresh.column);
  std::memcpy(reinterpret_cast<u8*>(&fresh) + text_at, text.data(), text.size());
  u32 index = kNone;
  try {
    HeapGuard guard(heap, deadline);
    index = known(seen);
    if (index == kNone && arena.header().layout_count.load() < kMaxLayouts) {
      index = arena.header().layout_count.load();
      heap.maker.seal(block, entry);
      arena.layout_block(index).store(block + 1);
      DI_FAULT("layout.before_count");
      arena.header().layout_count.store(index + 1, std::memory_order_release);  // pairs with the acquire in known()
      return index;
    }
  } catch (...) {
    heap.maker.abandon(block, entry);
    throw;
  }
  heap.maker.abandon(block, entry);
  if (index == kNone) throw Error(Code::kCapacity, "1024 different step layouts are in use; use fewer schemas");
  return index;
}

std::span<const u8> layout_bytes(const Arena& arena, u32 index) {
  const u32 block = arena.layout_block(index).load() - 1;
  const u8* at = arena.heap().meta(block, kOwnerLayout, sizeof(LayoutHeader));
  return {at, arena.heap().descriptor(block).bytes};
}

LayoutInfo read_layout(const Arena& arena, u32 index) {
  if (index >= arena.header().layout_count.load(std::memory_order_acquire))
    throw Error(Code::kCorruptData, "unknown layout " + std::to_string(index));
  const std::span<const u8> block = layout_bytes(arena, index);
  const LayoutHeader& header = *reinterpret_cast<const LayoutHeader*>(block.data());
  if (header.columns > kMaxColumns ||
      sizeof(LayoutHeader) + sizeof(ColumnLayout) * u64{header.columns} + header.text_bytes > block.size())
    throw Error(Code::kCorruptData, "layout " + std::to_string(index) + " is damaged");
  map_columns(index, header, block.size(), {});  // throws when it is damaged
  LayoutInfo info;
  info.index = index;
  info.record_bytes = header.record_bytes;
  info.column_bytes = header.column_bytes;
  info.late_bytes = header.late_bytes;
  info.columns.assign(header.column, header.column + header.columns);
  return info;
}

std::string read_layout_text(const Arena& arena, u32 index) {
  const LayoutInfo info = read_layout(arena, index);
  const u8* at = layout_bytes(arena, index).data();
  const LayoutHeader& header = *reinterpret_cast<const LayoutHeader*>(at);
  return std::string(
      reinterpret_cast<const char*>(at) + sizeof(LayoutHeader) + sizeof(ColumnLayout) * info.columns.size(),
      header.text_bytes);
}

std::vector<std::string> read_column_names(const Arena& arena, u32 index) {
  const LayoutInfo info = read_layout(arena, index);
  const std::string text = read_layout_text(arena, index);
  std::vector<std::string> names;
  u64 at = 0;
  for (const ColumnLayout& column : info.columns) {
    if (column.name_bytes > text.size() - at)
      throw Error(Code::kCorruptData, "layout " + std::to_string(index) + " is damaged: its names end after its text");
    names.push_back(text.substr(at, column.name_bytes));
    at += column.name_bytes;
  }
  return names;
}

bool same_values(const LayoutInfo& layout, u32 column, const u8* a, const u8* b, u64 bytes) {
  if (bytes == 0 || std::memcmp(a, b, bytes) == 0) return true;
  const u32 each = layout.float_bytes.empty() ? 0 : layout.float_bytes[column];
  if (each == 0) return false;
  for (u64 at = 0; at < bytes; at += each)
    if (std::memcmp(a + at, b + at, each) != 0 && !(is_zero(a + at, each) && is_zero(b + at, each))) return false;
  return true;
}

// ------------------------------------------------------------------------------------------------------------ planning

u64 chunk_bytes(const LayoutInfo& layout, const ChunkPlan& plan) { return parts_of(layout, plan).end; }

u64 chunk_head_bytes(const LayoutInfo& layout, const ChunkPlan& plan) {
  return Blocks::block_bytes(parts_of(layout, plan).head_end);
}

u64 chunk_block_bytes(const LayoutInfo& layout, const ChunkPlan& plan) {
  const ChunkParts parts = parts_of(layout, plan);
  return Blocks::block_bytes(parts.end) + (plan.tiered ? Blocks::block_bytes(parts.head_end) : 0);
}

ChunkPlan plan_chunk(const LayoutInfo& layout, u64 target_bytes, u32 least_rows, u64 heap_bytes_per_row, u32 tables,
                     bool tiered, u32 pack_rows) {
  ChunkPlan plan;
  plan.tiered = tiered;
  plan.pack_rows = pack_rows;
  plan.tables.resize(tables);
  const auto bytes = [&](u64 rows) {
    plan.rows = static_cast<u32>(rows);
    plan.heap_bytes = round_up(rows * heap_bytes_per_row, 64);
    return chunk_bytes(layout, plan);
  };
  const u64 block = Blocks::block_bytes(std::max(target_bytes, bytes(std::max<u32>(least_rows, 1))));
  u64 low = std::max<u32>(least_rows, 1), high = u64{1} << 24;
  while (low < high) {
    const u64 middle = (low + high + 1) / 2;
    if (bytes(middle) <= block)
      low = middle;
    else
      high = middle - 1;
  }
  const u64 slack = block - bytes(low);
  if (heap_bytes_per_row != 0) plan.heap_bytes += slack / 64 * 64;
  plan.block_bytes = chunk_block_bytes(layout, plan);
  return plan;
}

// -------------------------------------------------------------------------------------------------------- open chunks

namespace {

[[noreturn]] void throw_dropped() { throw Error(Code::kTableNotFound, "a table of this writer was dropped"); }

// The block of a body that is not linked yet: a ledger entry holds it, so the reaper frees it after a kill.
class NewBody {
 public:
  explicit NewBody(Arena& arena) : arena_(arena) {}
  ~NewBody() {
    if (descriptor_ != kNone) arena_.heap().maker.abandon(descriptor_, entry_);
  }
  NewBody(const NewBody&) = delete;
  NewBody& operator=(const NewBody&) = delete;

  MakeResult make(MakeRequest request, u64 bytes, Deadline deadline, std::string* why, ShortOf* short_of) {
    request.bytes = bytes;
    request.kind = ObjectKind::kBody;
    entry_ = arena_.ledger().take_one(deadline);
    MakeResult result = MakeResult::kFull;
    try {
      result = arena_.heap().maker.make(request, entry_, deadline, &descriptor_, why, short_of);
    } catch (...) {
      arena_.ledger().give_unused(entry_);
      throw;
    }
    if (result == MakeResult::kMade) return result;
    descriptor_ = kNone;
    arena_.ledger().give(entry_);
    if (result == MakeResult::kGone) throw_dropped();
    return result;
  }

  // Under the heap's lock, before the chunk's descriptor is stored. A kill in between leaves the body sealed and
  // without a chunk; the heap's recovery frees it.
  void link(ChunkTier* tier) {
    arena_.heap().maker.seal(descriptor_, entry_);
    tier->body.store(descriptor_ + 1);
    descriptor_ = kNone;
  }

 private:
  Arena& arena_;
  u32 descriptor_ = kNone, entry_ = kNone;
};

void format_head(u8* at, const LayoutInfo& layout, const ChunkPlan& plan, const ChunkParts& parts, u32 writer) {
  ChunkHeader& header = *reinterpret_cast<ChunkHeader*>(at);
  std::memset(at, 0, parts.late);
  const u64 words = u64{plan.rows} * (sizeof(LateWord) + plan.tables.size() * sizeof(u32));
  if (layout.late_bytes != 0) std::memset(at + parts.late, 0, words);
  header.layout = layout.index;
  header.row_capacity = plan.rows;
  header.attachments = static_cast<u32>(plan.tables.size());
  header.stream = plan.stream;
  header.writer = writer;
  header.late_offset = layout.late_bytes == 0 ? 0 : parts.late;
  header.marks_offset = parts.marks;
  header.records_offset = parts.records;
  header.columns_offset = parts.columns;
  header.heap_offset = parts.heap;
  header.heap_end = parts.end;
  for (u32 i = 0; i < header.attachments; ++i) {
    header.attachment[i].table = plan.tables[i];
    header.attachment[i].table_generation = plan.table_generations[i];
    header.attachment[i].needs = plan.table_needs.empty() ? 0 : plan.table_needs[i];
    header.attachment[i].group_column = plan.group_columns.empty() ? 0 : plan.group_columns[i];
    header.attachment[i].attached.store(1);
  }
}

ChunkTier& format_tier(u8* head, const LayoutInfo& layout, const ChunkPlan& plan, const ChunkParts& parts) {
  ChunkHeader& header = *reinterpret_cast<ChunkHeader*>(head);
  header.tier_offset = static_cast<u32>(parts.tier);
  header.records_in_head = parts.records_in_head ? 1 : 0;
  ChunkTier& tier = *reinterpret_cast<ChunkTier*>(head + parts.tier);
  tier.body_bytes = parts.end;
  tier.crcs_offset = static_cast<u32>(parts.crcs);
  tier.parts_offset = static_cast<u32>(parts.packs);
  tier.parts = parts.pack_parts;
  PackPart* to = reinterpret_cast<PackPart*>(head + parts.packs);
  for_pack_parts(layout, plan, parts, [&to](const PackPart& part) { *to++ = part; });
  return tier;
}

}  // namespace

MakeResult OpenChunk::open(Arena& arena, const LayoutInfo& layout, const ChunkPlan& plan, Deadline deadline,
                           OpenChunk* out, std::string* why, ShortOf* short_of) {
  const ChunkParts parts = parts_of(layout, plan);
  MakeRequest request;
  request.tables = plan.tables;
  request.generations = plan.table_generations;
  NewBody body(arena);
  if (plan.tiered) {
    const MakeResult made = body.make(request, parts.end, deadline, why, short_of);
    if (made != MakeResult::kMade) return made;
  }
  OpenChunk chunk;
  chunk.entry_ = arena.ledger().take_one(deadline);
  request.bytes = plan.tiered ? parts.head_end : parts.end;
  request.body_block = plan.tiered ? Blocks::block_bytes(parts.end) : 0;
  request.kind = ObjectKind::kChunk;
  // Under the heap's lock, so that other processes never see the chunk without its header.
  const auto format = [&](u8* at, u64 identity) {
    format_head(at, layout, plan, parts, arena.slot());
    const u64 uid = plan.uid != 0 ? plan.uid : ++arena.heap_header().next_uid;
    ChunkHeader& header = *reinterpret_cast<ChunkHeader*>(at);
    header.identity().store(identity, std::memory_order_relaxed);
    header.attachment[0].serial = static_cast<u32>(uid);
    if (!plan.tiered) return;
    ChunkTier& tier = format_tier(at, layout, plan, parts);
    tier.uid = uid;
    body.link(&tier);
  };
  MakeResult result = MakeResult::kFull;
  try {
    result = arena.heap().maker.make(request, chunk.entry_, deadline, &chunk.descriptor_, why, short_of, format);
  } catch (...) {
    arena.ledger().give_unused(chunk.entry_);
    throw;
  }
  if (result != MakeResult::kMade) {
    arena.ledger().give(chunk.entry_);
    if (result == MakeResult::kGone) throw_dropped();
    return result;
  }
  const ChunkMemory& memory = arena.heap().chunk_memory;
  u8* const head = memory.head_bytes(chunk.descriptor_).data();
  chunk.base_ = memory.body(chunk.descriptor_).data();
  chunk.records_ = (parts.records_in_head ? head : chunk.base_) + parts.records;
  chunk.header_ = &memory.head(chunk.descriptor_);
  chunk.marks_ = reinterpret_cast<RowMark*>(head + parts.marks);
  chunk.columns_offset_ = parts.columns;
  chunk.heap_offset_ = parts.heap;
  chunk.heap_end_ = parts.end;
  chunk.rows_ = plan.rows;
  if (layout.late_bytes != 0)
    chunk.late_ = late_rows(head + parts.late, plan.rows, static_cast<u32>(plan.tables.size()), layout.late_bytes);
  *out = chunk;
  return result;
}

void OpenChunk::write(const LayoutInfo& layout, u32 row, u32 index, Cell value) {
  const ColumnLayout& column = layout.columns[index];
  u8* record = records_ + u64{row} * layout.record_bytes;
  switch (static_cast<ColumnPlace>(column.place)) {
    case ColumnPlace::kRecord: std::memcpy(record + column.offset, value.data, column.row_bytes); return;
    case ColumnPlace::kColumn:
      os::copy(base_ + column_at(column) + u64{row} * column.row_bytes, value.data, column.row_bytes);
      return;
    case ColumnPlace::kHeap: {
      const u64 bytes = u64{value.count} * column.row_bytes;
      HeapSlot slot{0, 0};
      if (value.count != 0) {
        slot = HeapSlot{static_cast<u32>(heap_offset_ + heap_used_), value.count};
        os::copy(base_ + slot.offset, value.data, bytes);
        heap_used_ += round_up(bytes, 16);
      }
      std::memcpy(record + column.offset, &slot, sizeof slot);
      return;
    }
    case ColumnPlace::kLate: write_late_first(late_, row, column, value.data); return;
  }
}

bool OpenChunk::equals(const LayoutInfo& layout, u32 row, u32 index, Cell value) const {
  const ColumnLayout& column = layout.columns[index];
  const u8* record = records_ + u64{row} * layout.record_bytes;
  switch (static_cast<ColumnPlace>(column.place)) {
    case ColumnPlace::kRecord:
    case ColumnPlace::kColumn:
      return same_values(layout, index, cell(layout, row, index), value.data, column.row_bytes);
    case ColumnPlace::kHeap: {
      HeapSlot slot;
      std::memcpy(&slot, record + column.offset, sizeof slot);
      const u64 bytes = u64{slot.count} * column.row_bytes;
      return slot.count == value.count && slot.offset <= heap_end_ && bytes <= heap_end_ - slot.offset &&
             same_values(layout, index, base_ + slot.offset, value.data, bytes);
    }
    case ColumnPlace::kLate: return false;  // never stored ahead
  }
  return false;
}

const u8* OpenChunk::cell(const LayoutInfo& layout, u32 row, u32 index) const {
  const ColumnLayout& column = layout.columns[index];
  if (column.place == static_cast<u32>(ColumnPlace::kColumn))
    return base_ + column_at(column) + u64{row} * column.row_bytes;
  return records_ + u64{row} * layout.record_bytes + column.offset;
}

RowMark& OpenChunk::row_mark(u32 row) const { return marks_[row / kMarkEvery]; }

bool OpenChunk::is_final(u32 row) const { return (row_mark(row).final >> (row % kMarkEvery) & 1) != 0; }

void OpenChunk::mark(u32 row, bool first, bool final, u32 episodes_before, i64 last_first) {
  RowMark& mark = row_mark(row);
  if (row % kMarkEvery == 0)
    mark = RowMark{0, 0, episodes_before, static_cast<i32>(std::max<i64>(last_first, INT32_MIN))};
  const u64 bit = u64{1} << (row % kMarkEvery);
  // Readers load these words relaxed and mask off rows that are not published yet: see chunk_view.h.
  __atomic_store_n(&mark.first, first ? mark.first | bit : mark.first & ~bit, __ATOMIC_RELAXED);
  __atomic_store_n(&mark.final, final ? mark.final | bit : mark.final & ~bit, __ATOMIC_RELAXED);
}

}  // namespace di
