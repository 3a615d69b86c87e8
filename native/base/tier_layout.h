// The disk tier's header and list of files, as they lie in shared memory. layout.h explains the marks in brackets, such
// as [heap].
#pragma once

#include <algorithm>
#include <string>

#include "base/types.h"

namespace di {

// A segment is a file that one process fills with records and then seals (docs/segment_format.md). kEmpty: its file
// exists, and nobody needs its records. The last four: its file is an object log (docs/object_log.md). A passing log
// holds objects that left memory, and ends with the store.
enum class SegmentUse : u32 { kAbsent, kOpen, kSealed, kEmpty, kLog, kSealedLog, kPassingLog, kSealedPassingLog };

struct SegmentEntry {
  Shared<u32> use;    // [heap] SegmentUse; truth. kOpen of a process that is gone counts as kSealed
  Shared<u32> owner;  // [heap] lock_owner_word() of the process that fills it, or that restores a store by linking it
  Shared<u64> bytes;  // [heap] of its file; truth
  u32 file;           // [heap] number of its file, never used for another one; truth
  union {
    Shared<u32> dirty;   // [any] of a log: not 0: records in it were marked as deleted, and the marks may not be on
                         // disk yet
    Shared<u32> filled;  // [heap] of a segment: pages of the records that were ever committed in this use of it. A hint
  };
  u64 incarnation;   // [heap] of this use of the file; truth
  Shared<u64> live;  // [heap] derived: bytes of its records whose chunk or object exists
};
static_assert(sizeof(SegmentEntry) == 40);

constexpr u32 kFolderBytes = 1024;
constexpr u32 kMaxSegments = 32768;
constexpr u32 kLinkedFile = 1u << 31;  // in SegmentEntry::file: another store has written it, and it is not used again
struct TierHeader {
  char folder[kFolderBytes];  // [once] absolute path; a 0 at its end
  Shared<u64> capacity;       // [heap] truth: bytes that the files of the store may take
  u8 uuid[16];                // [once] of the folder
  u64 epoch;                  // [once] of the folder: how often a store was opened on it
  u64 next_incarnation;       // [heap] truth
  u32 next_file;              // [heap] truth
  u32 pad0;
  Shared<u64> file_bytes;    // [heap] derived: of all segments
  Shared<u64> live_bytes;    // [heap] derived: likewise
  Shared<u64> raw_bytes;     // [heap] derived: of the bodies in them, unpacked
  Shared<u64> clean_bytes;   // [heap] derived: of bodies in memory that have a copy on disk
  Shared<u32> segment_high;  // [heap] entries ever used
  u32 hand, drop_hand;       // [heap] where the next search for bodies to write, and to drop, begins; any value will do
  Shared<u32> mover;         // [heap] lock_owner_word() of the process that copies bodies forward; 0: nobody does
  Shared<u64> empty_bytes;   // [heap] derived: of file_bytes, those of empty segments
  Shared<u64> sync_every_ms;  // [any] how old the durable copy of tables may become; 0: there are no durable tables
  Shared<u64> next_record;    // [any] truth: the number of the last record of an object log
  Shared<u64> written_bytes;  // [any] from here on counts for stats
  Shared<u64> written_bodies;
  Shared<u64> dropped_bodies;
  Shared<u64> read_bytes;
  Shared<u64> read_calls;
  Shared<u64> loaded_batches;
  Shared<u64> loaded_ahead;
  Shared<u64> stalled_ns;
  Shared<u64> moved_bytes;  // of written_bytes, records that were copied forward
  Shared<u64> moved_bodies;
  Shared<u64> drawn_cold;      // items of drawn batches that were read from disk
  Shared<u64> write_budget;    // [any] bytes a day that may be written; 0: any number
  Shared<u64> paid_ns;         // [any] when the budget will have paid for all bytes written (tier/write_budget.h)
  u64 made_ns;                 // [once] when the store was made, by the clock of os::now_ns()
  Shared<u64> damaged_chunks;  // chunks whose bodies could not be read
  Shared<u64> damaged_items;   // items that were removed for that reason
  u32 object_hand;             // [heap] like drop_hand, for objects
  Shared<u32> ended;           // [any] client slot + 1 of the process that leaves last and removes the files: no new
                               // ones
  Shared<u32> idle_logs;       // [any] 1: a log was found that nobody needs; a hint
  u32 pad1;
  Shared<u64> away_objects;    // [heap] derived: objects that are not in memory
  Shared<u64> away_bytes;      // [heap] derived: their bytes
  Shared<u64> loaded_objects;  // objects ever read for get()
  SegmentEntry segment[kMaxSegments];
};
inline std::string folder_of(const TierHeader& tier) {  // works with a damaged header too
  return {tier.folder, std::find(tier.folder, tier.folder + kFolderBytes, '\0')};
}

}  // namespace di
