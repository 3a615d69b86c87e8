// Copies the rows of drawn items into the arrays of a batch, as the view prescribes. chunk_view.h says which bytes may
// be read without a lock, and why. frames() in spans.h says which rows a stack of frames takes and where it is padded.
// windows.h says how far back an item keeps rows for a stack.
//
// Items are handled in blocks (spans.h, views.cc). Chunk headers are prefetched a few items ahead, records one block
// ahead. A loop of fixed-size copies fills each small output for the whole block. Large outputs follow item by item,
// because obs and next_obs of one item share most of their frames, which are then still in the cache.
#pragma once

#include <memory>
#include <vector>

#include "base/layout.h"
#include "rows/chunk_view.h"
#include "rows/windows.h"

namespace di {

// ------------------------------------------------------------------------------------------------------------- plans
enum class Op : u32 {
  kRow,        // the item's own first step                                            [n, …]
  kNext,       // the observation after its last step; kItemNoNext: the last one again [n, …]
  kLast,       // its last step (terminated, truncated)                                [n, …]
  kStack,      // `stack` frames up to the first step, oldest first                    [n, stack, …]
  kNextStack,  // the same up to the observation after the last step                   [n, stack, …]
  kWindow,    // stack − 1 earlier frames, `time` steps, `boot` rows more                [n, stack − 1 + time + boot, …]
              // without a stack it may leave out the view's first `skip` steps: the time axis is `skip` + time
  kFirst,     // the value stored at the first step only                               [n, …]
  kFuture,    // an observation 1 to min(`horizon`, steps left) steps later, each as likely [n, …]
  kReward,    // Σ gamma^i · discounts · reward, float32                               [n, …]
  kDiscount,  // gamma^k · discounts, 0 after termination, float32                     [n, …]
  kSteps,     // k, the number of steps summed up                                      [n] int32 or int64
  kMask,      // u8: is step                                                           [n, time]
  kLengths,   // number of valid steps                                                 [n] int32 or int64
  kIsFirst,   // u8: begins an episode                                                 [n, time]
  kFutureSteps,  // how many steps later kFuture is                                    [n] int32 or int64
};
// kRow, kNext, kLast, kStack, kNextStack, kWindow and kFuture also take ragged columns (Output.ragged).

enum class Number : u32 { kF4 = 0, kF8, kI1, kI2, kI4, kI8, kU1, kU2, kU4, kU8 };  // bool: kU1
u32 number_bytes(Number number);

struct Output {
  Op op = Op::kRow;
  u32 column = 0;     // number in the table; not used by kMask, kLengths, kIsFirst, kSteps, kDiscount
  u32 row_bytes = 0;  // of one row of the output (one frame); ragged: of one element
  u32 stack = 1;      // kStack, kNextStack, kWindow
  u32 time = 1;       // kWindow, kMask, kIsFirst
  u32 boot = 0;       // kWindow: 1 with a bootstrap row
  u32 skip = 0;       // kWindow: rows in front of the view's time axis that it leaves out
  bool ragged = false;
  u32 finished = kNone;  // kNext, kNextStack, kDiscount, kSteps: the column with this value in a kItemFinished row
  Number finished_number = Number::kF4;  // kDiscount, kSteps: type of that column

  u32 rows() const {  // rows of the output per item
    return op == Op::kStack || op == Op::kNextStack ? stack
           : op == Op::kWindow                      ? stack - 1 + time + boot
           : op == Op::kMask || op == Op::kIsFirst  ? time
                                                    : 1;
  }
};

struct ViewPlan {
  ViewSpec spec{};
  double gamma = 0.99;
  bool pad_zero = false;      // before an episode's start: zeros instead of its first frame
  u32 reward_column = kNone;  // Transition
  Number reward_number = Number::kF4;
  u32 reward_count = 1;  // elements of a row's reward
  // A column of factors for the discount. At the first step where all its elements are 0 the sum stops; steps and
  // next_* then refer to that step.
  u32 discount_column = kNone;
  Number discount_number = Number::kF4;
  u32 discount_count = 1;  // 1 or reward_count; kDiscount has as many elements
  std::vector<Output> outputs{};
};

struct Span {  // one drawn item; the chunk is held
  ChunkBytes chunk;
  u32 row;  // of the chunk: the first one, history included
  u32 rows;
  u16 back;
  u16 flags;
  u32 pick = 0;  // a random word that chooses one of the item's examples (ViewSpec::chooses()). 0: the first one
};

struct Identities {  // by item: the episode of its own first step, and that step's number there; either may be nullptr
  i64* episodes = nullptr;
  i64* starts = nullptr;
};

struct Target {
  u8* data = nullptr;            // the whole batch's array, contiguous; nullptr: not wanted
  const i64* offsets = nullptr;  // ragged: the output of measure(), for the whole batch
};

// ------------------------------------------------------------------------------------------------------------ gather
// Fills batches. An object serves one thread at a time and keeps its working memory: reuse it. Several threads, each
// with its own, may fill parts of one batch.
class Gather {
 public:
  // Both arguments must outlive this object. Throws kInvalid if parts of the plan contradict each other.
  Gather(const ViewPlan& plan, ChunkSource& source);
  ~Gather();
  Gather(const Gather&) = delete;
  Gather& operator=(const Gather&) = delete;

  // Fills element first + i of every wanted target from spans[i]. `targets`: one per output of the plan.
  void run(const Span* spans, u32 n, u64 first, const Target* targets, const Identities& identities = {});
  // Adds to *bodies the parts of bodies that run() and measure() of these outputs need, that are not in memory and that
  // *bodies lacks. True: parts were added. The caller reads them and calls again, because values of variable length can
  // be listed only once their rows' records are there.
  bool list_cold(const Span* spans, u32 n, const std::vector<u32>& outputs, ColdBodies* bodies);
  // Sets the parts that were read, for the following calls; null: none. They throw NotInMemory when they need more.
  void use(const ColdBodies* bodies);
  // For a ragged output: fills `offsets` with the position of each of its n * rows() values, counted in elements, and
  // then the total: n * rows() + 1 numbers. Returns the total.
  u64 measure(u32 output, const Span* spans, u32 n, i64* offsets);
  // Bytes of one item of a fixed-size output.
  static u64 item_bytes(const ViewPlan& plan, u32 output);

 private:
  class Engine;
  std::unique_ptr<Engine> engine_;
};

}  // namespace di
