// Where the late columns of a chunk lie (LateWord in base/layout.h), and how their values are read and written.
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
LateRows late_rows(u8* at, u32 rows, u32 tables, u64 late_bytes);  // of a part that begins there; checks nothing
// The same of a part in front of whose end `bytes` bytes are left; `words` is null: it does not lie there as a whole.
// late_bytes 0: without the values.
LateRows late_rows_in(u8* at, u64 bytes, u32 rows, u32 tables, u64 late_bytes);

// Copies the value of a late column, without a lock: all of it is of one update. Zeros if it is not there yet.
void read_late(const LateRows& late, u32 row, const ColumnLayout& column, u8* to);
// For the writer of a row that no reader sees yet: the value is there from the start.
void write_late_first(const LateRows& late, u32 row, const ColumnLayout& column, const u8* from);
// The locks of all attached tables are held: writes values into the copies that readers don't use, and shows them all
// in one store when it is done.
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
