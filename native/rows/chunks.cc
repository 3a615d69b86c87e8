#include "rows/chunks.h"

#include <algorithm>
#include <cstring>

#include "rows/chunk_view.h"

namespace di {
namespace {

constexpr u32 kMarkEvery = 64;

u64 round_up(u64 value, u64 to) { return (value + to - 1) / to * to; }

struct Parts {
  u64 late, marks, records, columns, heap, end;
};
Parts parts_of(const LayoutInfo& layout, u32 rows, u64 heap_bytes, u64 tables) {
  Parts parts{};
  parts.late = round_up(sizeof(ChunkHeader) + sizeof(Attachment) * (std::max<u64>(tables, 1) - 1), 64);
  parts.marks = parts.late + round_up(late_size(rows, std::max<u64>(tables, 1), layout.late_bytes), 64);
  parts.records = round_up(parts.marks + sizeof(RowMark) * ((rows + kMarkEvery - 1) / kMarkEvery), 64);
  parts.columns = round_up(parts.records + u64{rows} * layout.record_bytes, 64);
  u64 wide = 0;
  for (const ColumnLayout& column : layout.columns) wide += column.place == static_cast<u32>(ColumnPlace::kColumn);
  parts.heap = round_up(parts.columns + u64{rows} * layout.column_bytes + 64 * (wide + 1), 64);
  parts.end = parts.heap + heap_bytes;
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
      const LayoutHeader& at = *reinterpret_cast<const LayoutHeader*>(heap.block(arena.layout_block(i).load() - 1));
      // mutant: names-run-together
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
    Heap::Guard guard(heap, deadline);
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

LayoutInfo read_layout(const Arena& arena, u32 index) {
  if (index >= arena.header().layout_count.load(std::memory_order_acquire))
    throw Error(Code::kCorruptData, "unknown layout " + std::to_string(index));
  const u32 block = arena.layout_block(index).load() - 1;
  const LayoutHeader& header = *reinterpret_cast<const LayoutHeader*>(arena.heap().block(block));
  if (header.columns > kMaxColumns ||
      sizeof(LayoutHeader) + sizeof(ColumnLayout) * u64{header.columns} + header.text_bytes >
          arena.heap().descriptor(block).bytes)
    throw Error(Code::kCorruptData, "layout " + std::to_string(index) + " is damaged");
  map_columns(index, header, arena.heap().descriptor(block).bytes, {});  // throws when it is damaged
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
  const u8* at = arena.heap().block(arena.layout_block(index).load() - 1);
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
      throw Error(Code::kCorruptData, "layout " + std::to_string(index) + " is damaged: its names end behind its text");
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

u64 chunk_bytes(const LayoutInfo& layout, const ChunkPlan& plan) {
  return parts_of(layout, plan.rows, plan.heap_bytes, plan.tables.size()).end;
}

ChunkPlan plan_chunk(const LayoutInfo& layout, u64 target_bytes, u32 least_rows, u64 heap_bytes_per_row, u32 tables) {
  ChunkPlan plan;
  const auto bytes = [&](u64 rows) {
    return parts_of(layout, static_cast<u32>(rows), round_up(rows * heap_bytes_per_row, 64), tables).end;
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
  plan.rows = static_cast<u32>(low);
  plan.block_bytes = block;
  plan.heap_bytes = round_up(low * heap_bytes_per_row, 64);
  const u64 slack = block - bytes(low);
  if (heap_bytes_per_row != 0) plan.heap_bytes += slack / 64 * 64;
  return plan;
}

// -------------------------------------------------------------------------------------------------------- open chunks

MakeResult OpenChunk::open(Arena& arena, const LayoutInfo& layout, const ChunkPlan& plan, Deadline deadline,
                           OpenChunk* out, std::string* why, u32* short_table) {
  const Parts parts = parts_of(layout, plan.rows, plan.heap_bytes, plan.tables.size());
  OpenChunk chunk;
  chunk.entry_ = arena.ledger().take_one(deadline);
  MakeRequest request;
  request.bytes = parts.end;
  request.kind = ObjectKind::kChunk;
  request.tables = plan.tables;
  request.generations = plan.table_generations;
  const auto format = [&](u8* at) {  // under the heap's lock, so that others never see the chunk without its header
    ChunkHeader& header = *reinterpret_cast<ChunkHeader*>(at);
    std::memset(at, 0, parts.late);
    const u64 words = u64{plan.rows} * (sizeof(LateWord) + plan.tables.size() * sizeof(u32));
    if (layout.late_bytes != 0) std::memset(at + parts.late, 0, words);
    header.layout = layout.index;
    header.row_capacity = plan.rows;
    header.attachments = static_cast<u32>(plan.tables.size());
    header.stream = plan.stream;
    header.writer = arena.slot();
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
  };
  MakeResult result = MakeResult::kFull;
  try {
    result = arena.heap().maker.make(request, chunk.entry_, deadline, &chunk.descriptor_, why, short_table, format);
  } catch (...) {
    arena.ledger().give_unused(chunk.entry_);
    throw;
  }
  if (result != MakeResult::kMade) {
    arena.ledger().give(chunk.entry_);
    if (result == MakeResult::kGone) throw Error(Code::kTableNotFound, "a table of this writer was dropped");
    return result;
  }
  chunk.base_ = arena.heap().chunk_memory.body(chunk.descriptor_).data();
  chunk.header_ = &arena.heap().chunk_memory.head(chunk.descriptor_);
  chunk.late_ = late_rows(chunk.base_, *chunk.header_, layout.late_bytes);
  *out = chunk;
  return result;
}

void OpenChunk::write(const LayoutInfo& layout, u32 row, u32 index, Cell value) {
  const ColumnLayout& column = layout.columns[index];
  u8* record = base_ + header_->records_offset + u64{row} * layout.record_bytes;
  switch (static_cast<ColumnPlace>(column.place)) {
    case ColumnPlace::kRecord: std::memcpy(record + column.offset, value.data, column.row_bytes); return;
    case ColumnPlace::kColumn:
      os::copy(base_ + column_base(*header_, column) + u64{row} * column.row_bytes, value.data, column.row_bytes);
      return;
    case ColumnPlace::kHeap: {
      const u64 bytes = u64{value.count} * column.row_bytes;
      HeapSlot slot{0, 0};
      if (value.count != 0) {
        slot = HeapSlot{static_cast<u32>(header_->heap_offset + heap_used_), value.count};
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
  // mutant: a-repeated-observation-may-differ
  const ColumnLayout& column = layout.columns[index];
  const u8* record = base_ + header_->records_offset + u64{row} * layout.record_bytes;
  switch (static_cast<ColumnPlace>(column.place)) {
    case ColumnPlace::kRecord:
    case ColumnPlace::kColumn:
      return same_values(layout, index, cell(layout, row, index), value.data, column.row_bytes);
    case ColumnPlace::kHeap: {
      HeapSlot slot;
      std::memcpy(&slot, record + column.offset, sizeof slot);
      return slot.count == value.count &&
             same_values(layout, index, base_ + slot.offset, value.data, u64{slot.count} * column.row_bytes);
    }
    case ColumnPlace::kLate: return false;  // never stored ahead
  }
  return false;
}

const u8* OpenChunk::cell(const LayoutInfo& layout, u32 row, u32 index) const {
  const ColumnLayout& column = layout.columns[index];
  if (column.place == static_cast<u32>(ColumnPlace::kColumn))
    return base_ + column_base(*header_, column) + u64{row} * column.row_bytes;
  return base_ + header_->records_offset + u64{row} * layout.record_bytes + column.offset;
}

bool OpenChunk::is_final(u32 row) const {
  const RowMark& mark = reinterpret_cast<const RowMark*>(base_ + header_->marks_offset)[row / kMarkEvery];
  return (mark.final >> (row % kMarkEvery) & 1) != 0;
}

void OpenChunk::mark(u32 row, bool first, bool final, u32 episodes_before, i64 last_first) {
  RowMark& mark = reinterpret_cast<RowMark*>(base_ + header_->marks_offset)[row / kMarkEvery];
  if (row % kMarkEvery == 0)
    mark = RowMark{0, 0, episodes_before, static_cast<i32>(std::max<i64>(last_first, INT32_MIN))};
  const u64 bit = u64{1} << (row % kMarkEvery);
  // Readers load these words relaxed and mask off rows that are not published yet: see chunk_view.h.
  __atomic_store_n(&mark.first, first ? mark.first | bit : mark.first & ~bit, __ATOMIC_RELAXED);
  __atomic_store_n(&mark.final, final ? mark.final | bit : mark.final & ~bit, __ATOMIC_RELAXED);
}

}  // namespace di
