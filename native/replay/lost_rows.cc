#include "replay/lost_rows.h"

#include <map>
#include <set>
#include <unordered_map>

#include "replay/answers.h"
#include "tier/table_locks.h"

namespace di {
namespace {

constexpr u64 kSlotsAHold = 4096;
constexpr u64 kPatienceNs = 1'000'000'000;  // wait for the lock of a table

using Uids = std::unordered_map<u32, u64>;  // by descriptor: the uid of the chunk when it was lost

// The lost items of one table. While the table's lock is held, an item holds its chunks, so their descriptors may be
// read.
class LostItems {
 public:
  LostItems(TableCore& core, const Uids& lost) : core_(core), memory_(core.arena->heap().chunk_memory), lost_(lost) {}

  u64 remove(Deadline deadline) {
    u64 removed = 0, slots = 1;
    for (u64 slot = 0; slot < slots;) {
      {
        TableGuard guard(core_, deadline);
        slots = core_.items.slots();
        removed += remove_some(&slot, std::min(slots, slot + kSlotsAHold));
        core_.charge_held_soon();
      }
      core_.do_deferred(Deadline::only_try());
    }
    return removed;
  }

 private:
  u64 remove_some(u64* slot, u64 stop) DI_REQUIRES(core_.lock) {
    u64 removed = 0;
    for (; *slot < stop && removed < kBatchStep; ++*slot) {
      const u32 at = static_cast<u32>(*slot);
      const Item& item = core_.items[at];
      if (item.is(ItemState::kFree) || !needs_lost(item)) continue;
      if (removed++ == 0) core_.change();
      commit_if_short(core_, words_to_remove(core_));
      core_.remove(core_.groups.on() ? core_.groups.item_of(at) : at, GoneFor::kLost);
      DI_FAULT("table.lost_item");
    }
    if (removed == 0) return 0;
    core_.commit();
    core_.room_came().signal(kMaxClients);
    core_.arena->tier_header().damaged_items.fetch_add(removed, std::memory_order_relaxed);
    return removed;
  }

  bool needs_lost(const Item& item) const {
    u32 chunk = item.chunk();
    for (u32 left = core_.chunks.covered(chunk, item.row(), item.rows()); left != 0 && chunk != kNone; --left) {
      if (const auto found = lost_.find(chunk); found != lost_.end() && memory_.tier(chunk)->uid == found->second)
        return true;
      if (left > 1) chunk = memory_.head(chunk).next.load(std::memory_order_acquire) - 1;
    }
    return false;
  }

  TableCore& core_;
  const ChunkMemory& memory_;
  const Uids& lost_;
};

// Finds the tables of a chunk, if the chunk still exists.
void find_tables(Heap& heap, const LostBody& lost, std::set<u32>* tables, Deadline deadline) {
  HeapGuard guard(heap, deadline);
  const u64 word = heap.descriptor(lost.chunk).word.load();
  if (word_kind(word) != ObjectKind::kChunk || word_state(word) != ObjectState::kSealed) return;
  if (!heap.chunk_memory.has_attachments(lost.chunk) || heap.chunk_memory.tier(lost.chunk)->uid != lost.uid) return;
  for (const u32 table : tables_of(heap, lost.chunk)) tables->insert(table);
}

}  // namespace

LostRows drop_lost_rows(const std::shared_ptr<Arena>& arena, bool marked, Deadline deadline) {
  LostRows done;
  if (arena->tier() == nullptr) return done;
  LostBodies& bodies = arena->tier()->lost();
  const std::vector<LostBody> lost = bodies.collect(marked, deadline);
  try {
    Uids uids;
    std::set<u32> tables;
    for (const LostBody& body : lost) {
      if (body.chunk == kNone) continue;
      uids[body.chunk] = body.uid;
      find_tables(arena->heap(), body, &tables, deadline);
    }
    const TableDirectory directory(arena);
    for (const std::string& name : tables.empty() ? std::vector<std::string>{} : directory.names()) {
      const std::shared_ptr<Table> table = directory.find(name);
      if (table == nullptr || !tables.contains(table->index())) continue;
      try {
        done.items += LostItems(table->core, uids).remove(deadline.at_most(kPatienceNs));
      } catch (const Error& error) {
        if (error.code() == Code::kTimeout)
          bodies.put_back(lost);
        else if (error.code() != Code::kTableNotFound)  // the table was dropped meanwhile, and its items with it
          throw;
      }
    }
  } catch (...) {
    bodies.put_back(lost);
    throw;
  }
  for (const LostBody& body : lost)
    if (!body.what.empty()) done.what.push_back(body.what);
  return done;
}

}  // namespace di
