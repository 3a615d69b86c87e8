// Lets Python compute the reserve of a table before it has any chunk. It uses the same arithmetic as writers do to size
// chunks, and the sizes of items, descriptors and ledger entries.
#include "rows/chunks.h"

#include "bindings/bindings.h"

namespace di::py {
namespace {

// A layout of these sizes. Only the number of its column-wise columns matters here.
LayoutInfo sized(u32 record_bytes, u64 wide_bytes, u32 wide, u64 late_bytes) {
  LayoutInfo layout;
  layout.record_bytes = record_bytes;
  layout.column_bytes = wide_bytes;
  layout.late_bytes = late_bytes;
  ColumnLayout column{};
  column.place = static_cast<u32>(ColumnPlace::kColumn);
  if (wide != 0) column.row_bytes = static_cast<u32>(wide_bytes / wide);
  layout.columns.assign(wide, column);
  return layout;
}

}  // namespace

void bind_chunks(nb::module_& module) {
  module.attr("MOST_SLOTS") = kMostSlots;
  module.attr("MAX_COLUMNS") = kMaxColumns;  // of one row
  module.attr("MOST_LATE") = kMostLate;      // late columns of a row
  module.attr("ITEM_BYTES") = sizeof(Item);
  module.attr("DESCRIPTOR_BYTES") = sizeof(Descriptor);
  module.attr("FIRST_DESCRIPTORS") = kFirstDescriptorSegment;  // each further segment doubles their number
  module.attr("LEDGER_ENTRY_BYTES") = sizeof(LedgerEntry);
  module.def(
      "chunk_bytes",
      [](u32 record_bytes, u64 wide_bytes, u32 wide, u64 late_bytes, u32 rows, u64 heap_bytes) {
        ChunkPlan plan;
        plan.rows = rows;
        plan.heap_bytes = heap_bytes;
        return chunk_bytes(sized(record_bytes, wide_bytes, wide, late_bytes), plan);
      },
      nb::arg("record_bytes"), nb::arg("wide_bytes"), nb::arg("wide"), nb::arg("late_bytes"), nb::arg("rows"),
      nb::arg("heap_bytes"));
  module.def(
      "plan_chunk",
      [](u32 record_bytes, u64 wide_bytes, u32 wide, u64 late_bytes, u64 target_bytes, u32 least_rows,
         u64 heap_bytes_per_row, u32 tables) {
        const LayoutInfo layout = sized(record_bytes, wide_bytes, wide, late_bytes);
        const ChunkPlan plan = plan_chunk(layout, target_bytes, least_rows, heap_bytes_per_row, tables, false);
        return std::tuple(plan.rows, plan.block_bytes);
      },
      nb::arg("record_bytes"), nb::arg("wide_bytes"), nb::arg("wide"), nb::arg("late_bytes"), nb::arg("target_bytes"),
      nb::arg("least_rows"), nb::arg("heap_bytes_per_row"), nb::arg("tables"),
      "Rows of a chunk, and the bytes of its block.");
  module.def(
      "chunk_head",
      [](u32 record_bytes, u64 wide_bytes, u32 wide, u64 late_bytes, u32 rows, u64 heap_bytes, u32 tables,
         u32 pack_rows) {
        ChunkPlan plan;
        plan.tiered = true;
        plan.pack_rows = pack_rows;
        plan.rows = rows;
        plan.heap_bytes = heap_bytes;
        plan.tables.resize(tables);
        return chunk_head_bytes(sized(record_bytes, wide_bytes, wide, late_bytes), plan);
      },
      nb::arg("record_bytes"), nb::arg("wide_bytes"), nb::arg("wide"), nb::arg("late_bytes"), nb::arg("rows"),
      nb::arg("heap_bytes"), nb::arg("tables"), nb::arg("pack_rows"),
      "Bytes of a chunk's head, which a disk tier leaves in memory.");
}

}  // namespace di::py
