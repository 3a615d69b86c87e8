// A table's settings: columns, limiter, exponents, whether it is finished. Each may change while the table is in use,
// under the table's lock.
#pragma once

#include <string>

#include "replay/draws.h"

namespace di {

// The counts of a table that an export keeps besides settings and items.
struct RestoredCounts {
  u64 epoch, latest_epoch;  // Once
  u64 rng_counter;
  double max_priority;
  u64 max_bytes;
};

class TableSettings {
 public:
  TableSettings(TableCore& core, Draws& draws) : core_(core), draws_(draws), header_(core.header) {}

  // Both read without a lock; they throw kTableNotFound once the table is dropped.
  std::string config() const { return text(header_.config_block); }
  std::string schema() const { return text(header_.schema_block); }  // "" until the columns are declared
  // Declares the columns. False: the table has columns already.
  bool declare_schema(const std::string& text, const Reserve& reserve, u64 item_bytes, Deadline deadline);
  // Null leaves a setting unchanged; beta NaN: all weights are 1. `opens`: the table was filled by an import, or by a
  // restore with another limiter. Until an import is over, this throws kStoreError, and so do finish(), reset() and
  // require_filled(). kTableNotFound if another node has the table. A Pace stays one, of the same weights.
  void configure(const LimiterState* limiter, const double* alpha, const double* beta, const i64* max_staleness,
                 Deadline deadline, bool opens = false);
  void require_filled() const;
  void finish(Deadline deadline);
  void give_up(Deadline deadline);  // another node has taken the table over: require_not_taken_over()
  // Call when all items of the table were restored: `keys` has them in order of insertion.
  void restore(const RestoredCounts& counts, std::span<const u64> keys, Deadline deadline);
  u64 keep_gone_keys(Deadline deadline);  // starts to keep them; returns how many were kept before
  void reset(Deadline deadline);          // removes every item and sets all counts to 0

 private:
  std::string text(const Shared<u32>& block) const;
  bool try_declare(const std::string& text, const Reserve& reserve, u64 item_bytes, Deadline deadline);
  void require_alpha(double alpha);
  void set_limiter(const LimiterState& fresh);
  void count_anew();
  void announce();

  TableCore& core_;
  Draws& draws_;
  TableHeader& header_;
};

}  // namespace di
