// A table as one process sees it: inserts items, updates their priorities, removes them. Its parts do the rest: draws,
// reads, growth, settings.
//
// Calls don't wait for limiters: Python decides how long to wait, and words the Timeout. table_core.h says how holds of
// the table's lock change its words, and what a kill leaves.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "replay/draws.h"
#include "replay/growth.h"
#include "replay/mark_update.h"
#include "replay/reads.h"
#include "replay/settings.h"
#include "replay/table_core.h"

namespace di {

constexpr u64 kNoItem = ~u64{0};

struct NewItem {
  u32 chunk;
  u32 row;
  u32 rows;
  u32 back;
  u32 flags;
  i64 version;
  double priority;               // NaN: the table's default
  Shared<u32>* waits = nullptr;  // not null: a late column is missing; the word that notes its slot (rows/late.h)
  u32 uses = 0;
  i64 epochs = -1;  // Once: number of epochs over for it; -1: it joins the running one
  u64 group = 0;    // in a table of groups: the value that groups it
};

class Table : public std::enable_shared_from_this<Table> {
 public:
  Table(std::shared_ptr<Arena> arena, u32 index)
      : core(std::move(arena), index),
        draws(core),
        reads(core, draws),
        growth(core),
        settings(core, draws),
        header_(core.header) {}

  void begin_empty();  // fills the derived parts of a new table, before other processes can find it

  // --- inserting. The writer holds the locks of all its tables, taken in order of index.
  std::string why_no_insert() DI_REQUIRES(core.lock);  // "" if one item may pass now
  // Inserts at most kBatchStep items. The key kNoItem marks an item that was refused because its group has ended.
  // `mark`: the mark of the session that makes the call; each commit of items updates it with them.
  void insert(std::span<const NewItem> items, std::vector<u64>* keys, const MarkUpdate* mark = nullptr)
      DI_REQUIRES(core.lock);
  // Evicts to make room for a new chunk: up to kBatchStep items that the remover picks, until a chunk can be freed. It
  // evicts none if a chunk can be freed already, and never evicts from a queue or stack. With a disk tier it also stops
  // at a chunk that only readers keep. Budget::evictable() says which table evicts. kItemsBeingRead: the last reader
  // will free the chunk. kItems: other items were evicted.
  enum class Evicted : u8 { kNothing, kItems, kItemsBeingRead };
  Evicted evict_for_room(Deadline deadline);

  u64 update_priorities(std::span<const u64> keys, std::span<const double> priorities, Deadline deadline);
  u64 remove(std::span<const u64> keys, Deadline deadline);

  u64 check(bool repair, Deadline deadline, std::vector<std::string>* findings);
  // Returns when no process is recovering the table: then no undo record of a dead process is left.
  void await_recovery(Deadline deadline);

  TableHeader& header() const { return header_; }
  u32 index() const { return core.index; }
  u32 generation() const { return core.generation; }
  const std::string& name() const { return core.name; }
  bool live() const { return core.live(); }
  void require_live() const { core.require_live(); }
  Arena& arena() const { return *core.arena; }

  TableCore core;
  Draws draws;
  Reads reads;
  Growth growth;
  TableSettings settings;

 private:
  // Runs before an insert into a full table, in the same hold. Evicts what the remover picks: two items if a shrunk
  // table has too many, and one more if there is no free slot. Evicts nothing if no item is live, for an answer of an
  // existing group, or in a queue or stack: an insert into these waits, and evicts only groups that lack answers.
  void evict_for_place(const NewItem& fresh);
  void evict_group_of_queue();
  bool refuses_late(const NewItem& fresh);
  u32 insert_one(const NewItem& fresh);
  void insert_answer(u32 slot, const NewItem& fresh);
  std::string why_no_group() DI_REQUIRES(core.lock);
  double first_priority(const NewItem& fresh);
  void try_check(bool repair, Deadline deadline, std::vector<std::string>* findings);

  TableHeader& header_;
};

}  // namespace di
