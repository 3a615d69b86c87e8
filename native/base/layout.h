// Every byte that lies in shared memory. docs/shm_format.md draws the same map with offsets.
//
// Each field says who writes it, and under which lock:
//   [once]   before other processes see it, then never    [heap]  under the heap lock
//   [table]  under that table's lock                      [owner] by the process that owns the slot or chunk, no lock
//   [any]    by any process, atomically, no lock           [directory] under the directory's lock
// It also says whether the field is "derived" (a rebuild recomputes it) or a truth. Readers hold the same lock, unless
// the field says "read freely": then they may see an old value, which is harmless.
//
// Parts of a word are listed from its lowest bit up, with their number of bits: `kind 3 | dropped 1 | …`.
#pragma once

#include <cstddef>
#include <type_traits>

#include "base/chunk_layout.h"
#include "base/item.h"
#include "base/session_mark.h"
#include "base/tier_layout.h"

namespace di {

// A place in the arena. Pointers never enter shared memory; Mapping::at() turns an Offset into an address.
struct Offset {
  u64 value = 0;
  explicit operator bool() const { return value != 0; }
  Offset operator+(u64 bytes) const { return Offset{value + bytes}; }
  bool operator==(const Offset&) const = default;
};

constexpr u64 kMagic = 0x45524f5453494401;      // "\1DISTORE"
constexpr u64 kBeingMade = 0x45524f5453494400;  // in place of kMagic until the store is complete
constexpr u32 kLayoutVersion = 27;
constexpr u64 kPageBytes = 4096;
constexpr u64 kSliceBytes = 2u << 20;
constexpr u64 kPagesPerSlice = kSliceBytes / kPageBytes;
constexpr u64 kMinBlockBytes = 256;
constexpr u64 kBlockWords = kSliceBytes / kMinBlockBytes / 64;  // words of a slice's block bitmap, at most
constexpr u32 kMaxClients = 1024;
constexpr u32 kMaxTables = 256;
constexpr u32 kMaxWeights = 256;
constexpr u32 kMaxLayouts = 1024;
constexpr u32 kNameBytes = 128;
constexpr u32 kNone = 0xffffffffu;             // no slot, no descriptor, no column
constexpr u64 kClientLockBase = u64{1} << 62;  // record-lock byte of client slot 0; far beyond any data

// ---------------------------------------------------------------------------------------------------------- locks
struct LockWord {
  Shared<u32> word;   // [any] 0: free; else lock_owner_word() of the owner; top bit: a waiter sleeps on it
  Shared<u32> dirty;  // [lock's owner] not 0: the owner is changing derived state; if it dies, the next one rebuilds it
};

// Undo record: old values of 8-byte words, so that several words change together. Order of writes: the entry, then
// `count`, then the word itself; a commit is one store of count = 0. If the lock's owner dies before that, the next
// owner restores the old values, last entry first. [lock's owner]
constexpr u32 kUndoEntries = 768;
struct UndoEntry {
  u64 offset;  // of the word, from the start of the file
  u64 value;   // before the change
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
  Shared<u32> generation;  // [who frees the slot: its process, or the reaper] +1 each time
  Shared<u32> pid;         // [owner] read freely (tools)
  u32 pad;
  Shared<u64> start_time;  // [owner] of the process, in clock ticks since boot: tells it from a later one with this pid
  Shared<u64> pid_ns;      // [owner] inode of the pid namespace
  Shared<u64> cgroup;      // [owner] hash of the memory cgroup's path
  Shared<u32> ledger;      // [owner, under heap lock] first ledger block's descriptor + 1
  Shared<u32> role;        // [owner] bit set: 1 writer, 2 learner, 4 tool
  Shared<u64> stale_dropped;  // [any] items this process wrote that were dropped as stale
  Shared<u64> drawn[4];  // [owner, under the table's lock] bit i: it has drawn from table i; cleared with the table
  u64 reserved[18];
};
static_assert(sizeof(ClientSlot) == 256);

enum class WaitKind : u32 { kNothing = 0, kLock, kRoom, kItems, kLimiter, kObject, kWeights, kMemory, kTable };

// What one blocked call of a process waits for; read freely by stats. It is written when the call begins to wait and
// freed when the call ends. If its process has died, any process may take the slot.
constexpr u32 kMaxWaits = 1024;  // waits of further threads are not listed
struct WaitSlot {
  Shared<u64> owner;  // [any, CAS] being written 1 | client slot + 1 11 | its generation 20 | thread id 32; 0: free
  Shared<u64> since_ns;
  Shared<u32> kind;  // WaitKind
  Shared<u32> table;
  Shared<u32> culprit;  // client slot + 1
  Shared<u32> wanted;   // kRoom: bytes that it finds no room for, in units of kWantedUnit, rounded up; 0: not known
};
constexpr u64 kWantedUnit = 256;
static_assert(sizeof(WaitSlot) == 32);

// One ledger entry justifies one count, so that others can lower the count if the process dies. what == 0: free.
// The owner writes `ref` first, then `what`.
// kPin: an object is being read; kOwn: an object is being written (creating) or a chunk is open; kDraw: an item was
// drawn and not yet delivered; kWriter: a writer of that table is open; kRead: rows of an item are being peeked at.
// Entries of kind pin and own change under the heap lock, the others under their table's lock; only the `dropped` bit
// is also set without a lock, by destructors. A client slot keeps its ledger blocks for ever, so any process may walk
// them.
enum class LedgerKind : u32 { kFree = 0, kPin = 1, kOwn = 2, kDraw = 3, kWriter = 4, kRead = 5 };
struct LedgerEntry {
  Shared<u64> what;  // kind 3 | dropped 1 | table 8 | chunks 20 | descriptor 32 (draw: first chunk; kNone once copied)
  Shared<u64> ref;   // pin, own: the descriptor's generation; draw: the item's key
};
// The most chunks that a draw's entry can count. If a draw covered more, the reaper would release too few uses. A lane
// may leave some chunks that have no rows, so kMaxWindowRows stays below this by kMostEmptyChunks.
constexpr u32 kMostChunks = (1u << 20) - 1;
constexpr u32 kMostEmptyChunks = 1024;
constexpr u64 kLedgerDropped = 8;
static_assert(static_cast<u32>(LedgerKind::kRead) < 8 && kMaxTables <= 256);
inline u64 ledger_what(LedgerKind kind, u32 table, u32 descriptor, u32 chunks = 0) {
  return u64{static_cast<u32>(kind)} | u64{table} << 4 | u64{chunks} << 12 | u64{descriptor} << 32;
}
inline LedgerKind ledger_kind(u64 what) { return static_cast<LedgerKind>(what & 7); }
// Whether entries of the kind hold chunks of a table.
inline bool holds_chunks(LedgerKind kind) { return kind == LedgerKind::kDraw || kind == LedgerKind::kRead; }
inline u32 ledger_table(u64 what) { return static_cast<u32>(what >> 4 & 0xff); }
inline u32 ledger_chunks(u64 what) { return static_cast<u32>(what >> 12 & kMostChunks); }
inline u32 ledger_descriptor(u64 what) { return static_cast<u32>(what >> 32); }
constexpr u32 kBriefPin = 1;  // in place of the table of a kPin: forked children do not repeat this pin
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

// Slice::filler: the process that adds pages to the slice without holding the heap's lock, by a collapse or a commit
// ahead; its lock_owner_word(). kFillEnded: it adds no more. 0: there is none. Pages that others punch meanwhile may
// come back uncharged, so the slice is settled afterwards: by the filler, or, once the fill has ended or the filler is
// dead, by the next process that meets the slice.
constexpr u32 kFillEnded = 1u << 11;  // like the word of a process that is gone (process/locks.h)
struct Slice {                        // [heap], derived but for `present`
  u64 present[kPagesPerSlice /
              64];  // truth; bit: the page is charged to the budget; the process that charges it commits it
  SliceState state;
  BlockUse use;
  u8 block_class;
  u8 collapsed;  // 1: making a huge page of it was tried; set to 0 when pages are punched
  u32 free_blocks;
  u32 hint;  // bitmap word to look at first
  u32 run;   // slices of the run, at its head
  u32 prev;  // list of slices of this class with a free block
  u32 next;
  Shared<u32> filler;  // set and settled under the lock; kFillEnded is stored without it
  u32 pad2[9];
};
static_assert(sizeof(Slice) == 128);

enum class ObjectState : u8 { kFree = 0, kCreating = 1, kSealed = 2, kDoomed = 3 };
enum class ObjectKind : u8 { kData = 0, kChunk = 1, kMeta = 2, kBody = 3 };  // kBody: of a chunk, see ChunkTier

// What a draw needs to know of a chunk, kept in its descriptor. Descriptors lie close together, while the headers of
// chunks of one size map to the same sets of the caches and evict each other.
struct ChunkSummary {
  Uses first_uses;    // of the first table, mostly the only one
  u16 first_table;    // [once] copy of attachment[0].table
  Shared<u16> reads;  // [any] in stores with a disk tier: recent reads, see tier/body_drops.h; a hint
  Shared<u32> rows;   // [heap] published rows, set when the chunk is closed; 0: read the header's `published`
  Shared<u64> body;   // derived; in stores with a disk tier: body_word(); 0: the body is not in memory
};

constexpr u16 kMostReads = 0xffff;

// Where a body begins, how many bytes it has at most, and whether it has a copy on disk. So a batch reads neither the
// chunk's ChunkTier nor the body's descriptor, and a search for bodies to write or to drop skips the others without
// touching their heads. `size 21 | copy 1 | offset 42`: size and offset are in units of 64 bytes, of which every size
// class is a multiple. A body of 128 MiB or more has the largest size.
constexpr u64 kBodyUnit = 64, kBodySizeBits = 21;
constexpr u64 kMostBodyUnits = (u64{1} << kBodySizeBits) - 1, kBodyHasCopy = kMostBodyUnits + 1;
inline u64 body_word(u64 offset, u64 bytes, bool copy) {
  const u64 units = (bytes + kBodyUnit - 1) / kBodyUnit;
  return offset / kBodyUnit << (kBodySizeBits + 1) | (copy ? kBodyHasCopy : 0) |
         (units < kMostBodyUnits ? units : kMostBodyUnits);
}
inline u64 body_offset(u64 word) { return (word >> (kBodySizeBits + 1)) * kBodyUnit; }
inline u64 body_units(u64 word) { return word & kMostBodyUnits; }

struct NameLink {
  u8 id[20];      // of an object
  u32 hash_next;  // derived; of an object or a free descriptor
};

struct Descriptor {  // truth unless said otherwise [heap]
  Shared<u64> word;  // pins 32 | generation 16 | kind 8 | state 8 (pins derived: pin entries of all ledgers)
  u64 offset;        // 0: an object that is in its log alone
  u64 bytes;
  union {
    NameLink name;
    ChunkSummary summary;  // of a chunk
  };
  u32 owner;       // creating: client slot; meta: table index, or one of kOwner…; logged: where its record lies
  u32 flags;       // kFlag…; logged: the entry of its log from bit kLogShift on
  u64 expires_ns;  // 0 = never (CLOCK_BOOTTIME)
};
static_assert(sizeof(Descriptor) == 64);
constexpr u32 kFlagHasId = 1;
constexpr u32 kFlagWeights = 2;  // a version of published weights: not listed by keys()
// Its record lies in an object log (docs/object_log.md): in the log of SegmentEntry `flags >> kLogShift`, `owner` units
// from the start of the file. kFlagDurable: the record also counts for the next store that has the folder.
constexpr u32 kFlagLogged = 4;
constexpr u32 kFlagDurable = 8;
constexpr u32 kFlagRead = 16;  // read lately (tier/object_drops.h); a hint
constexpr u32 kLogShift = 16;
constexpr u64 kLogUnit = 64;

// Descriptor::owner of meta blocks that belong to no table; of a table's blocks it is the table's index.
constexpr u32 kOwnerLedger = 0xfffffff0u;
constexpr u32 kOwnerIndex = 0xfffffff1u;
constexpr u32 kOwnerLayout = 0xfffffff2u;

constexpr u32 kDescriptorSegments = 22;  // segment i holds 1024 << i descriptors
constexpr u32 kFirstDescriptorSegment = 1024;

struct HeapHeader {
  LockWord lock;
  // truths
  Offset segments[kDescriptorSegments];  // descriptor segments; once made they never move or go
  Shared<u64> budget;                    // bytes; changed by resize
  u64 next_stream;
  u64 next_uid;             // the last uid given to a chunk
  Shared<u32> table_count;  // table headers ever committed
  Shared<u32>
      spare_slices;  // at most this many free slices go back to the machine: tables set aside that much less. A hint
  // derived
  Shared<u32> segment_count;  // read freely by sweeps: it only grows, and only once the new segment is ready
  u32 free_head;              // free descriptors, linked by hash_next
  u32 free_count;
  u32 index_block;    // descriptor + 1 of the bucket array
  u64 index_buckets;  // power of two
  u64 live_objects;
  Shared<u64> object_bytes;  // these five: bytes of charged pages, by the use of their slices; read freely by stats
  Shared<u64> chunk_bytes;
  Shared<u64> meta_bytes;
  Shared<u64> free_bytes;     // in free slices
  Shared<u64> fixed_bytes;    // of the headers and tables of fixed size, in no slice
  Shared<u64> live_bytes;     // block bytes of sealed and creating objects
  Shared<u64> pinned_bytes;   // the part of live_bytes in pinned objects
  Shared<u64> pending_bytes;  // of doomed objects, which wait for their last unpin
  Shared<u64> table_charge;   // sum over tables of max(reserve + held, used)
  Shared<u64> deaths;         // clients reaped
  Shared<u64> rebuilds;
  u64 slice_high;                          // slices ever used
  u64 free_low;                            // no free slice below this one
  u32 partial[kBlockUses][kBlockClasses];  // first slice with a free block of this use and class, + 1
  u64 expiring;                            // descriptors with a ttl
  u64 promised;                            // descriptors that the tables' reserves may need
  Shared<u32> sealed_seq;                  // [any] futex: +1 when an object is sealed or a version published
  Shared<u32> sealed_waiters;
  Shared<u32> room_seq;  // [any] futex: +1 when bytes are freed
  Shared<u32> room_waiters;
};

// --------------------------------------------------------------------------------------------------------- weights
struct WeightsEntry {
  Shared<u32> state;  // 0 free, 1 used [heap] truth
  u32 pad;
  Shared<i64> newest;  // [heap] truth; read freely by latest(): an old value only delays it
  Shared<i64> oldest;  // [heap] truth; versions below are deleted; read freely
  char name[kNameBytes];
  Shared<i64> durable;  // [heap] truth; the newest version on disk; kept even if below `oldest`; 0: none
  Shared<i64> lost;     // [heap] truth; the newest version of the previous store, which is missing here; read freely
  u64 reserved[11];
};
static_assert(sizeof(WeightsEntry) == 256);

// ---------------------------------------------------------------------------------------------------------- tables
constexpr u32 kTableSegments = 20;  // item segments; sizes are kept beside the offsets
constexpr u64 kLeastGrowth = 1024;  // slots that a table grows by, at least
constexpr u64 kMostSlots = kSlotMask - 1;
constexpr u32 kExpectUnit = 1000;  // of TableHeader::expect

enum class SamplerKind : u32 { kUniform = 0, kFifo, kLifo, kMinHeap, kMaxHeap, kPrioritized, kOnce };
enum class ViewKind : u32 { kStep = 0, kOpaque, kTransition, kSequence, kEpisode };

struct LimiterState {  // Reverb's rule: an insert passes while (inserts + 1) * ratio - samples <= max_diff, below
                       // min_size always; a sample while size >= min_size and inserts * ratio - samples - 1 >= min_diff
  double ratio;
  double min_diff;
  double max_diff;
  i64 min_size;
  i64 inserts;  // since the limiter was set; queues: less the items removed before they were drawn
  i64 samples;  // since the limiter was set, less the draws given back
  u64 queue;    // 1: queue or stack: the removal of an item that was never drawn takes its insert back; never evicts
  u64 weights;  // [once] of a Pace: entry + 1 of the weights by whose versions draws are counted (replay/limiter.h); or 0
  i64 since;    // of a Pace: the version from which it counts
};

enum class TableState : u32 { kFree = 0, kMaking = 1, kLive = 2, kDropping = 3 };

struct alignas(64) TableHeader {
  LockWord lock;
  Shared<u32> state;       // TableState; under the directory lock; truth; read freely
  Shared<u32> generation;  // [heap] +1 at each drop
  char name[kNameBytes];   // [once]
  // truths [table]; stats() and the sizes that Python computes read them freely
  u64 capacity;  // items; ~0 = no limit but bytes
  u64 max_bytes;
  u64 next_number;
  u64 rng_counter;
  u64 seed;
  double max_priority;      // the largest ever given, but at least 1
  double initial_priority;  // -1: max_priority
  u64 item_bytes;           // estimated bytes of one item: what each held item is charged
  u64 epoch;                // Once: the one being drawn
  u64 latest_epoch;  // Once: the last one ever begun; later than `epoch` if draws of an earlier one were given back
  i64 epochs;        // Once: how many; -1: no limit
  u64 shuffle;
  u64 sampler;  // SamplerKind
  u64 remover;
  double alpha;
  double beta;  // NaN: weights are 1
  u64 stratified;
  u64 normalize_table;
  u64 max_times_sampled;
  i64 max_staleness;   // -1: none
  u64 weights;         // weights entry + 1
  Shared<u64> expect;  // [once] in thousandths: the expected size of its rows in memory over that on disk
  u64 group_size;      // [once] answers per item of a table of groups; 0: no table of groups
  u64 finished;
  u64 total_inserts;
  u64 total_samples;
  u64 total_removed;
  u64 total_updates;
  u64 stale_updates;
  u64 evicted_for_room;
  u64 stale_dropped;
  u64 episodes_cut;
  u64 unique_groups;           // [once] 1: an answer to a group that is complete or gone makes no item
  u64 short_groups;            // [once] 1: a group that is not complete at its deadline is delivered; 0: dropped
  u64 group_deadline_ns;       // [once] from a group's first answer on; 0: none
  u64 groups_short;            // groups that became live without all their answers
  u64 groups_dropped;          // groups that were removed before they were complete
  u64 late_answers;            // answers to groups that were complete or gone: refused, or the first of a further group
  Shared<u64> steps_left_out;  // a statistic, not locked: steps without an item, for lack of a final observation
  LimiterState limiter;
  // descriptor + 1 of each item segment. A segment has at least twice the slots of the next. Changed together with
  // `slots` through the undo record, two numbers in one 8-byte word.
  alignas(8) u32 segment_block[kTableSegments];
  u64 segment_slots[kTableSegments];
  Shared<u32> config_block;  // descriptor + 1: JSON of what create_table was given; read freely
  Shared<u32> schema_block;  // descriptor + 1: JSON; 0 until the first step declares; read freely
  // bytes [heap]
  Shared<u64> reserve_bytes;  // truth: set aside for chunks; above reserve_wanted while a smaller capacity evicts items
  Shared<u64> reserve_wanted;  // truth: what the table should set aside; the next resize starts from this
  Shared<u64> reserve_open;    // truth: of reserve_wanted, for chunks that lanes have open: independent of the capacity
  Shared<u64> used_bytes;      // derived: chunks attached
  Shared<u64> open_bytes;      // derived: of these, chunks that new items may need
  Shared<u64> dropped_bytes;   // derived: of used_bytes, bodies that are not in memory
  Shared<u64> held_bytes;      // derived [also table]: held * item_bytes; a recovery of the table recomputes it
  Shared<u64> chunk_block;     // truth: bytes that a chunk occupies at least; 0: not known yet
  Shared<u64> chunk_head;      // truth: with a disk tier, bytes of its head; 0: not known yet
  Shared<u64> used_chunks;     // derived: number of chunks attached
  // derived [table]
  u64 slots;     // over all segments
  u64 size;      // live items
  u64 held;      // held items
  u64 waiting;   // items that wait for late columns, and groups that are not complete; not in `size`, nor in the order
                 // of insertion
  u64 gathered;  // of these: groups that have all answers, and wait for late columns
  u64 free_slots;
  Shared<u64> stat_size;  // copies that stats reads freely
  u32 links_block;        // order list, free list: two u32 per slot; growing replaces it and the five below
  u32 dense_block;
  u32 sampler_block;
  u32 remover_block;
  u32 minimum_block;                // least positive priority, for normalize="table"
  u32 groups_block;                 // chains and index of groups (replay/groups.h); 0: no table of groups
  u32 gone_block;                   // ring of keys of items that left (replay/gone_keys.h); 0: nobody asked for it
  u32 ended_block;                  // ring of values of ended groups (replay/ended_groups.h); 0: no table of groups
  u32 order_head, order_tail;       // slot + 1, by insertion number
  u32 waiting_head, waiting_tail;   // slot + 1, by insertion number
  u32 first_live, last_live;        // slot + 1: the oldest and the newest item of the order list that is not held
  u32 free_head, free_tail;         // slots, reused first-in-first-out
  float sample_age;                 // for stats(): see replay/sample_age.h. Below 0: nothing was drawn
  u64 dense_count;                  // uniform, once: live slots
  u64 dense_left;                   // once: of these, not yet drawn in this epoch
  u64 remover_count, remover_left;  // the remover's own dense set, where it has one
  u64 writers;                      // open writers
  u64 gone_count;                   // keys ever put into that ring
  u64 ended_count;                  // truth: values ever put into the ring of ended groups
  Shared<u64> group_due_ns;  // derived: no waiting group is due earlier; 0: look now. Chores look without the lock
  // leases (replay/leases.h)
  u64 leases;          // truth: descriptor + 1 of their block 32 | places in it 32; 0: none was ever taken
  u64 next_lease;      // truth: number of the next draw with a lease
  Shared<u64> leased;  // derived: leased items; chores look at it without the lock
  u64 leased_used_up;  // derived: of these, items at their use limit; they don't count for the capacity
  u64 given_back;      // derived: live items that are drawn before others
  u64 lease_due_ns;    // when to look next for leases to end; 0: now
  u32 lease_free;      // derived: place + 1 of the first free place
  // waiting: futex words, raised by 1 after the change that they announce [any]
  Shared<u32> items_seq;
  Shared<u32> items_waiters;
  Shared<u32> room_seq;
  Shared<u32> room_waiters;
  Shared<u64> last_insert_ns;
  Shared<u64> learned;  // [table] 1: a process has drawn from it; read freely
  UndoRecord undo;      // [table]

  bool is(TableState wanted) const {  // acquire: pairs with become(), so all that was written before it is seen
    return state.load(std::memory_order_acquire) == static_cast<u32>(wanted);
  }
  void become(TableState next) { state.store(static_cast<u32>(next), std::memory_order_release); }
};
constexpr u64 kTableHeaderBytes = 16384;
static_assert(sizeof(TableHeader) <= kTableHeaderBytes);

// ---------------------------------------------------------------------------------------------------------- arena
struct ArenaHeader {
  Shared<u64> magic;   // kBeingMade, last kMagic
  u32 layout_version;  // [once] from here
  u32 header_bytes;
  char name[kNameBytes];
  u8 uuid[16];
  u64 range_bytes;  // size of the sparse file
  u64 slice_count;
  u64 creator_cgroup;
  u64 seed;
  Offset clients, heap, tables, weights, layouts, slices, bitmaps, data, waits, marks;
  Offset tier;               // 0: without a disk tier
  Shared<u32> removed;       // [any] `rm --force`: every call raises StoreClosed
  Shared<u32> layout_count;  // [heap] truth
  u32 fit;                   // [once] 1: new tables raise the budget by what they set aside (memory="fit")
  u32 tiered;                // [once] 1: with a disk tier; chunks have head and body in blocks of their own
  LockWord reap_lock;        // the directory's
  Shared<u32> mark_count;    // [directory and heap] truth: session marks ever committed, whole pages of them
};

static_assert(std::is_trivially_copyable_v<UndoEntry> && std::is_standard_layout_v<TableHeader> &&
              std::is_standard_layout_v<HeapHeader> && std::is_standard_layout_v<ArenaHeader> &&
              std::is_standard_layout_v<ChunkHeader>);

}  // namespace di
