#include "replay/growth.h"

#include <algorithm>
#include <cstring>

#include "replay/answers.h"
#include "replay/recovery.h"

namespace di {

// Doubles the slots, or adds 2^22 if that is less, so that rebuilds are few. If there is no memory for that, adds only
// the wanted slots.
void Growth::ensure_slots(u64 wanted, Deadline deadline) {
  for (;;) {
    u64 slots = 0;
    {
      TableGuard guard(core_, deadline);
      if (header_.free_slots >= wanted) return;
      slots = header_.slots;
    }
    const u64 more = std::min<u64>(slots, u64{1} << 22);
    try {
      grow(slots + std::max(wanted, more), deadline);
    } catch (const Error& error) {
      if (error.code() != Code::kCapacity || wanted >= more) throw;
      grow(slots + wanted, deadline);
    }
  }
}

// How many segments stay when `more` slots are added. The smaller segments after them are copied into the new one, so
// that each segment has at least twice as many slots as the next. Because the last one has at least kLeastGrowth slots,
// there are never more than 19.
u32 Growth::segments_kept(u64 more) const {
  u32 kept = 0;
  while (kept < kTableSegments && header_.segment_block[kept] != 0) ++kept;
  while (kept > 0 && header_.segment_slots[kept - 1] < 2 * more) more += header_.segment_slots[--kept];
  return kept;
}

Growth::Plan Growth::plan(u64 slots) const {
  if (slots > kMostSlots) throw Error(Code::kCapacity, "a table holds at most 2^28 items").told();
  Plan plan;
  plan.before = header_.slots;
  plan.slots = std::min(std::max(slots, plan.before + kLeastGrowth), kMostSlots);
  plan.kept = segments_kept(plan.slots - plan.before);
  for (u32 i = plan.kept; i < kTableSegments && header_.segment_block[i] != 0; ++i) {
    require_sound(header_.segment_slots[i] <= kMostSlots);
    plan.moved += header_.segment_slots[i];
  }
  plan.sizes = table_blocks(plan.slots, header_);
  return plan;
}

u64 Growth::bytes_for(u64 slots, Deadline deadline) {
  TableGuard guard(core_, deadline);
  if (header_.slots >= slots) return 0;
  const Plan plan = this->plan(slots);
  const TableBlocks& sizes = plan.sizes;
  u64 total = 0;
  for (const u64 bytes : {plan.segment_slots() * sizeof(Item), sizes.links, sizes.dense, sizes.sampler, sizes.remover,
                          sizes.minimum, sizes.groups})
    total += bytes == 0 ? 0 : Blocks::block_bytes(bytes);
  return total;
}

Growth::NewParts Growth::make_parts(const Plan& plan, NewBlocks& made, Deadline deadline) {
  NewParts parts;
  parts.items = made.add(plan.segment_slots() * sizeof(Item), deadline);
  parts.links = made.add(plan.sizes.links, deadline);
  parts.dense = made.add(plan.sizes.dense, deadline);
  parts.sampler = made.add(plan.sizes.sampler, deadline);
  parts.remover = made.add(plan.sizes.remover, deadline);
  parts.minimum = made.add(plan.sizes.minimum, deadline);
  parts.groups = made.add(plan.sizes.groups, deadline);
  return parts;
}

// Descriptors of the blocks that the new ones replace.
std::vector<u32> Growth::replaced(const Plan& plan) const {
  std::vector<u32> gone;
  for (const u32 old : {header_.links_block, header_.dense_block, header_.sampler_block, header_.remover_block,
                        header_.minimum_block, header_.groups_block})
    if (old != 0) gone.push_back(old - 1);
  for (u32 i = plan.kept; i < kTableSegments && header_.segment_block[i] != 0; ++i)
    gone.push_back(header_.segment_block[i] - 1);
  return gone;
}

// Copies the items of the segments that the new one replaces.
void Growth::copy_items(const Plan& plan, u8* to) const {
  const Heap& heap = core_.arena->heap();
  u64 left = plan.moved;
  for (u32 i = plan.kept; i < kTableSegments && header_.segment_block[i] != 0; ++i) {
    const u64 slots = header_.segment_slots[i], bytes = slots * sizeof(Item);
    require_sound(slots <= left);
    left -= slots;
    std::memcpy(to, heap.meta(header_.segment_block[i] - 1, core_.index, bytes), bytes);
    to += bytes;
  }
}

// Makes new blocks for `slots` slots in all, and frees the blocks that they replace. `also` runs in the same hold,
// before anything changes: if it throws or returns false, nothing changes.
void Growth::grow(u64 slots, Deadline deadline, const std::function<bool()>& also) {
  while (!try_grow(slots, deadline, also)) {
  }
}

// False: another process has grown the table meanwhile. The blocks are made without the table's lock. Items are copied
// under the lock, before the header names the copies. A kill leaves new blocks without a link (freed by the reaper, or,
// if sealed, by the lock's next owner) or the old blocks (freed by the lock's next owner).
bool Growth::try_grow(u64 slots, Deadline deadline, const std::function<bool()>& also) {
  Plan plan;
  {
    TableGuard guard(core_, deadline);
    if (header_.slots >= slots) {
      also();
      return true;
    }
    plan = this->plan(slots);
  }
  NewBlocks made(*core_.arena, core_.index);
  const NewParts parts = make_parts(plan, made, deadline);
  DI_FAULT("table.grow_made");
  TableGuard guard(core_, deadline);
  if (header_.slots != plan.before) return false;
  const std::vector<u32> gone = replaced(plan);
  copy_items(plan, core_.arena->heap().block(parts.items - 1));
  if (!also()) return true;
  core_.change();
  made.seal();
  DI_FAULT("table.grow_copied");
  link_parts(plan, parts);
  core_.refresh();
  TableRecovery(core_).fill();
  try {
    core_.arena->heap().free_meta(gone, core_.index, deadline);
  } catch (...) {
    rethrow_lasting();
    guard.stay_marked();  // the next owner of the lock then frees them: TableRecovery::free_strays()
  }
  return true;
}

// Makes this segment the last one, through the undo record. The record logs 8 bytes at a time, so two block numbers at
// once.
void Growth::link_segment(u32 number, u32 block, u64 slots) {
  for (u32 i = number & ~1u; i < kTableSegments; i += 2) {
    const u32 low = i < number ? header_.segment_block[i] : i == number ? block : 0;
    const u32 high = i + 1 == number ? block : 0;
    core_.undo.set_at(&header_.segment_block[i], u64{high} << 32 | low);
  }
  core_.undo.set(header_.segment_slots[number], slots);
  for (u32 i = number + 1; i < kTableSegments; ++i) core_.undo.set(header_.segment_slots[i], 0);
}

// The words that name segments and the number of slots change together through the undo record: a kill leaves all the
// old ones or all the new ones. The other parts are rebuilt after a kill, so their words may change one by one.
void Growth::link_parts(const Plan& plan, const NewParts& parts) {
  link_segment(plan.kept, parts.items, plan.segment_slots());
  core_.undo.set(header_.slots, plan.slots);
  DI_FAULT("table.grow_linked");
  header_.links_block = parts.links;
  header_.dense_block = parts.dense;
  header_.sampler_block = parts.sampler;
  header_.remover_block = parts.remover;
  header_.minimum_block = parts.minimum;
  header_.groups_block = parts.groups;
  DI_FAULT("table.grow_before_fill");
  core_.undo.commit();
}

bool Growth::resize(const TableSize& size, const SizeSeen* seen, Deadline deadline) {
  for (;;) {
    bool set = false;
    u64 missing = 0;
    patiently(*core_.arena, deadline, [&] {
      grow(size.slots, deadline, [&]() DI_UNCHECKED { return set = set_size(size, seen, &missing, deadline); });
    });
    if (set) break;
    if (missing == 0) return false;
    core_.arena->heap().claims.make_room(missing, deadline);  // takes locks of tables: not under this one
  }
  // From here on the new capacity holds. If a lock is not available now, each insert evicts two items while there are
  // too many, and a reserve that should shrink keeps its size until the table is resized again.
  try {
    while (evict_above(size.capacity, deadline)) {
    }
    if (header_.reserve_wanted.load() < header_.reserve_bytes.load())  // compared again: another resize may have come
      patiently(*core_.arena, deadline, [&] { core_.arena->heap().claims.lower_reserve(core_.index, deadline); });
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  }
  return true;
}

// Runs in the hold that links the new slots, before they are linked. Sets reserve, chunk size and capacity, or none of
// them. If it sets none, *missing is the number of bytes that are short, or 0 if the figures differ. A reserve is
// lowered later, when the surplus items were evicted.
bool Growth::set_size(const TableSize& size, const SizeSeen* seen, u64* missing, Deadline deadline) {
  *missing = 0;
  if (seen != nullptr && (header_.capacity != seen->capacity || header_.reserve_wanted.load() != seen->reserve_wanted ||
                          header_.reserve_open.load() != seen->reserve_open))
    return false;
  *missing = core_.arena->heap().claims.reserve_now(core_.index, size.reserve, deadline);
  if (*missing != 0) return false;
  // CallLimits reads it without the lock.
  __atomic_store_n(&header_.capacity, size.capacity, __ATOMIC_RELAXED);
  core_.room_came().signal(kMaxClients);
  return true;
}

// Evicts up to kBatchStep of the items above the capacity. Returns whether some are left.
bool Growth::evict_above(u64 capacity, Deadline deadline) {
  bool more = false;
  {
    TableGuard guard(core_, deadline);
    core_.change();
    for (u32 i = 0; i < kBatchStep && core_.present() > capacity; ++i) {
      const u32 out = core_.victim();
      if (out == kNone) break;
      commit_if_short(core_, words_to_remove(core_));
      core_.remove(out, GoneFor::kEvicted);
    }
    core_.commit();
    more = core_.present() > capacity && core_.victim() != kNone;
    if (!more) core_.room_came().signal(kMaxClients);
  }
  core_.do_deferred(Deadline::only_try());
  return more;
}

}  // namespace di
