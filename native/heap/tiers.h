// How much a store with a disk tier can hold in memory and on disk together, and how much of that is taken. Under the
// heap's lock.
//
// Tables set a part aside. Everything else, such as objects, and item slots (which must lie in memory), leaves less for
// further tables. But nothing is set aside for it: tables of a restored store get what they had, however many objects
// were put later. All figures follow from the reserves, the bytes in use, `memory=` and `disk_capacity=`.
#pragma once

#include "heap/disk_space.h"

namespace di {

struct Reserve {  // what a table sets aside for chunks
  u64 bytes = 0;
  u64 open_bytes = 0;   // of these, for chunks that lanes have open: independent of the capacity
  u64 chunk_block = 0;  // bytes that a chunk occupies at least; 0: not known, or unchanged
  u64 chunk_head = 0;   // of its head; 0: likewise
};

Reserve reserve_of(const TableHeader& table);
// The part of a reserve that must lie in memory: all of it, or with a disk tier its heads and open chunks.
u64 in_memory(const Memory& memory, const Reserve& reserve);
// The bytes of memory and disk that a reserve takes together, if its rows are `expect` times smaller on disk. There
// head and body of a chunk each begin at a page, and a file has the head once more at its end (tier/segment_format.h).
u64 in_tiers(const Reserve& reserve, double expect);
u64 in_tiers(const TableHeader& table, const Reserve& reserve);
constexpr u64 kRecordHeaderBytes = 64;
u64 own_tiers(const TableHeader& table);  // with the table's own reserve
u64 share_of(const TableHeader& table);   // and with its held draws

u64 reserved_in_tiers(const Memory& memory);                       // by all tables
u64 left_in_tiers(const Memory& memory, u64 spendable);            // for further tables, of `spendable` bytes of memory
u64 others_in_tiers(const Memory& memory, const DiskSpace& disk);  // everything but rows
// Left for a further table: others_in_tiers() is subtracted too, unless the store is being made again.
u64 left_for_tables(const Memory& memory, const DiskSpace& disk, u64 spendable, bool again);

// usable_disk(): how many of the bytes that files may take are sure to hold needed records. Files also hold unneeded
// records, and the end of each file stays unused. least_disk() is the inverse: the capacity for `total` bytes, of which
// `in_memory` lie in memory.
u64 usable_disk(u64 capacity);
u64 least_disk(u64 total, u64 in_memory);

}  // namespace di
