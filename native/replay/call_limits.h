// The most that one call may write. A larger call is refused completely, before anything is written or evicted for it.
#pragma once

#include <functional>
#include <string>

#include "replay/row_room.h"

namespace di {

class CallLimits {
 public:
  CallLimits(WriterState& state, RowRoom& room) : state_(state), room_(room) {}

  bool few_items(const WriterCall& call) const;  // true: certainly no more items than each of its tables holds
  // Throws kInvalid if the call's pending items are more than a table's capacity: the last item would evict the first,
  // and a queue would need more than its reserve.
  void refuse_more_than_fit(const WriterCall& call) const;
  // Throws kCapacity if the call can never fit, and the errors of `write`. If upper bounds don't show that the call
  // fits, `write` runs once as a rehearsal, which counts exactly the items and chunks that the call would make.
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
