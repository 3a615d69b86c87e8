// One process's face of one table: items, order, draws, priorities. All under the table's lock, held for at most 64
// items at a time; bytes move outside it (views.cc), but for small batches (table_take.cc). What waits, how long and with
// which words is decided in Python.
//
// A kill while the lock is held: words that change as one are rolled back (undo.h), then every derived part is rebuilt
// (table_recovery.cc). Uses of chunks are raised before and lowered after the record that justifies them, so they are
// never too low while somebody may look.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arena/undo.h"
#include "heap/heap.h"
#include "replay/limiter.h"
#include "replay/selectors.h"

namespace di {

__extension__ typedef unsigned __int128 Wide;
// A random word to a number below n (Lemire 2019, without the rejection: the bias is below n / 2^64).
inline u64 scaled(u64 random, u64 n) { return static_cast<u64>(static_cast<Wide>(random) * n >> 64); }

constexpr u64 kEpochStep = u64{1} << 32;  // of Item::state, of Once without a use limit: one epoch

constexpr u32 kBatchStep = 64;                 // items per hold of the lock
constexpr u32 kMostRemovals = 2 * kBatchStep;  // in a hold that inserts: see Table::insert
constexpr u32 kTakeItems = 512;                // of take(); with what they change they fit the undo record

struct NewItem {
  u32 chunk;
  u32 row;
  u32 rows;
  u32 back;
  u32 flags;
  i64 version;
  double priority;  // NaN: the table's default
};

struct Drawn {
  u64 key;
  u64 number;
  u32 chunk;   // descriptor of the first chunk
  u32 chunks;  // how many the rows cover
  u32 row, rows, back, flags;
  u32 uses;   // this draw included
  u32 entry;  // ledger; kNone: an item that peek() found gone
  i64 version;
  double priority;
  double probability;
};

// Draws of one call (or of one prefetched batch) that nobody has received yet.
struct DrawSet {
  std::vector<Drawn> items;
  u64 table_size = 0;
  double total = 0;                   // of p^alpha at the last draw
  double least = 0;                   // least positive p^alpha at the last draw (normalize="table")
  u64 rng_before = 0, rng_after = 0;  // to rewind when nothing was delivered and nobody drew in between
  std::vector<u32> spare;             // ledger entries taken and not used
  bool made_room = false;             // for inserts that wait and have not been woken yet
};

struct TableSize {  // what resize() sets; slots: at least
  u64 capacity = 0, slots = 0;
  Reserve reserve;
};

struct SizeSeen {  // what a new size was reckoned from
  u64 capacity = 0, reserve_wanted = 0, reserve_open = 0;
};

struct TableShape {  // what create() needs; Python reckons the bytes
  std::string name, config;
  u64 capacity = 0, slots = 0, item_bytes = 0, max_bytes = ~u64{0}, seed = 0;
  Reserve reserve;
  SamplerKind sampler = SamplerKind::kUniform, remover = SamplerKind::kFifo;
  double alpha = 1, beta = 0;
  bool beta_given = false, stratified = false, normalize_table = false, shuffle = true;
  i64 epochs = -1;
  u64 max_times_sampled = 0;
  i64 max_staleness = -1;
  u32 weights = kNone;
  double initial_priority = -1;  // < 0: the largest ever given
  LimiterState limiter{};
};

// Meta blocks of a table that others know nothing of yet. Those not sealed go with it; a dead process's are reaped.
class NewBlocks {
 public:
  NewBlocks(Arena& arena, u32 table) : arena_(arena), table_(table) {}
  ~NewBlocks();
  NewBlocks(const NewBlocks&) = delete;
  NewBlocks& operator=(const NewBlocks&) = delete;
  u32 add(u64 bytes, u64 deadline_ns);  // descriptor + 1; 0 for no bytes
  void seal();  // under the table's lock, just before the header names them: see Heap::begin_meta

 private:
  struct Made {
    u32 descriptor, entry;
  };
  Arena& arena_;
  u32 table_;
  std::vector<Made> made_;
};

struct TableBlocks {  // bytes by role; 0: none
  u64 links = 0, dense = 0, sampler = 0, remover = 0, minimum = 0;
};
TableBlocks table_blocks(u64 slots, SamplerKind sampler, SamplerKind remover, bool normalize_table, bool shuffle);

// A header is used again after a drop, and its name read without a lock: words, checked against the generation.
std::string read_name(const char (&name)[kNameBytes]);

class Table : public std::enable_shared_from_this<Table> {
 public:
  static std::shared_ptr<Table> create(const std::shared_ptr<Arena>& arena, const TableShape& shape, u64 deadline_ns);
  static std::shared_ptr<Table> find(const std::shared_ptr<Arena>& arena, const std::string& name);
  static std::vector<std::string> names(const Arena& arena);
  static void drop(const std::shared_ptr<Arena>& arena, const std::string& name, u64 deadline_ns);
  static void finish_broken(const std::shared_ptr<Arena>& arena, u64 deadline_ns);  // under the directory lock
  Table(std::shared_ptr<Arena> arena, u32 index);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  class DI_SCOPED_CAPABILITY Guard {
   public:
    Guard(Table& table, u64 deadline_ns) DI_ACQUIRE(table.lock_);
    ~Guard() DI_RELEASE();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

    void stay_marked() { marked_ = true; }  // something is left that the next owner finds, as after a death

   private:
    Table& table_;
    int exceptions_;
    bool marked_ = false;
  };

  // --- inserting. The writer holds the guards of all its tables, in order of index.
  std::string why_no_insert() DI_REQUIRES(lock_);  // "" when one item may pass now
  void insert(std::span<const NewItem> items, std::vector<u64>* keys) DI_REQUIRES(lock_);  // at most 64
  bool evict_for_room(u64 deadline_ns);                // up to 64 items by the remover; false: none left
  void settle(u64 deadline_ns);                        // after guards are gone: frees chunks nobody uses; 0: only tries
  u32 open_writer(u64 deadline_ns);                    // ledger entry
  void close_writer(u32 entry);                        // soon
  void ensure_slots(u64 free_slots, u64 deadline_ns);  // kCapacity: no memory for more

  // --- drawing
  u32 draw(DrawSet* set, u32 want, double stratum_first, double strata, u64 deadline_ns, std::string* why);
  // Draws, copies and delivers in one hold (table_take.cc); false: it cannot be done so, nothing has changed.
  bool take(DrawSet* set, u32 n, const std::function<bool()>& copy, u64 deadline_ns);
  void copied(DrawSet* set, u64 deadline_ns);  // the bytes are in a batch: chunks may go, the draws stay undelivered
  void deliver(DrawSet* set, u64 deadline_ns);
  void give_back(DrawSet* set, u64 deadline_ns);
  void peek(std::span<const u64> keys, DrawSet* set, u64 deadline_ns);  // deliver() ends it
  // Up to `count` live items behind the `start` oldest, each read in the hold that found it; deliver() ends it.
  void peek_oldest(u64 start, u64 count, DrawSet* set, u64 deadline_ns);
  u64 undelivered(u32* client,
                  u64 deadline_ns);  // draws by anybody that may still come back; who has some: not us first
  void settle_entry(LedgerEntry& entry, u64 deadline_ns);  // reaper: one draw, read or writer of a dead client

  // --- the rest
  u64 update_priorities(std::span<const u64> keys, std::span<const double> priorities, u64 deadline_ns);
  u64 remove(std::span<const u64> keys, u64 deadline_ns);
  // Of up to `count` live items behind the `start` oldest. spread: of those in `count` slots, which are number `start` and
  // following of a row in which whatever follows each other lies evenly among all.
  std::vector<u64> keys(u64 start, u64 count, u64 deadline_ns, bool spread = false);
  void reset(u64 deadline_ns);
  // Where it throws nothing has changed, nor where it says no: then somebody else has changed what was `seen` (null:
  // whatever it is).
  bool resize(const TableSize& size, const SizeSeen* seen, u64 deadline_ns);
  void configure(const LimiterState* limiter, const double* alpha, const double* beta, const i64* max_staleness,
                 u64 deadline_ns);  // null: unchanged; beta NaN: weights 1
  void finish(u64 deadline_ns);
  u64 check(bool repair, u64 deadline_ns, std::vector<std::string>* findings);
  void await_recovery(u64 deadline_ns);  // done, or none under way: no undo record is left of a dead process

  TableHeader& header() const { return header_; }
  u32 index() const { return index_; }
  u32 generation() const { return generation_; }
  const std::string& name() const { return name_; }
  bool live() const;
  void require_live() const;  // throws kTableNotFound
  Arena& arena() const { return *arena_; }
  std::string schema() const;  // "" until declared
  bool declare_schema(const std::string& text, const Reserve& reserve, u64 item_bytes,
                      u64 deadline_ns);  // false: somebody was faster
  std::string config() const;            // both without a lock; kTableNotFound once it was dropped
  i64 newest_version() const;

 private:
  friend class Guard;
  void change() { lock_.begin_change(); }  // first thing of whatever changes derived parts
  // The blocks behind the header, as addresses of this process; renewed when another process grew the table.
  struct Parts {
    u64 slots = 0;
    u32 links_block = 0;
    std::vector<std::pair<u64, Item*>> segments;  // first slot, items
    std::optional<OrderList> order;
    std::optional<DenseSet> dense, remover_dense;
    std::optional<SumTree> sums;
    std::optional<BestTree> best, remover_best, minimum;
  };
  [[noreturn]] void bad_slot() const;
  std::vector<u64> walk(u64 start, u64 count, DrawSet* set, u64 deadline_ns);
  std::vector<u64> spread(u64 start, u64 count, u64 deadline_ns);
  void read_item(u32 slot, DrawSet* set);
  bool holds(u64 key) {  // that item is there: live, or drawn and not yet delivered
    const u32 slot = key_slot(key);
    if (slot >= parts_.slots || key >> (kSlotBits + kGenerationBits) != 0) return false;
    return (item(slot).state & 15) != 0 && (item(slot).state >> 4 & kGenerationMask) == key_generation(key);
  }
  Item& item(u32 slot) {
    if (slot >= parts_.slots) [[unlikely]]
      bad_slot();
    for (std::size_t i = parts_.segments.size(); i-- > 1;)
      if (slot >= parts_.segments[i].first) return parts_.segments[i].second[slot - parts_.segments[i].first];
    return parts_.segments[0].second[slot];
  }
  std::string text(const Shared<u32>& block) const;
  void refresh();
  void forget_parent();
  void forget_hold() noexcept;
  void recover(u64 deadline_ns) DI_REQUIRES(lock_);
  u64 rebuild(u64 deadline_ns);  // how many uses of chunks were miscounted
  void fill();
  u64 rebuild_references(u64 deadline_ns);  // how many counts were wrong
  double mass(double priority);             // p^alpha
  void require_alpha(double alpha);
  void to_masses(const double* priorities, u32 count, double* masses);
  void join(u32 slot, bool back_in_place);  // into sampler, remover and counts
  void leave(u32 slot);
  void forget(u32 slot);  // free the slot; its chunks lose the item's use after the commit
  void remove_slot(u32 slot, bool undrawn_counts);
  u32 victim();
  u32 victim_uniform();
  u32 first_live();
  u32 last_live();
  void cursor_left(u32 slot);
  void cursor_joined(u32 slot);
  u32 cover(u32 chunk, u32 row, u32 rows);  // chunks a range covers
  struct MassOf {
    double priority = 0;
    double alpha = 0;
    double mass = 0;
  };
  MassOf mass_of_;  // the last one computed
  void use_chunks(u32 chunk, u32 count, i32 delta);
  void note_unused(u32 chunk) noexcept;
  void commit();
  void settle_held(u64 deadline_ns) DI_REQUIRES(lock_);
  void settle_held_soon() DI_REQUIRES(lock_);
  void be_late();
  void reserve_close(u64 writers);
  void close_writer_later(u32 entry);
  void settle_late(u64 deadline_ns);
  void end_writer(u32 entry) DI_REQUIRES(lock_);
  template <class What>
  void each_draw(What&& what);
  void set_limiter(const LimiterState& anew);
  void uncount_draws();
  void forget_undelivered();
  void count_anew();
  bool stale(const Item& item) const;
  void count_stale(const Item& item);
  u32 pick(double stratum_first, double strata);
  double chance(u32 slot) const;  // that the next draw is this live item
  u32 draw_step(DrawSet* set, u32 want, double* stratum, double strata);
  void draw_one(DrawSet* set, u32 slot, double probability, u32 entry);
  u32 draw_many(DrawSet* set, u32 count, double* stratum, double strata);
  bool draws_freely() const;  // with replacement, and without a side effect on who is drawn next
  bool pick_many(u32 count, double* stratum, double strata, u32* slots, double* probabilities);
  Drawn describe(const Item& entry, u32 slot) const;
  void note_table(DrawSet* set) const;
  void pass_on(DrawSet* set);
  u64 next_random();
  double unit_random();
  void wake(Shared<u32>& seq, Shared<u32>& waiters, u64 count);
  void wake_inserts(DrawSet* set);
  void grow(u64 slots, u64 deadline_ns, const std::function<bool()>& also = [] { return true; });
  bool try_grow(u64 slots, u64 deadline_ns, const std::function<bool()>& also);
  u32 segments_kept(u64 more) const;
  void link_segment(u32 number, u32 block, u64 slots);
  static std::shared_ptr<Table> try_create(const std::shared_ptr<Arena>& arena, const TableShape& shape,
                                           u64 deadline_ns);
  bool try_declare(const std::string& text, const Reserve& reserve, u64 item_bytes, u64 deadline_ns);
  bool set_size(const TableSize& size, const SizeSeen* seen, u64 deadline_ns) DI_REQUIRES(lock_);
  bool evict_above(u64 capacity, u64 deadline_ns);
  u64 try_check(bool repair, u64 deadline_ns, std::vector<std::string>* findings);
  std::vector<u32> linked_blocks() const;
  void free_strays(u64 deadline_ns);
  bool settle_draw(u64 key, bool give_back);  // true: a held item became free or live again
  void finish_draws(DrawSet* set, bool give_back, u64 deadline_ns);
  void forget_draws(DrawSet* set);
  // One draw more. Uses stop at kMostUses, before they would reach into the rows; epochs are counted on in the state.
  void count_use(Item& item) {
    // mutant: uses-run-into-the-rows
    if (span_uses(item.span) < kMostUses) [[likely]]
      undo_.set(item.span, item.span + 1);
    else if (header_.sampler == static_cast<u64>(SamplerKind::kOnce))
      undo_.set(item.state, item.state + kEpochStep);
  }
  void uncount_use(Item& item);
  u64 drawn_epochs(const Item& item) const;
  u32 joined_shift() const;
  u64 pending(const Item& item) const;
  u64 new_state(u64 generation) const;
  bool open_epoch();
  void mark_drawn_ahead();
  void rewind_epoch();

  std::shared_ptr<Arena> arena_;
  u32 index_;
  u32 generation_;
  u64 fork_generation_;
  TableHeader& header_;
  std::string name_;
  SharedLock lock_;
  Undo undo_;
  Parts parts_;
  struct Use {
    u32 chunk, count;
  };
  std::vector<Use> lower_;         // uses to lower after the commit
  std::vector<u32> detach_;        // [table] chunks this table uses no more; settled outside the lock
  std::vector<u32> detach_later_;  // [local] of those: the heap's lock could not be had
  std::vector<u32> close_later_;   // [local] entries of writers that are closed
  std::atomic<bool> late_{false};  // there are some, or held items are charged too much
  std::atomic<bool> detach_pending_{false};
  bool behind_ = false;  // [table] draws given back in this hold left items behind the epoch
};

}  // namespace di
