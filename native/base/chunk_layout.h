// Chunks and their layouts as they lie in shared memory. layout.h explains the marks in brackets, such as [once].
#pragma once

#include <cstddef>

#include "base/types.h"

namespace di {

enum class ColumnPlace : u32 { kRecord = 0, kColumn = 1, kHeap = 2, kLate = 3 };

// A layout says how one row of a stream lies in its chunks. It never changes once published. After the columns the
// block holds a text: the names of all columns without separators, then dtypes and shapes as JSON.
struct ColumnLayout {
  u32 place;      // ColumnPlace
  u32 row_bytes;  // kRecord, kColumn, kLate: bytes of one row; kHeap: bytes of one element
  u32 offset;     // kRecord, kHeap: offset of the value (kHeap: of its HeapSlot) in the row's record; kLate: in each
                  // of the row's two copies, a multiple of 8
  u32 index;      // kColumn: ordinal among the column-wise ones; kLate: its bit in LateWord
  u64 before;     // kColumn: sum of row_bytes of the column-wise columns before this one
  u64 name_bytes = 0;  // length of its name in the text
  bool operator==(const ColumnLayout&) const = default;
};
struct LayoutHeader {
  u32 columns;
  u32 record_bytes;
  u32 column_wise;  // how many kColumn columns
  u32 text_bytes;
  u64 column_bytes;        // sum of row_bytes over kColumn columns
  u64 late_bytes;          // of one copy of a row's late values; a multiple of 8
  u64 hash;                // of the text, to find equal layouts: they are shared
  ColumnLayout column[1];  // `columns` of them, then the text
};
struct HeapSlot {  // in the record of a row: where its variable-length value lies
  u32 offset;      // bytes from the start of the body
  u32 count;       // elements
};

struct RowMark {   // for 64 rows; with a popcount of `first` it gives the episode and step number of each of them
  u64 first;       // bit: the row begins an episode
  u64 final;       // bit: the row holds only a final observation
  u32 episodes;    // how many episodes begin in this chunk before these rows
  i32 last_first;  // row of the last begin of an episode before these rows, from row 0 here (negative: earlier chunk)
};
static_assert(sizeof(RowMark) == 24);

// One table's uses of a chunk: `items 32 | readers 31 | closed 1`. The counts of its items, and of its draws and reads,
// are derived [table]; the bit kUsesClosed is a truth [heap]: no new item of this table will need the chunk. All are in
// one word, so the process that ends the last use learns in the same step whether the table may let the chunk go, and
// need not read the chunk again. Only readers need the chunk's body: see ChunkTier.
//
// kUsesClosed with counts of 0 is final: a new item needs a chunk that its writer has not closed for this table, and a
// new draw needs an item that still holds a use. So any process may then detach the chunk, and may find it by a plain
// scan. A writer closes a chunk separately for each of its tables, because short windows need it for less time than
// episodes do.
constexpr u64 kUsesClosed = u64{1} << 63;
constexpr u64 kUseOfItem = 1, kUseOfReader = u64{1} << 32, kReadersMask = kUsesClosed - kUseOfReader;
using Uses = Shared<u64>;
inline u32 readers_of(u64 uses) { return static_cast<u32>((uses & kReadersMask) >> 32); }
inline bool needed_by_items(u64 uses) { return (uses & ~kReadersMask) != kUsesClosed; }  // now or later

// One for each table that the chunk's writer feeds.
struct Attachment {
  u32 table;             // [once]
  u32 table_generation;  // [once]
  Uses uses;             // of attachment[0]: the chunk's identity [once]; the first table's uses are in ChunkSummary
  Shared<u32> attached;  // [heap] truth: this table still holds the chunk (1 at creation)
  u32 needs;             // [once] bits of the late columns that its items wait for
  u32 group_column;      // [once] number + 1 of the column whose value groups the rows; 0: none
  u32 serial;  // [once] of attachment[0]: the low half of the chunk's uid, by which checkpoints know it in every store
};

// Which chunk a head belongs to: `descriptor 32 | its generation 16`. A descriptor that leads to the head of another
// chunk, or of an earlier one, is damaged.
constexpr u64 chunk_identity(u32 descriptor, u64 word) { return (word & u64{0xffff} << 32) | descriptor; }

struct ChunkHeader {
  u32 layout;             // layout index [once]
  u32 row_capacity;       // [once]
  Shared<u32> published;  // [owner] rows that readers may see; release store, pairs with acquire loads: chunk_view.h
  Shared<u32> full;       // [owner or reaper] no row will follow in this chunk
  Shared<u32> next;       // [owner] descriptor + 1 of the lane's next chunk; set before rows there are published
  u32 attachments;        // [once]
  u32 stream;             // [once]
  u32 writer;             // [once] client slot, to count stale items by their writer
  u64 first_episode;      // [owner] id of the episode that row 0 continues or begins; set before row 0 is published
  u64 late_offset;        // [once] of the LateWords, 0 without late columns; see rows/late.h
  u64 marks_offset;       // [once] from the start of the head
  u64 records_offset;     // [once] this and the next three: from the start of the body
  u64 columns_offset;
  u64 heap_offset;
  u64 heap_end;
  u32 tier_offset;      // [once] of the ChunkTier, from the start of the head; 0: head and body lie in one block
  u32 records_in_head;  // [once] with a ChunkTier: 1: the records lie in the head, and records_offset counts from there
  Attachment attachment[1];  // `attachments` of them

  Shared<u64>& identity() { return attachment[0].uses; }
  u64 identity() const { return attachment[0].uses.load(std::memory_order_relaxed); }
};

// Offset from the start of the body of a column-wise column, whose rows lie one after the other, 64-byte aligned.
inline u64 column_base(u64 columns_offset, u64 row_capacity, const ColumnLayout& column) {
  return (columns_offset + row_capacity * column.before + 64u * column.index + 63u) & ~u64{63};
}
inline u64 column_base(const ChunkHeader& chunk, const ColumnLayout& column) {
  return column_base(chunk.columns_offset, chunk.row_capacity, column);
}

// A chunk has a head and a body. Head: the ChunkHeader with its attachments, late columns and row marks; it is in
// memory for as long as the chunk exists. Body: records, columns and values of variable length. In a store without a
// disk tier one block holds both: the body begins with the head. With a disk tier each is a block of its own with a
// descriptor, of kind kChunk and kBody, and a ChunkTier in the head says where the body is.
//
// Draws, reads and writers need the body, items don't. So a body leaves memory only while the chunk is closed and no
// attached table has readers of it. A reader's use keeps the body where it is.
struct ChunkTier {
  u64 uid;         // [once] names the chunk on disk; no other chunk of this store ever gets it
  u64 body_bytes;  // [once]
  Shared<u32>
      body;  // [heap; to 0 also the locks of all attached tables] truth: descriptor + 1 of the body's block in memory;
             // 0: there is none
  Shared<u32>
      damaged;  // [any, while it holds the chunk; only to 1] truth: the body is on disk only, and cannot be read from
                // there. Items of the chunk are to be removed: replay/lost_rows.h
  // The copy on disk. A process claims the body, writes it to a segment of its own without a lock, and then sets the
  // fields below in one hold, `stored_pages` last. A claimed chunk is not freed. A copy moves to another segment in the
  // same way, but only while nobody reads the chunk, since a reader has seen the old place.
  Shared<u32> claim;         // [heap] truth: lock_owner_word() of the process that writes a copy; 0: nobody does
  Shared<u32> stored_pages;  // [heap] truth: pages of the record on disk, its head included; 0: there is no copy
  Shared<u64> place;  // [heap; once there is a copy, also the locks of all attached tables] truth: where the body lies
                      // on disk, as stored_place(). One word, so that a kill leaves one place or the other
  u64 stored_bytes;   // [heap] of the body there
  u32 codec;          // [heap] how it is packed there: BodyCodec
  u32 crcs_offset;    // [once] from the start of the head: the CRC-32C of each page of the body on disk [heap]
  u32 parts_offset;   // [once] from the start of the head: the PackParts by which the body is packed. Behind them, for
                      // each block, a u32: where the block ends in the packed body [heap]
  u32 parts;          // [once] how many; 0: never packed
};
enum class BodyCodec : u32 { kRaw = 0, kZstd = 1 };
// The parts of ChunkTier::place: the number of the segment's entry in the TierHeader, and the body's first page in its
// file.
constexpr u64 stored_place(u32 segment, u32 page) { return u64{page} << 32 | segment; }
constexpr u32 place_segment(u64 place) { return static_cast<u32>(place); }
constexpr u32 place_page(u64 place) { return static_cast<u32>(place >> 32); }

// One part of a body: the records, one wide column, or the heap of variable-length values, whose rows have one byte
// each. A body is packed in blocks of `block_rows` rows of a part: tier/packing.h.
struct PackPart {
  u64 offset, row_bytes, rows, block_rows;  // [once] offset: from the start of the body
};

// The ChunkTier of a chunk whose head has `bytes` bytes; null: its offset is damaged.
inline ChunkTier* find_tier(u8* head, u64 bytes) {
  const u64 at = bytes < sizeof(ChunkHeader) ? 0 : reinterpret_cast<const ChunkHeader*>(head)->tier_offset;
  if (at < sizeof(ChunkHeader) || at % alignof(ChunkTier) != 0 || at + sizeof(ChunkTier) > bytes) return nullptr;
  return reinterpret_cast<ChunkTier*>(head + at);
}

// Late columns: values that update() writes after their row was appended. They lie in the chunk's head, after the
// attachments, and never in its body, which stays as the writer left it:
//   LateWord[rows] | for each attachment u32[rows]: slot + 1 of the item that waits at this row | two copies of each
//   row's values
// A row's value of one column is in the copy that the column's bit of `copy` names. update() writes the other copy,
// then flips the bits of all its columns in one store, so that a reader without a lock sees old or new values, and a
// kill leaves the old ones. update() holds the locks of all tables that are attached to the chunk.
struct LateWord {
  Shared<u64> word;  // [locks of all attached tables; while the row is not published: owner] truth:
                     // copy 16 | there 16 | changes 32
};
constexpr u32 kMostLate = 16;  // late columns of a stream
inline u32 late_there(u64 word) { return static_cast<u32>(word >> kMostLate) & 0xffff; }
inline u32 late_copies(u64 word) { return static_cast<u32>(word) & 0xffff; }
inline u64 late_word(u32 changes, u32 there, u32 copies) {
  return u64{changes} << 32 | u64{there} << kMostLate | copies;
}

}  // namespace di
