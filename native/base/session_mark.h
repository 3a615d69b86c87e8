// How far the calls of a remote writer's session have come in one table (replay/session_marks.h). A session numbers its
// calls from 1; a call writes the mark in the same hold of the table's lock as its items, through the undo record. So
// after any death the mark and the items agree. The mark of a client's session has no calls: it holds leases.
//
// layout.h explains the words in brackets.
#pragma once

#include <cstddef>
#include <type_traits>

#include "base/types.h"

namespace di {

// MarkWord: `done 20 | complete 1 | seq 43`. seq: the last call that has inserted items into the table; 0: none has.
// done: how many of its items are in. complete: these are all.
constexpr u32 kMarkDoneBits = 20;
constexpr u64 kMostMarkItems = (u64{1} << kMarkDoneBits) - 1, kMarkComplete = kMostMarkItems + 1;
constexpr u64 kMostMarkSeq = (u64{1} << (63 - kMarkDoneBits)) - 1;
inline u64 mark_word(u64 seq, u64 done, bool complete) {
  return seq << (kMarkDoneBits + 1) | (complete ? kMarkComplete : 0) | done;
}
inline u64 mark_seq(u64 word) { return word >> (kMarkDoneBits + 1); }
inline u64 mark_done(u64 word) { return word & kMostMarkItems; }
inline bool mark_is_complete(u64 word) { return (word & kMarkComplete) != 0; }

// Who may write a mark: `process 31 | used 1 | claim 32`. process: lock_owner_word() of the process whose writer has
// claimed it; 0: that writer was closed. claim: +1 each time a writer claims the mark, also after it was free. So if
// another writer has claimed the mark since, the first one finds a different word.
constexpr u64 kMarkUsed = u64{1} << 31;
inline u64 mark_owner(u32 claim, u32 process) { return u64{claim} << 32 | kMarkUsed | process; }
inline u32 mark_claim(u64 owner) { return static_cast<u32>(owner >> 32); }
inline u32 mark_process(u64 owner) { return static_cast<u32>(owner & (kMarkUsed - 1)); }
inline bool mark_is_used(u64 owner) { return (owner & kMarkUsed) != 0; }

struct alignas(64) SessionMark {  // truth
  u8 session[16];                 // [directory, while it is not used] uuid
  u32 table;                      // [directory, while it is not used] index
  u32 generation;       // [directory, while it is not used] of the table: a mark of a dropped table is ignored
  Shared<u64> word;     // [table, through its undo record; directory, while it is not used] MarkWord
  Shared<u64> used_ns;  // [table, directory] CLOCK_BOOTTIME of the last claim or call; a hint: which mark to reuse
  Shared<u64> owner;    // [directory; of a used one also the table's lock, if the table lives]
  u64 reserved[2];
};
static_assert(sizeof(SessionMark) == 64);
static_assert(offsetof(SessionMark, word) == 24 && std::is_standard_layout_v<SessionMark>);

constexpr u32 kMaxMarks = 4096;
constexpr u32 kMarkStep = 64;  // marks are committed a page at a time

}  // namespace di
