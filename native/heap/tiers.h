// What a store with a disk tier can hold in memory and on disk together, and who takes how much of that. Under the heap's lock.
//
// Tables set a part aside. What else is there takes a part from further tables: item slots and the like, which must lie in memory,
// and objects. But that is not promised to anybody: tables of a store that is made again get what they had, however many objects
// came after them. All follows from the reserves, the bytes in use, `memory=` and `disk_capacity=`.
#pragma once

#include "heap/disk_space.h"

namespace di {

struct Reserve {  // what a table sets aside for chunks
  u64 bytes = 0;
  u64 open_bytes = 0;   // of these, for what lanes have open: it does not follow the capacity
  u64 chunk_block = 0;  // bytes that a chunk occupies at least; 0: not known, or as it is
  u64 chunk_head = 0;   // of its head; 0: likewise
};

Reserve reserve_of(const TableHeader& table);
// What such a reserve keeps in memory: all of it, or with a disk tier its heads and open chunks.
u64 in_memory(const Memory& memory, const Reserve& reserve);
// What it takes of both, if on disk its rows are so many times smaller. Head and body of a chunk each begin at a page there, and
// a file has the head once more at its end (tier/segment_format.h).
u64 in_tiers(const Reserve& reserve, double expect);
u64 in_tiers(const TableHeader& table, const Reserve& reserve);
constexpr u64 kRecordHeaderBytes = 64;
u64 own_tiers(const TableHeader& table);  // with the one that it has
u64 share_of(const TableHeader& table);   // and with its held draws

u64 reserved_in_tiers(const Memory& memory);                       // by all tables
u64 left_in_tiers(const Memory& memory, u64 spendable);            // for further ones, of so many bytes of memory
u64 others_in_tiers(const Memory& memory, const DiskSpace& disk);  // what is no row
// For a further table: beside the others too, unless the store is being made again.
u64 left_for_tables(const Memory& memory, const DiskSpace& disk, u64 spendable, bool again);

// Of the bytes that files may take, those that what exists may count upon: files also hold what is gone, and each has a rest
// that nothing fits in. And the other way: the files for `total` bytes, beside `in_memory` bytes of them.
u64 usable_disk(u64 capacity);
u64 least_disk(u64 total, u64 in_memory);

}  // namespace di
