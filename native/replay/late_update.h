// table.update(): writes late columns of items' rows, and ends the waits of items for these columns.
//
// A row may belong to items of every table that its chunk is attached to, so an update holds the locks of all these
// tables, taken in order of their index. It first learns under this table's lock which tables these are, releases that
// lock, and then takes all locks.
//
// A kill leaves each row's values old or new, never torn (rows/late.h). If values are shown already, the items that
// wait for them go on when the next owner of their table's lock recovers the table.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "replay/item_rows.h"
#include "replay/table.h"
#include "rows/chunks.h"
#include "rows/windows.h"

namespace di {

struct LateValue {  // values of one column, for some rows of each item
  u32 column;       // number in LateUpdate's columns
  u64 row_bytes;
  const u8* data;  // [item][row] without gaps
};

// Which of an item's own steps: `count` steps from `first` on. A negative `first` counts from the end. count 0: all
// steps, and `first` is the number of rows of values given for each item.
struct LateRange {
  i64 first = 0;
  u32 count = 1;
  u32 given() const { return count == 0 ? static_cast<u32>(first) : count; }
};

class LateUpdate {
 public:
  LateUpdate(std::shared_ptr<Table> table, const ViewSpec& spec, std::vector<std::string> columns);

  // Returns how many of the items existed. Throws kInvalid for a row that an item lacks, and for a column that is not
  // late; the values of earlier items are set by then.
  // `lease`: acknowledges the items' leases under this number (end_leases()) in the holds that write their values.
  u64 run(std::span<const u64> keys, std::span<const LateValue> values, LateRange range, std::optional<u64> lease,
          Deadline deadline);

 private:
  struct LatePlaces {  // where the columns lie in chunks of one layout
    u64 late_bytes = 0;
    std::vector<ColumnLayout> column;
  };
  u64 update_some(std::span<const u64> keys, u64 first, std::span<const LateValue> values, LateRange range,
                  std::optional<u64> lease, Deadline deadline) DI_UNCHECKED;
  bool learn_tables(std::span<const u64> keys, LateRange range);
  bool learn_tables_of(const Item& item);
  template <class Visit>
  void each_item(u32 slot, LateRange range, Visit visit);
  void list_steps(u32 slot, LateRange range);
  void list_item(const Item& item);
  void write(u64 item, std::span<const LateValue> values, LateRange range);
  void end_waits(RowAt at);
  const LatePlaces& places(u32 layout);
  const Heap& heap() const { return table_->arena().heap(); }

  std::shared_ptr<Table> table_;
  ViewSpec spec_;
  std::vector<std::string> columns_;
  std::map<u32, std::shared_ptr<Table>> tables_;  // by index: the tables whose locks are taken
  std::map<u32, LatePlaces> places_;              // by layout
  std::vector<RowAt> steps_;                      // of one item
};

}  // namespace di
