#include "replay/item_rows.h"

namespace di {

RowAt row_after(const Heap& heap, RowAt from, u32 rows) {
  Steps steps(std::min(rows + kMostEmptyChunks, kMostChunks), "an item's chain of chunks");
  u64 left = u64{from.row} + rows;
  for (u32 chunk = from.chunk; chunk != kNone;) {
    const ChunkHeader& header = heap.chunk_memory.head(chunk);
    const u32 here = header.published.load(std::memory_order_acquire);
    if (left < here) return {chunk, static_cast<u32>(left)};
    steps.count_one();
    left -= here;
    chunk = header.next.load(std::memory_order_acquire) - 1;
  }
  return {};
}

u32 attachment_of(const Heap& heap, u32 chunk, u32 table) {
  const std::span<Attachment> all = heap.chunk_memory.attachments(chunk);
  for (u32 i = 0; i < all.size(); ++i)
    if (all[i].table == table) return i;
  return kNone;
}

HeadView head_at(const Heap& heap, RowAt at) {
  HeadView view;
  const char* wrong = validate_head(heap.chunk_memory.head_alone(at.chunk), &view);
  if (wrong == nullptr && at.row >= view.rows) wrong = "an item's rows are not in its chunks";
  if (wrong != nullptr) throw Error(Code::kCorruptData, std::string("damaged store: ") + wrong);
  return view;
}

bool is_complete(const Heap& heap, RowAt at, u32 attachment) {
  const u32 needs = heap.chunk_memory.attachments(at.chunk)[attachment].needs;
  const LateRows late = head_at(heap, at).late;
  return late.words == nullptr || (needs & ~late_there(late.words[at.row].word.load(std::memory_order_relaxed))) == 0;
}

}  // namespace di
