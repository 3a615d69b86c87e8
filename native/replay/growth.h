// Growing and resizing a table while it is in use: new blocks for more slots, and another capacity.
#pragma once

#include <functional>
#include <vector>

#include "replay/new_blocks.h"
#include "replay/table_core.h"

namespace di {

struct TableSize {  // the parameters of resize(); `slots` is a minimum
  u64 capacity = 0, slots = 0;
  Reserve reserve;
};

struct SizeSeen {  // the figures that a new size was computed from
  u64 capacity = 0, reserve_wanted = 0, reserve_open = 0;
};

class Growth {
 public:
  explicit Growth(TableCore& core) : core_(core), header_(core.header) {}

  void ensure_slots(u64 free_slots, Deadline deadline);  // at least this many; throws kCapacity without memory for them
  // Sets a new size. False: the table's figures differ from `seen`, from which `size` was computed (null: not
  // compared). If it returns false or throws, nothing has changed.
  bool resize(const TableSize& size, const SizeSeen* seen, Deadline deadline);
  u64 bytes_for(u64 slots, Deadline deadline);  // bytes of blocks for this many slots in all; 0: they exist

 private:
  struct Plan {  // how to grow to `slots` slots in all
    u64 before = 0, slots = 0;
    u32 kept = 0;   // segments that are kept
    u64 moved = 0;  // slots of the others: their items are copied into the new segment
    TableBlocks sizes;
    u64 segment_slots() const { return slots - before + moved; }
  };
  struct NewParts {  // descriptor + 1 of each new block; 0: the table has no such part
    u32 items, links, dense, sampler, remover, minimum, groups;
  };
  void grow(u64 slots, Deadline deadline, const std::function<bool()>& also = [] { return true; });
  bool try_grow(u64 slots, Deadline deadline, const std::function<bool()>& also);
  Plan plan(u64 slots) const;
  u32 segments_kept(u64 more) const;
  static NewParts make_parts(const Plan& plan, NewBlocks& made, Deadline deadline);
  std::vector<u32> replaced(const Plan& plan) const;
  void copy_items(const Plan& plan, u8* to) const;
  void link_segment(u32 number, u32 block, u64 slots);
  void link_parts(const Plan& plan, const NewParts& parts);
  bool set_size(const TableSize& size, const SizeSeen* seen, u64* missing, Deadline deadline) DI_REQUIRES(core_.lock);
  bool evict_above(u64 capacity, Deadline deadline);

  TableCore& core_;
  TableHeader& header_;
};

}  // namespace di
