// An item of a table as it lies in shared memory, and the keys that name items. layout.h explains the marks in
// brackets, such as [table].
#pragma once

#include "base/types.h"

namespace di {

// kHeld: at its use limit, drawn, not yet delivered. kWaiting: inserted, but some late columns of its first row are
// missing. Such an item can't be drawn, and enters the order of insertion once they are there. In a table of groups:
// kWaiting: the first answer of a group that is not complete; kMember: any other answer; it is drawn and removed
// together with the group's first answer (replay/groups.h). kLeased: held for one draw until its lease ends (Lease).
enum class ItemState : u32 { kFree = 0, kLive = 1, kHeld = 2, kWaiting = 3, kMember = 4, kLeased = 5 };

// Flags of an item.
constexpr u32 kItemNoNext = 1;    // there is no observation after the last row: next_* repeats the last one
constexpr u32 kItemTerminal = 2;  // the last step terminated: discount 0
constexpr u32 kItemFinished = 4;  // inserted whole: its row has columns for the outputs that are otherwise computed
constexpr u32 kItemCut = 8;       // an episode longer than the view's max_length
constexpr u32 kItemLeftOut = 8;   // in a table of groups: an answer that its group, which is short, is drawn without

// key = slot 28 | generation 28 | shard 8 (bits, lowest first). A table's own keys have shard 0. A mixture, which draws
// from several tables, writes the table's number there and clears it before it passes a key to its table.
constexpr u32 kSlotBits = 28;
constexpr u32 kGenerationBits = 28;
constexpr u32 kShardBits = 8;
constexpr u32 kShardAt = kGenerationBits + kSlotBits;
static_assert(kShardBits + kShardAt == 64);
constexpr u64 kSlotMask = (u64{1} << kSlotBits) - 1;
constexpr u64 kGenerationMask = (u64{1} << kGenerationBits) - 1;
inline u64 make_key(u64 generation, u64 slot) { return (generation << kSlotBits) | slot; }
inline u32 key_slot(u64 key) { return static_cast<u32>(key & kSlotMask); }
inline u64 key_generation(u64 key) { return (key >> kSlotBits) & kGenerationMask; }
inline u32 key_shard(u64 key) { return static_cast<u32>(key >> kShardAt); }

// An item's count of uses stops here: a batch holds it as int32, and no use limit is larger.
constexpr u32 kMostUses = (1u << 31) - 1;
constexpr u32 kItemStateBits = 4;
constexpr u32 kSpanRowsBits = 20, kSpanBackBits = 8, kSpanFlagsBits = 4;
static_assert(32 + kSpanRowsBits + kSpanBackBits + kSpanFlagsBits == 64 && kItemCut < 1u << kSpanFlagsBits);
static_assert(kItemStateBits + kGenerationBits == 32);

constexpr u64 kGroupTickNs = 1 << 24;  // 17 ms

struct Item {  // truth [table]; `state` and `span` change through the undo record, `priority` by one store,
               // the rest only while the slot is free
  // state 4 | generation 28 | 32 bits that depend on the table: undelivered draws (with a use limit), low bits of the
  // epoch in which the item joined (with Once), or undelivered draws 8 | epoch 24 (with both). Of a kWaiting item in a
  // table of groups: when the group began, in units of kGroupTickNs of os::boot_ns(), rounded up
  u64 state;
  u64 number;       // insertion number, from 1
  double priority;  // an update is one store, so it needs no undo
  i64 version;      // of the weights that made it; -1: unknown
  u64 place;        // first row 32 | chunk descriptor 32
  u64 span;         // uses 32, at most kMostUses | rows 20 | back 8 (rows before the item's own first step) | flags 4;
                    // kMember: in place of the uses the slot of the group's first answer

  // `state`
  static constexpr u64 kStateMask = (u64{1} << kItemStateBits) - 1;
  bool is(ItemState wanted) const { return (state & kStateMask) == static_cast<u64>(wanted); }
  bool is_sound() const { return (state & kStateMask) <= static_cast<u64>(ItemState::kLeased); }
  u64 generation() const { return state >> kItemStateBits & kGenerationMask; }
  u64 key(u32 slot) const { return make_key(generation(), slot); }
  bool has_key(u64 key) const { return !is(ItemState::kFree) && generation() == key_generation(key); }
  u64 state_as(ItemState other) const { return (state & ~kStateMask) | static_cast<u64>(other); }
  u64 state_of_group_begun(u64 now_ns) const {
    return (state_as(ItemState::kWaiting) & ~u32{0}) | (now_ns / kGroupTickNs + 1) << 32;
  }
  u64 group_began_ns(u64 now_ns) const {  // right for 400 days
    const u64 now = now_ns / kGroupTickNs;
    const i32 ticks = static_cast<i32>(static_cast<u32>(now) - static_cast<u32>(state >> 32));
    return (now - static_cast<u64>(i64{ticks})) * kGroupTickNs;
  }
  static u64 free_state(u64 generation) { return (generation & kGenerationMask) << kItemStateBits; }

  // `place`
  u32 chunk() const { return static_cast<u32>(place >> 32); }
  u32 row() const { return static_cast<u32>(place); }
  static u64 make_place(u32 chunk, u32 row) { return u64{chunk} << 32 | row; }

  // `span`
  u32 uses() const { return static_cast<u32>(span); }
  u32 leader() const { return static_cast<u32>(span); }  // kMember
  u32 rows() const { return static_cast<u32>(span >> 32 & ((1u << kSpanRowsBits) - 1)); }
  u32 back() const { return static_cast<u32>(span >> (32 + kSpanRowsBits) & ((1u << kSpanBackBits) - 1)); }
  u32 flags() const { return static_cast<u32>(span >> (64 - kSpanFlagsBits)); }
  bool is_left_out() const { return (flags() & kItemLeftOut) != 0; }  // in a table of groups
  u64 span_left_out() const { return span | u64{kItemLeftOut} << (64 - kSpanFlagsBits); }
  static u64 span_of_member(u32 leader) { return make_span(1, 0, 0) | leader; }
  static u64 make_span(u32 rows, u32 back, u32 flags) {  // not used yet
    return u64{rows} << 32 | u64{back} << (32 + kSpanRowsBits) | u64{flags} << (64 - kSpanFlagsBits);
  }
};
static_assert(sizeof(Item) == 48);

// Holds one item for one draw (replay/leases.h). Leases lie in a block of their table, in places that are reused.
// `number` is a truth [table] and changes through the undo record, together with the item's state. The rest is written
// while the place is free, or given back; `end_ns` and `holder` change by one store each.
struct Lease {
  u64 number;            // of the draw, kFirstLease or more; kNoLease: the place is free; kGivenBack: see there
  u64 key;               // of the item
  u64 since_ns, end_ns;  // os::boot_ns()
  u32 holder;            // lock_owner_word() of the process, or session_holder() 31 | kLeaseUncounted 1
  u32 next;              // derived: place + 1 of the next lease in its bucket, or of the next free place
};
constexpr u64 kNoLease = 0;
constexpr u64 kGivenBack = 1;  // the item is live again, and is drawn before others
constexpr u64 kFirstLease = 2;
constexpr u64 kLeaseNeverEnds = ~u64{0};      // Lease::end_ns while its batch is not delivered
constexpr u32 kLeaseUncounted = 0x80000000u;  // the limiter was replaced: giving back changes no count of it
static_assert(sizeof(Lease) == 40);

}  // namespace di
