// Every byte that lies in shared memory. docs/shm_format.md draws the same map with offsets.
//
// Each field names its writer and the lock it writes under:
//   [once]   written before the magic, never again        [heap]  under the heap lock
//   [table]  under that table's lock                      [owner] by the process that owns the slot or chunk, no lock
//   [any]    atomic, by anyone
// and whether a rebuild recomputes it ("derived") or it is a truth. Readers hold the same lock unless the field says
// "read freely": then a stale value is harmless, and the comment says why.
#pragma once

#include <cstddef>
#include <type_traits>

#include "base/item.h"

namespace di {

// A place in the arena. Pointers never enter shared memory; Mapping::at() turns an Offset into an address.
struct Offset {
  u64 value = 0;
  explicit operator bool() const { return value != 0; }
  Offset operator+(u64 bytes) const { return Offset{value + bytes}; }
  bool operator==(const Offset&) const = default;
};

constexpr u64 kMagic = 0x45524f5453494401;  // "\1DISTORE"
constexpr u32 kLayoutVersion = 6;
constexpr u64 kPageBytes = 4096;
constexpr u64 kSliceBytes = 2u << 20;
constexpr u64 kPagesPerSlice = kSliceBytes / kPageBytes;
constexpr u64 kMinBlockBytes = 256;
constexpr u64 kBlockWords = kSliceBytes / kMinBlockBytes / 64;  // words of block bitmap a slice can need
constexpr u32 kMaxClients = 1024;
constexpr u32 kMaxTables = 256;
constexpr u32 kMaxWeights = 256;
constexpr u32 kMaxLayouts = 1024;
constexpr u32 kNameBytes = 128;
constexpr u32 kNone = 0xffffffffu;             // no slot, no descriptor, no column
constexpr u64 kClientLockBase = u64{1} << 62;  // record-lock byte of client slot 0; far beyond any data

// ---------------------------------------------------------------------------------------------------------- locks
struct LockWord {
  Shared<u32> word;   // [any] 0: free; else lock_owner_word() of the owner; top bit: somebody sleeps on it
  Shared<u32> dirty;  // [lock's owner] derived state under this lock is being changed: a taker-over rebuilds it
};

// Physical undo (docs/decisions/): old values of 8-byte words. An entry is complete before `count` covers it, and
// `count` covers it before the word changes; committing is one store of 0. A taker-over of the lock restores what a
// dead owner left, last entry first. [lock's owner]
constexpr u32 kUndoEntries = 768;
struct UndoEntry {
  u64 offset;
  u64 value;
};
struct UndoRecord {
  Shared<u32> count;
  u32 pad;
  UndoEntry entries[kUndoEntries];
};

// -------------------------------------------------------------------------------------------------------- clients
enum class ClientState : u32 { kFree = 0, kLive = 1, kReaping = 2 };

struct alignas(64) ClientSlot {
  Shared<u32> state;       // [any, CAS] truth; kFree -> kLive by the claimer holding the record lock
  Shared<u32> generation;  // [reaper] +1 at each release
  Shared<u32> pid;         // [owner] read freely (tools)
  u32 pad;
  Shared<u64> start_time;     // [owner] clock ticks since boot of the machine: pid alone is reused
  Shared<u64> pid_ns;         // [owner] inode of the pid namespace
  Shared<u64> cgroup;         // [owner] hash of the memory cgroup's path
  Shared<u32> ledger;         // [owner, under heap lock] first ledger block's descriptor + 1
  Shared<u32> role;           // [owner] bit set: 1 writer, 2 learner, 4 tool
  Shared<u64> stale_dropped;  // [any] items this process wrote that were dropped as stale
  Shared<u64> drawn[4];  // [owner, under the table's lock] bit i: it has drawn from table i; cleared with the table
  u64 reserved[18];
};
static_assert(sizeof(ClientSlot) == 256);

enum class WaitKind : u32 { kNothing = 0, kLock, kRoom, kItems, kLimiter, kObject, kWeights, kMemory, kTable };

// What one call of some process waits for, from when it began to wait until it ends; read freely by stats. Once its
// process has gone, anybody may take it.
constexpr u32 kMaxWaits = 1024;  // more threads than that wait unseen
struct WaitSlot {
  Shared<u64> owner;  // [any, CAS] thread id 32 | its client slot's generation 20 | slot + 1 11 | being written 1;
                      // 0: free
  Shared<u64> since_ns;
  Shared<u32> kind;  // WaitKind
  Shared<u32> table;
  Shared<u32> culprit;  // client slot + 1
  u32 pad;
};
static_assert(sizeof(WaitSlot) == 32);

// One ledger entry justifies one count. what == 0: free. The owner writes `ref` first, then `what`.
// kPin: an object is being read; kOwn: an object is being written (creating) or a chunk is open; kDraw: an item was
// drawn and not yet delivered; kWriter: a writer of that table is open; kRead: an item is being peeked at.
// Pins and owns change under the heap lock, draws and writers under their table's lock; only the `dropped` bit is set
// by destructors without a lock. Blocks stay with the client slot for ever, so anyone may walk them.
enum class LedgerKind : u32 { kFree = 0, kPin = 1, kOwn = 2, kDraw = 3, kWriter = 4, kRead = 5 };
struct LedgerEntry {
  Shared<u64> what;  // kind 3 | dropped 1 | table 8 | chunks 20 | descriptor 32 (draw: first chunk; kNone once copied)
  Shared<u64> ref;   // pin, own: the descriptor's generation; draw: the item's key
};
// What an entry can count: rows of more chunks would be let go short at a death. kMaxWindowRows leaves room for chunks
// without rows, of which a lane may leave some behind.
constexpr u32 kMostChunks = (1u << 20) - 1;
constexpr u32 kMostEmptyChunks = 1024;
constexpr u64 kLedgerDropped = 8;
static_assert(static_cast<u32>(LedgerKind::kRead) < 8 && kMaxTables <= 256);
inline u64 ledger_what(LedgerKind kind, u32 table, u32 descriptor, u32 chunks = 0) {
  // mutant: entries-count-few-chunks
  return u64{static_cast<u32>(kind)} | u64{table} << 4 | u64{chunks} << 12 | u64{descriptor} << 32;
}
inline LedgerKind ledger_kind(u64 what) { return static_cast<LedgerKind>(what & 7); }
inline u32 ledger_table(u64 what) { return static_cast<u32>(what >> 4 & 0xff); }
inline u32 ledger_chunks(u64 what) { return static_cast<u32>(what >> 12 & kMostChunks); }
inline u32 ledger_descriptor(u64 what) { return static_cast<u32>(what >> 32); }
constexpr u32 kLedgerEntries = 255;
struct LedgerBlock {
  Shared<u32> next;  // descriptor + 1 of the next block [owner, heap]
  u32 pad[3];
  LedgerEntry entries[kLedgerEntries];
};
static_assert(sizeof(LedgerBlock) == 4096);

// ----------------------------------------------------------------------------------------------------- heap, objects
enum class SliceState : u8 { kFree = 0, kBlocks = 1, kRunHead = 2, kRunBody = 3 };
enum class BlockUse : u8 { kObject = 0, kChunk = 1, kMeta = 2 };
constexpr u32 kBlockUses = 3;
constexpr u32 kBlockClasses = 96;

constexpr u8 kCollapseTried = 1, kCollapseUnderWay = 2;  // 2 in a dead process's slice: what it lost may be back
struct Slice {                                           // all derived [heap]
  u64 present[kPagesPerSlice / 64];  // page is charged to the budget (and committed by who charged it)
  SliceState state;
  BlockUse use;
  u8 block_class;
  u8 collapsed;  // kCollapse…; cleared when pages are punched, unless it is under way
  u32 free_blocks;
  u32 hint;  // bitmap word to look at first
  u32 run;   // slices of the run, at its head
  u32 prev;  // list of slices of this class with a free block
  u32 next;
  u32 pad2[10];
};
static_assert(sizeof(Slice) == 128);

enum class ObjectState : u8 { kFree = 0, kCreating = 1, kSealed = 2, kDoomed = 3 };
enum class ObjectKind : u8 { kData = 0, kChunk = 1, kMeta = 2 };

// One table's uses of a chunk, in one word: who lowers them to nothing learns in the same step whether the chunk may go,
// and need not look at it again. kUsesClosed and no uses is final: only the open writer makes new uses, of chunks that this
// table's view still reaches, and a draw needs an item that still holds one. So anybody may then detach, and may find it
// by a plain scan. Each table of a stream closes a chunk for itself: a short view lets go long before an episode's does.
constexpr u32 kUsesClosed = 1u << 31;
using Uses =
    Shared<u32>;  // [table] derived: by this table's items, draws and reads. [heap] truth: kUsesClosed, no item
                  // of this table to come will need the chunk

// What a draw needs to know of a chunk, in its descriptor: these lie close together, while headers of chunks of one size
// push each other out of the caches.
struct ChunkSummary {
  u32 first_table;   // [once] as attachment[0].table
  Uses first_uses;   // of that table, mostly the only one
  Shared<u32> rows;  // [heap] published ones, once its writer needs it no more; 0: the header tells
};

struct Descriptor {  // truth unless said otherwise [heap]
  Shared<u64> word;  // state 8 | kind 8 | generation 16 | pins 32 (pins derived: pin entries of all ledgers)
  u64 offset;
  u64 bytes;
  union {
    u8 id[20];             // of an object
    ChunkSummary summary;  // of a chunk
  };
  u32 hash_next;   // derived
  u32 owner;       // creating: client slot; meta: table index or kNone
  u32 flags;       // kFlagHasId
  u64 expires_ns;  // 0 = never (CLOCK_BOOTTIME)
};
static_assert(sizeof(Descriptor) == 64);
constexpr u32 kFlagHasId = 1;
constexpr u32 kFlagWeights = 2;  // a version of published weights: not listed by keys()

// Owners of meta blocks other than tables (which own by their index).
constexpr u32 kOwnerLedger = 0xfffffff0u;
constexpr u32 kOwnerIndex = 0xfffffff1u;
constexpr u32 kOwnerLayout = 0xfffffff2u;

constexpr u32 kDescriptorSegments = 22;  // segment i holds 1024 << i descriptors
constexpr u32 kFirstDescriptorSegment = 1024;

struct HeapHeader {
  LockWord lock;
  // truths
  Offset segments[kDescriptorSegments];  // descriptor segments, in place for ever
  Shared<u64> budget;                    // bytes; changed by resize
  u64 next_stream;
  Shared<u32> table_count;  // table headers ever committed
  u32 pad0;
  // derived
  Shared<u32> segment_count;  // read freely by sweeps: it only grows, after the segment it counts
  u32 free_head;              // free descriptors, linked by hash_next
  u32 free_count;
  u32 index_block;    // descriptor + 1 of the bucket array
  u64 index_buckets;  // power of two
  u64 live_objects;
  Shared<u64> object_bytes;  // pages charged in slices of each use, and fixed parts; read freely by stats
  Shared<u64> chunk_bytes;
  Shared<u64> meta_bytes;
  Shared<u64> free_bytes;  // charged pages in free slices
  Shared<u64> fixed_bytes;
  Shared<u64> live_bytes;     // block bytes of sealed and creating objects
  Shared<u64> pinned_bytes;   // of those: pinned by someone
  Shared<u64> pending_bytes;  // doomed, waiting for the last unpin
  Shared<u64> table_charge;   // sum over tables of max(reserve + held, used)
  Shared<u64> deaths;         // clients reaped
  Shared<u64> rebuilds;
  u64 slice_high;                          // slices ever used
  u64 free_low;                            // no free slice below this one
  u32 partial[kBlockUses][kBlockClasses];  // slice + 1
  u64 expiring;                            // descriptors with a ttl
  u64 promised;                            // descriptors that the tables' reserves may need
  Shared<u32> sealed_seq;                  // futex: an object was sealed or a version published
  Shared<u32> sealed_waiters;
  Shared<u32> room_seq;  // futex: bytes were freed
  Shared<u32> room_waiters;
};

// --------------------------------------------------------------------------------------------------------- weights
struct WeightsEntry {
  Shared<u32> state;  // 0 free, 1 used [heap] truth
  u32 pad;
  Shared<i64> newest;  // [heap] truth; read freely by latest(): a stale value only delays it
  Shared<i64> oldest;  // versions below are deleted
  char name[kNameBytes];
  u64 reserved[13];
};
static_assert(sizeof(WeightsEntry) == 256);

// ------------------------------------------------------------------------------------------------- chunks and layouts
enum class ColumnPlace : u32 { kRecord = 0, kColumn = 1, kHeap = 2 };

// A layout: how one row of a stream lies in its chunks. Immutable once published. Behind the columns the block holds a
// text: the names of all columns, one after the other, then dtypes and shapes as JSON.
struct ColumnLayout {
  u32 place;           // ColumnPlace
  u32 row_bytes;       // kRecord, kColumn: bytes of one row; kHeap: bytes of one element
  u32 offset;          // kRecord, kHeap: offset of the value (kHeap: of its HeapSlot) in the row's record
  u32 index;           // kColumn: ordinal among the column-wise ones
  u64 before;          // kColumn: sum of row_bytes of the column-wise columns before this one
  u64 name_bytes = 0;  // of its name in the text
  bool operator==(const ColumnLayout&) const = default;
};
struct LayoutHeader {
  u32 columns;
  u32 record_bytes;
  u32 column_wise;  // how many kColumn columns
  u32 text_bytes;
  u64 column_bytes;        // sum of row_bytes over kColumn columns
  u64 hash;                // of the text: equal layouts are shared
  ColumnLayout column[1];  // `columns` of them, then the text
};
struct HeapSlot {  // in the record of a row: where its variable-length value lies, from the start of the chunk
  u32 offset;
  u32 count;  // elements
};

struct RowMark {   // for 64 rows; derived positions are exact for any row by popcount
  u64 first;       // bit: the row begins an episode
  u64 final;       // bit: the row holds only a final observation
  u32 episodes;    // episodes begun in this chunk before these rows
  i32 last_first;  // row of the last episode begin before these rows, relative to the chunk (negative: earlier chunk)
};
static_assert(sizeof(RowMark) == 24);

// One per table the chunk's writer writes to.
struct Attachment {
  u32 table;             // [once]
  u32 table_generation;  // [once]
  Uses uses;             // of the second table on; the first one's are in the descriptor's summary
  Shared<u32> attached;  // [heap] truth: this table still holds the chunk (1 at creation)
};

struct ChunkHeader {
  u32 layout;             // layout index [once]
  u32 row_capacity;       // [once]
  Shared<u32> published;  // [owner] rows readers may see; release store pairs with acquire loads in views.cc
  Shared<u32> full;       // [owner or reaper] no row will follow in this chunk
  Shared<u32> next;       // [owner] descriptor + 1 of the lane's next chunk; set before the rows that need it publish
  u32 attachments;        // [once]
  u32 stream;             // [once]
  u32 writer;             // [once] client slot: whose items are found stale
  u64 first_episode;      // [once] id of the episode that row 0 continues or begins
  u64 marks_offset;       // [once] from the start of the chunk
  u64 records_offset;
  u64 columns_offset;
  u64 heap_offset;
  u64 heap_end;
  Attachment attachment[1];  // `attachments` of them
};

// Offset, from the start of the chunk, of column-wise column c: rows of equal columns lie together, 64-byte aligned.
inline u64 column_base(const ChunkHeader& chunk, const ColumnLayout& column) {
  return (chunk.columns_offset + u64{chunk.row_capacity} * column.before + 64u * column.index + 63u) & ~u64{63};
}

// ---------------------------------------------------------------------------------------------------------- tables
constexpr u32 kTableSegments = 20;  // item segments; sizes are kept beside the offsets
constexpr u64 kLeastGrowth = 1024;  // slots that a table grows by
constexpr u64 kMostSlots = kSlotMask - 1;

enum class SamplerKind : u32 { kUniform = 0, kFifo, kLifo, kMinHeap, kMaxHeap, kPrioritized, kOnce };
enum class ViewKind : u32 { kStep = 0, kOpaque, kTransition, kSequence, kEpisode };

struct LimiterState {  // Reverb's rule: an insert passes while (inserts + 1) * ratio - samples <= max_diff, below
                       // min_size always; a sample while size >= min_size and inserts * ratio - samples - 1 >= min_diff
  double ratio;
  double min_diff;
  double max_diff;
  i64 min_size;
  i64 inserts;  // counted since the limiter was set; given-back and undrawn removals subtract (queues)
  i64 samples;
  u64 queue;  // 1: queue or stack: removal of an undrawn item gives its insert back; never evict
};

enum class TableState : u32 { kFree = 0, kMaking = 1, kLive = 2, kDropping = 3 };

struct alignas(64) TableHeader {
  LockWord lock;
  Shared<u32> state;       // TableState [directory] truth; read freely
  Shared<u32> generation;  // [heap] +1 at each drop
  char name[kNameBytes];   // [once]
  // truths [table]
  u64 capacity;  // items; ~0 = no limit but bytes
  u64 max_bytes;
  u64 next_number;
  u64 rng_counter;
  u64 seed;
  double max_priority;      // largest ever given, at least 1
  double initial_priority;  // -1: max_priority
  u64 item_bytes;           // reckoned bytes of one item: what a held draw is charged
  u64 epoch;                // Once: the one being drawn
  u64 latest_epoch;         // Once: the last one ever begun; later than `epoch` after draws were given back
  i64 epochs;               // Once: -1 = no last one
  u64 shuffle;
  u64 sampler;  // SamplerKind
  u64 remover;
  double alpha;
  double beta;  // NaN: weights are 1
  u64 stratified;
  u64 normalize_table;
  u64 max_times_sampled;
  i64 max_staleness;  // -1: none
  u64 weights;        // weights entry + 1
  u64 finished;
  u64 total_inserts;
  u64 total_samples;
  u64 total_removed;
  u64 total_updates;
  u64 stale_updates;
  u64 evicted_for_room;
  u64 stale_dropped;
  u64 episodes_cut;
  LimiterState limiter;
  // descriptor + 1 of each item segment, of which each has at least twice the slots of the next; changed with `slots`
  // through the undo record, two in a word
  alignas(8) u32 segment_block[kTableSegments];
  u64 segment_slots[kTableSegments];
  Shared<u32> config_block;  // descriptor + 1: JSON of what create_table was given; read freely
  Shared<u32> schema_block;  // descriptor + 1: JSON; 0 until the first step declares; read freely
  // bytes [heap]
  Shared<u64> reserve_bytes;   // truth: set aside for chunks; more than wanted while a resize to less evicts items
  Shared<u64> reserve_wanted;  // truth: what the next resize starts from
  Shared<u64> reserve_open;    // truth: of the wanted bytes, for what lanes have open: they do not follow the capacity
  Shared<u64> used_bytes;      // derived: chunks attached
  Shared<u64> open_bytes;      // derived: of these, chunks that items to come may need
  Shared<u64> held_bytes;      // derived [also table]: held * item_bytes; made anew by who recovers the table
  Shared<u64> chunk_block;     // truth: bytes that a chunk occupies at least; 0: not known yet
  Shared<u64> used_chunks;     // derived: chunks attached
  // derived [table]
  u64 slots;  // over all segments
  u64 size;   // live items
  u64 held;   // held items
  u64 free_slots;
  Shared<u64> stat_size;  // copies that stats reads freely
  u32 links_block;        // order list, free list: two u32 per slot; renewed together with the four below
  u32 dense_block;
  u32 sampler_block;
  u32 remover_block;
  u32 minimum_block;                // least positive priority, for normalize="table"
  u32 order_head, order_tail;       // slot + 1, by insertion number
  u32 first_live, last_live;        // cursors into the order list past held items
  u32 free_head, free_tail;         // slots, reused first-in-first-out
  u64 dense_count;                  // uniform, once: live slots
  u64 dense_left;                   // once: of these, not yet drawn in this epoch
  u64 remover_count, remover_left;  // the remover's own dense set, where it has one
  u64 writers;                      // open writers
  // waiting: futex words, bumped after the change they announce [any]
  Shared<u32> items_seq;
  Shared<u32> items_waiters;
  Shared<u32> room_seq;
  Shared<u32> room_waiters;
  Shared<u64> last_insert_ns;
  Shared<u64> learned;  // [table] 1: somebody has drawn from it; read freely
  UndoRecord undo;      // [table]

  bool is(TableState wanted) const {  // acquire: what was written before the state is seen
    return state.load(std::memory_order_acquire) == static_cast<u32>(wanted);
  }
  void become(TableState next) { state.store(static_cast<u32>(next), std::memory_order_release); }
};
constexpr u64 kTableHeaderBytes = 16384;
static_assert(sizeof(TableHeader) <= kTableHeaderBytes);

// ---------------------------------------------------------------------------------------------------------- arena
struct ArenaHeader {
  Shared<u64> magic;   // written last
  u32 layout_version;  // [once] from here
  u32 header_bytes;
  char name[kNameBytes];
  u8 uuid[16];
  u64 range_bytes;  // size of the sparse file
  u64 slice_count;
  u64 creator_cgroup;
  u64 seed;
  Offset clients, heap, tables, weights, layouts, slices, bitmaps, data, waits;
  Shared<u32> removed;       // [any] `rm --force`: every call raises StoreClosed
  Shared<u32> layout_count;  // [heap] truth
  LockWord reap_lock;
};

static_assert(std::is_trivially_copyable_v<UndoEntry> && std::is_standard_layout_v<TableHeader> &&
              std::is_standard_layout_v<HeapHeader> && std::is_standard_layout_v<ArenaHeader> &&
              std::is_standard_layout_v<ChunkHeader>);

}  // namespace di
