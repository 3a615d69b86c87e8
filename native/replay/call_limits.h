// The most that one call may write. A larger call is refused as a whole, before anything is written or evicted for it.
#pragma once

#include <functional>
#include <string>

#include "replay/row_room.h"

namespace di {

class CallLimits {
 public:
  CallLimits(WriterState& state, RowRoom& room) : state_(state), room_(room) {}

  bool few_items(const WriterCall& call) const;  // true: surely no more than its tables hold
  // Throws kInvalid where the call's pending items are more than a table's capacity: the last would evict the first. A
  // queue would need more than its reserve.
  void refuse_more_than_fit(const WriterCall& call) const;
  // Throws kCapacity, or what `write` does. Where bounds don't decide it, `write` runs once as a rehearsal, which tells
  // exactly which items and chunks the call makes.
  void refuse_what_never_fits(const WriterCall& call, const std::function<bool()>& write, Deadline deadline);

 private:
  bool fits_surely(const WriterCall& call, Deadline deadline) const;
  bool fits_store(const WriterCall& call, u64 bytes, Deadline deadline, std::string* why) const;
  u64 most_bytes(const WriterCall& call) const;
  u64 most_heap_bytes(const WriterCall& call) const;
  std::size_t lanes_with_items(u32 table) const;

  WriterState& state_;
  RowRoom& room_;
};

}  // namespace di
