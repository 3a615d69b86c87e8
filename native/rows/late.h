// Where the late columns of a chunk lie (LateWord in base/layout.h), and how to read and write their values.
#pragma once

#include "base/layout.h"

namespace di {

// The late part of one chunk, by addresses in this process. `words` is null if the chunk has none.
struct LateRows {
  LateWord* words = nullptr;
  Shared<u32>* waiting = nullptr;  // [attachment][row]
  u8* values = nullptr;            // [row][copy]
  u64 bytes = 0;                   // of one copy; 0: `values` is not checked
  u32 rows = 0, tables = 0;

  u8* value(u32 row, u32 copy, const ColumnLayout& column) const {
    return values + (u64{row} * 2 + copy) * bytes + column.offset;
  }
  Shared<u32>& waits(u32 attachment, u32 row) const { return waiting[u64{attachment} * rows + row]; }
};

u64 late_size(u64 rows, u64 tables, u64 late_bytes);               // of the whole part; 0 without late columns
LateRows late_rows(u8* at, u32 rows, u32 tables, u64 late_bytes);  // of a part that begins at `at`; checks nothing
// The same for a part with `bytes` bytes left after `at`. `words` is null if the whole part does not fit there.
// late_bytes 0: without the values.
LateRows late_rows_in(u8* at, u64 bytes, u32 rows, u32 tables, u64 late_bytes);

// Copies the value of a late column, without a lock. All bytes come from one update. Zeros if there is no value yet.
void read_late(const LateRows& late, u32 row, const ColumnLayout& column, u8* to);
// For the writer of a row that no reader sees yet: the row has this value from the start.
void write_late_first(const LateRows& late, u32 row, const ColumnLayout& column, const u8* from);
// The caller holds the locks of all attached tables. set() writes values into the copies that readers don't use; show()
// makes all of them visible in one store.
class LateChange {
 public:
  LateChange(const LateRows& late, u32 row);
  void set(const ColumnLayout& column, const u8* from);
  void show();

 private:
  const LateRows& late_;
  const u32 row_;
  u32 there_, copies_, changes_;
};

}  // namespace di
