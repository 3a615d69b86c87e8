// A writer: rows of some lanes become steps in chunks and items in tables.
//
// A call has two halves. stage() writes rows beyond what is published and runs copies of the windows: nobody sees any
// of it. commit() takes the locks of all tables in order, asks their limiters, publishes the rows and inserts the items,
// or says what blocks and leaves everything as it was before the call: the same call may be repeated.
// It passes as a whole as soon as one item may pass. The locks are then held for 64 items at a time: where one cannot
// be had again (its owner is stopped), resume() goes on, and every later call begins with it.
// A kill in between leaves unpublished rows; after publishing, rows without items. Both are what a killed writer may
// lose; the reaper closes its chunks.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "replay/table.h"
#include "replay/writer_versions.h"
#include "rows/chunks.h"
#include "rows/windows.h"

namespace di {

constexpr u64 kNoMaxBytes = u64{1} << 63;  // and above: a table without max_bytes=

enum class Autoreset : u32 { kOff = 0, kNextStep = 1, kSameStep = 2 };

struct TableSink {  // how one table turns this stream's rows into items
  std::shared_ptr<Table> table;
  ViewSpec spec;
  ColumnMask observed;         // columns it takes from the row behind an item's last step
  std::vector<u32> first;      // columns stored only where a sequence starts
  bool track_version = false;  // no column `version`: what the process last got from latest()
  bool weighted = false;       // its own rows have the column `discount`
};

struct WriterPlan {
  LayoutInfo layout;
  std::vector<TableSink> tables;  // by index of the table
  u32 lanes = 1;
  Autoreset autoreset = Autoreset::kOff;
  u32 terminated = kNone, truncated = kNone, discount = kNone, version = kNone;  // columns
  u32 discount_f8 = 0, discount_count = 1, version_bytes = 0;
  u64 chunk_bytes = 0;
  u32 least_rows = 1;
  u64 heap_bytes_per_row = 0;  // reckoned; 0: no column lies in the heap
  u64 heap_row_max = 0;        // the most that one row's values with a bound need
  ColumnMask unbounded;        // columns in the heap whose values may have any size
  bool counted = true;         // as an open writer of its tables; the one behind table.insert() is not
};

// The cells of one call: value of column c for time t and the l-th lane of the call.
struct ColumnInput {
  const u8* base = nullptr;  // nullptr: the call does not hold the column
  u64 step_stride = 0, lane_stride = 0;
  const Cell* cells = nullptr;  // places in the heap: [t * lanes + l]
};
struct WriterCall {
  u32 steps = 1;
  std::vector<u32> lanes;
  std::vector<ColumnInput> columns;           // all of the layout
  std::vector<ColumnInput> next, final;       // empty, or all of the layout with holes
  std::vector<u8> final_given;                // [steps * lanes of the call]
  std::vector<std::vector<double>> priority;  // by table: empty, or [steps * lanes of the call]
  std::vector<double> alpha;                  // by table: PriorityRange::alpha that these were checked with
  bool limited = false;                       // more items than a table's capacity are refused
  bool extends = false;                       // by extend(): of queues too
};

// Rows inserted whole that are one item: `rows` of them, of which the first `steps` are steps.
struct WholeItem {
  u32 rows = 1, steps = 1, flags = 0;
};

struct MadeItem {
  u64 key;
  i64 start;
  u32 lane;
  u32 order;  // in which the call's items were made
};
struct Blocked {
  enum class Why { kNothing, kLimiter, kTableRoom, kStoreRoom, kLock } why = Why::kNothing;
  u32 table = 0;        // position among the writer's tables
  u32 seq = 0;          // futex value seen before the look: wait on it
  u32 holder = kNone;   // of the lock: client slot
  bool passed = false;  // the call has passed and begun: only resume() may follow
  std::string text;
};

class Writer {
 public:
  Writer(std::shared_ptr<Arena> arena, WriterPlan plan, u64 deadline_ns);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  Blocked append(const WriterCall& call, u64 deadline_ns);
  // `final`: columns for each lane of the call, or empty. discard: withdraws rows no item uses.
  Blocked end_episode(const WriterCall& call, bool discard, u64 deadline_ns);
  // Rows inserted whole: each item is an episode of lane 0. One in `items` stands for all. Priorities by item.
  Blocked insert_whole(const WriterCall& call, const std::vector<WholeItem>& items, u64 deadline_ns);
  Blocked finish(u64 deadline_ns);  // ends open episodes the same way end_episode() does
  Blocked resume();                 // the rest of a call that has passed; nothing to do: kNothing
  void close();                     // lets go of chunks and tables

  const std::vector<MadeItem>& made(u32 table) const { return made_[table]; }
  // Rows written from now on have this one, in a table that tracks versions.
  void set_version(u32 table, i64 version) { versions_[table] = version; }
  const WriterPlan& plan() const { return plan_; }

 private:
  struct KeptRow {  // values of one row, of `columns`, in this process's memory
    ColumnMask columns;
    std::vector<u8> bytes;
    std::vector<Cell> cells;  // by column, into `bytes`
  };
  struct Lane {
    i64 raw = 0;          // the next raw row
    ColumnMask ahead;     // columns of row `raw` stored ahead by next=
    u32 kept = kNone;     // or kept for it, until the rest of the row is known: in LaneState::kept
    bool open = false;    // an episode is open
    bool ending = false;  // a flagged row came; its final observation may still follow
    bool terminated = false;
    bool skip = false;  // next-step autoreset: drop the next row
    i64 steps = 0;
    u64 episode = 0;  // id of the current or last episode
    i64 begin_raw = 0;
    u32 begun_in_chunk = 0;
    u32 current = 0;  // chunk that `raw - 1` lies in
    u64 heap_used = 0;
    // The first observation of the lane's next episode, while the final one of this episode may still come.
    std::shared_ptr<const KeptRow> first;
  };
  struct LaneState {
    Lane committed, staged;
    std::vector<Windows> windows, windows_staged;
    std::deque<OpenChunk> chunks;
    std::vector<u32> past;  // by table: how many of `chunks`, from the front, its items to come need no more
    std::vector<VersionRuns> versions;  // by table; empty: none tracks them
    KeptRow kept[2];                    // a call that is rolled back leaves the committed one
    u32 open_chunks = 0;
  };
  struct Source {  // where one row's values come from
    const std::vector<ColumnInput>& input;
    u32 t = 0, l = 0, lanes = 1;    // of the call
    const KeptRow* kept = nullptr;  // what the call does not give
    bool gives(u32 column) const { return input[column].base != nullptr || input[column].cells != nullptr; }
    bool has(u32 column) const { return gives(column) || (kept != nullptr && kept->columns[column]); }
    Cell cell(u32 column) const;
  };
  struct Room {  // a chunk, while a call is only gone through
    i64 first_raw = 0;
    u64 rows = 0, heap_bytes = 0, heap_used = 0;
  };
  struct Rehearsal {
    std::vector<Room> rooms;  // by lane
    u64 bytes;                // of chunks that the call begins
  };
  struct Pending {
    u32 lane;
    Window window;
    double priority;
  };
  Blocked before_call();  // what an earlier call has left goes first
  void begin_call(const std::vector<u32>& lanes, bool several);
  void roll_back(const std::vector<u32>& lanes);
  void give_up(const std::vector<u32>& lanes, const Error& error);
  template <class Write>
  Blocked stage(const std::vector<u32>& lanes, const Write& write, u64 deadline_ns, Blocked* blocked);
  bool write_steps(const WriterCall& call, u64 deadline_ns, Blocked* blocked);
  bool write_items(const WriterCall& call, const std::vector<WholeItem>& items, u64 deadline_ns, Blocked* blocked);
  bool step(const WriterCall& call, u32 t, u32 l, u64 deadline_ns, Blocked* blocked);
  void note_versions(LaneState& state);
  bool write_row(const WriterCall& call, u32 t, u32 l, u64 deadline_ns, Blocked* blocked);
  void write_cells(u32 lane, const Source& source);
  void write_cells_behind(u32 lane, const Source& source);
  bool end_step(const WriterCall& call, u32 t, u32 l, const std::function<double(u32)>& priority, u64 deadline_ns,
                Blocked* blocked);
  bool write_behind(u32 lane, const Source& given, bool final, u64 deadline_ns, Blocked* blocked);
  bool store_ahead(u32 lane, const Source& source, u64 deadline_ns, Blocked* blocked);
  static void keep(const WriterPlan& plan, const Source& source, KeptRow* kept);
  const KeptRow* kept_of(const LaneState& state) const;
  ColumnMask known_behind(const LaneState& state) const;
  void require_kept(u32 lane, const Source& source) const;
  [[noreturn]] static void refuse_other(u32 column, u32 lane);
  bool drop_row(const WriterCall& call, u32 t, u32 l, const std::function<double(u32)>& priority, u64 deadline_ns,
                Blocked* blocked);
  bool write_first(const WriterCall& call, u32 t, u32 l, u64 deadline_ns, Blocked* blocked);
  bool restore_first(u32 lane, u64 deadline_ns, Blocked* blocked);
  bool settle_end(u32 lane, const std::function<double(u32)>& priority, u64 deadline_ns, Blocked* blocked);
  bool end_lane(const WriterCall& call, u32 l, bool discard, u64 deadline_ns, Blocked* blocked);
  void end_inserted(LaneState& state);
  void refuse_what_never_fits(const WriterCall& call, const std::function<bool()>& write, u64 deadline_ns);
  bool fits_surely(const WriterCall& call, u64 deadline_ns) const;
  bool fits_store(const WriterCall& call, u64 bytes, u64 deadline_ns, std::string* why) const;
  u64 most_bytes(const WriterCall& call) const;
  static u64 most_items(const WriterCall& call, const TableSink& sink);
  u64 most_of_call(const TableSink& sink) const;
  std::size_t lanes_with_items(u32 table) const;
  static u64 most_at_once(const WriterCall& call, const Table& table);
  bool few_items(const WriterCall& call) const;
  void refuse_more_than_fit(const WriterCall& call) const;
  void rehearse_row(u32 lane, u64 heap_bytes);
  ChunkPlan plan_for(u64 heap_bytes);
  bool ensure_row(u32 lane, u64 heap_bytes, u64 deadline_ns, Blocked* blocked);
  void refuse_larger_than_table(const ChunkPlan& plan) const;
  void refuse_unaddressable(const ChunkPlan& plan) const;
  void refuse_larger_call(u64 bytes) const;
  u64 plan_block() const { return Blocks::block_bytes(chunk_bytes(plan_.layout, chunk_plan_)); }
  void close_spare(const std::vector<u32>& lanes);
  static bool grows(const TableSink& sink);
  u64 tables_block() const;
  void follow_resize();
  bool make_room(u32 short_table, u64 bytes, u64 deadline_ns, Blocked* blocked);
  void be_counted(u64 deadline_ns);
  MakeResult add_chunk(u32 lane, const ChunkPlan& plan, u64 deadline_ns, std::string* why, u32* short_table);
  bool open_chunk(u32 lane, u64 heap_bytes, u64 deadline_ns, Blocked* blocked);
  void emit(u32 table, u32 lane, double priority);
  u64 heap_need(const Source& source, const Lane& lane, bool behind) const;
  u64 heap_bytes(const Source& source) const;
  u64 heap_bytes(const Source& source, u32 column) const;
  bool stored_here(u32 column, i64 step) const;
  Cell told(const WriterCall& call, u32 column, u32 t, u32 l) const;
  bool flag(const WriterCall& call, u32 column, u32 t, u32 l) const;
  bool stops(const WriterCall& call, u32 t, u32 l) const;
  bool covers(const std::vector<ColumnInput>& input, const ColumnMask& ahead, u32 table) const;
  bool covers_all(const std::vector<ColumnInput>& input) const;
  OpenChunk& chunk_of(LaneState& lane, i64 raw, u32* row);
  NewItem locate(u32 table, const Pending& pending);
  i64 version_of(u32 table, LaneState& lane, const Window& window);
  Blocked commit(const std::vector<u32>& lanes, u64 deadline_ns);
  // As many guards as tables are more than clang's analysis can follow.
  bool try_commit(const std::vector<u32>& lanes, u64 deadline_ns, Blocked* blocked, bool no_more = false) DI_UNCHECKED;
  static bool has_slots(Table& table, u64 items, bool no_more);
  static bool add_slots(Table& table, u64 items, u64 deadline_ns);
  void publish(const std::vector<u32>& lanes);
  void recheck_priorities(u32 table) DI_UNCHECKED;
  void insert_some(u32 table) DI_UNCHECKED;  // up to 64 items, under the table's guard
  Blocked insert_rest(u32 table) DI_UNCHECKED;
  void let_go(const std::vector<u32>& lanes);
  void let_tables_go();

  std::shared_ptr<Arena> arena_;
  WriterPlan plan_;
  ChunkPlan chunk_plan_;
  bool several_ = false;                    // the call has more than one row a lane, or rows inserted whole
  u64 call_bytes_ = 0;                      // of chunks that this call has begun
  const std::vector<ColumnInput> nothing_;  // of a call that gives no column
  u64 planned_block_ = 0, block_ = 0;       // tables_block() when the writer was opened, and as chunk_plan_ has it
  std::optional<Rehearsal> rehearsal_;      // the call is only gone through: nothing is written
  std::vector<u32> table_entries_;
  std::vector<i64> versions_;     // by table: of the rows that come next; -1: not known
  bool tracks_versions_ = false;  // some table does
  std::vector<LaneState> lanes_;
  std::vector<std::vector<Pending>> pending_;
  std::vector<std::size_t> inserted_;  // of those, by table
  std::vector<double> alpha_;          // WriterCall::alpha of the call
  std::vector<u32> unfinished_;        // lanes of a call that has passed and whose items are not all there yet
  std::vector<std::vector<MadeItem>> made_;
  std::vector<NewItem> items_;  // of one hold; kept, so that what follows publish() needs no memory
  std::vector<u64> keys_;       // the same
  std::vector<Window> windows_;
  std::vector<u32> reached_;  // let_go(): by table
  u64 fork_generation_;
  bool closed_ = false;
};

}  // namespace di
