// Decides which items are made as the steps of one lane are written. It is pure arithmetic on row numbers and knows no
// bytes, chunks or tables. So the writer can run it on a copy first, and learn before it writes what a call would make.
//
// Raw rows number everything that a lane stores. The steps of an episode have consecutive numbers. An observation given
// ahead (`next=`, `final=`) lies in the raw row after the last step. That row later becomes the next step, or keeps
// only the final observation.
//
// Order of calls for one episode:
//   begin(raw)  ( row() [observed()] )*  [last()]  end(…) | discard()
// After a step with `terminated` or `truncated` call end(), not observed(): end() covers the observation after the
// step, and marks the windows that end there as terminal. If a later call may still give the final observation, call
// last() at once, and end() when that is settled.
//
// Details that the public contract leaves open:
//  * kItemTerminal and kItemNoNext describe the row after the last step. Items of views that use no such row (Step;
//    Sequence and Episode without bootstrap) never have them. These items may be made before it is known how the
//    episode ends.
//  * Tail::kShift acts as kPad in an episode shorter than one window. A tail (pad or shift) is made only if no window
//    has reached the last row. The bootstrap row of a padded tail is the row right after the last valid one.
//  * period > length skips rows. If no start leaves a valid row after burn-in, the episode ends without a tail.
//  * cross_episodes: rows count from the lane's first step, and `tail` applies once, at close(). The frame-stack
//    history of a window stops where the episode of its first step begins; is_first does not cover the history. If a
//    window ends with an episode, its bootstrap row is that episode's final observation. If that was not given, the
//    last observation is repeated after termination, and no item is made after truncation.
//  * random_start: the windows are those of period 1. An item stands for `period` of them: the windows that start at
//    the `period` rows from one start of the grid on. It covers the rows of all these windows, and is made as soon as
//    the last one is complete; at the end of the series it is made with the windows there are by then.
//    Resolver::choose() chooses the window of a draw. Only the last window can lack its bootstrap row, so the item ends
//    in front of that window. Across episodes any window could lack it, so cross_episodes and bootstrap exclude each
//    other here.
//  * stride: windows are counted in steps here, including the steps between the rows taken. A window reaches the end if
//    its last row taken is the last step. Rows after it, between the rows of a stack or at an episode's start may be
//    left out, so bootstrap, stacks and cross_episodes exclude stride.
//  * horizon: a transition is made when so many steps follow it, or when its episode is over. If the observation after
//    an episode never came, the episode's last transitions cover the steps before that observation. Transitions whose n
//    steps end there are not made, even if their sum stops earlier.
//  * discard(): items already made stay, and the episode makes no others. With cross_episodes it ends the series: the
//    rows before the episode get their tail as at close(), unless an item has reached into the episode. The next
//    episode begins a new series.
#pragma once

#include <algorithm>
#include <vector>

#include "base/layout.h"

namespace di {

enum class Tail : u32 { kPad = 0, kDrop = 1, kShift = 2 };

struct ViewSpec {
  ViewKind kind = ViewKind::kStep;
  u32 n_step = 1;      // Transition
  u32 horizon = 0;     // Transition: least number of steps an item covers, within its episode; 0: n_step
  u32 stack = 1;       // largest frame_stack over the columns; 1..256
  u32 length = 1;      // Sequence: rows to learn from
  u32 period = 1;      // Sequence: rows between starts
  u32 burn_in = 0;     // Sequence: rows of the episode in front of `length`
  u32 max_length = 1;  // Episode
  Tail tail = Tail::kPad;
  bool cross_episodes = false;
  bool bootstrap = false;     // Sequence, Episode: some column has one row more
  u32 stride = 1;             // Sequence: every `stride`-th step of the window is one row of the time axis
  bool random_start = false;  // Sequence: an item stands for `period` windows; each draw gives one of them

  // Rows of one example's time axis, without the bootstrap row and frame stacks.
  u32 time() const {
    return kind == ViewKind::kSequence ? burn_in + length : kind == ViewKind::kEpisode ? max_length : 1;
  }
  // Steps from the first to the last one of a full example.
  u32 span() const { return (time() - 1) * stride + 1; }
  // Rows of the time axis that `steps` steps fill.
  u32 taken(u32 steps) const { return stride == 1 ? steps : (steps + stride - 1) / stride; }
  // The most steps that an item covers.
  u32 most_steps() const {
    return kind == ViewKind::kTransition ? std::max(n_step, horizon) : span() + (random_start ? period - 1 : 0);
  }
  // About how many rows the copy of an example visits, without the rows that only the choice among an item's examples
  // passes over. The copy goes chunk by chunk, of 8 rows or more; across episodes it goes row by row.
  u32 rows_visited() const {
    const u32 own = kind == ViewKind::kTransition ? n_step : time();
    return cross_episodes ? most_steps() : std::max(own, most_steps() / 8);
  }
  // Whether an item holds several examples. Each draw then chooses one: Span.pick.
  bool chooses() const { return random_start || horizon != 0; }
  // Whether an item includes the row after its last step (unless kItemNoNext).
  bool has_next() const { return kind == ViewKind::kTransition || bootstrap; }
};

// A window is copied soon after it was made. The 4-byte members are kept apart on purpose: compilers copy two
// neighbours by one load of 8 bytes. That load waits until all earlier stores are in the cache, including those of an
// image that was just written.
struct Window {
  u32 rows;   // raw rows, with history, final observations in between and the row after the last step
  i64 first;  // raw row where the item's rows begin, `back` rows of stack history included
  u32 back;   // rows of history before the item's own first step
  i64 start;  // number of the item's own first step in its episode
  u32 flags;  // kItem…
  bool operator==(const Window&) const = default;
};

constexpr u32 kMaxWindowRows = kMostChunks - kMostEmptyChunks;  // each row may have a chunk of its own
constexpr u32 kMaxStack = 256;
static_assert(kMaxWindowRows < 1u << kSpanRowsBits && kMaxStack <= 1u << kSpanBackBits);

class Windows {  // state of one table and lane; copies are cheap
 public:
  explicit Windows(const ViewSpec& spec);  // throws kInvalid when an item's rows do not fit its slot

  // An episode begins; its step 0 will lie at this raw row. The previous episode has ended. Up to two rows between them
  // hold no step: the final observation of the previous one, and a first observation of this one that was given ahead
  // and dropped.
  void begin(i64 raw);
  // The next step has been written completely; the observation after it is not known yet. `stops`: every element of
  // its `discount` column is 0, so the n-step sum stops here (Transition). Implies observed() for the step before.
  void row(std::vector<Window>& out, bool stops = false);
  // The observation after the last step is stored in the next raw row, with all columns that this view takes from it.
  void observed(std::vector<Window>& out);
  // The last row() was the episode's last step: makes the items that need no observation after it.
  void last(std::vector<Window>& out);
  // The episode is over and complete. has_final: the raw row after its last step holds the final observation (implied
  // by observed()). Without it, items of a terminated episode repeat the last observation (kItemNoNext); for any other
  // episode, no item that needs the observation is made.
  // counted: whether left_out() also counts the steps of this episode that no item begins with, or covers.
  void end(bool terminated, bool has_final, std::vector<Window>& out, bool counted = true);
  // Makes no further items from the open episode, if there is one.
  void discard(std::vector<Window>& out);
  // The lane's stream ends (its writer closes): makes the tail of a cross_episodes series, after end() or discard().
  void close(std::vector<Window>& out);
  // No future window needs a raw row before this one: the writer may close older chunks.
  i64 oldest_needed() const;

  bool open() const { return open_; }
  i64 steps() const { return steps_ - current_.step; }  // complete steps of the open episode
  // Steps without an item because the observation after their episode's last step is missing; counted over all
  // episodes so far.
  u64 left_out() const { return left_out_; }

 private:
  struct EpisodeSteps {  // consecutive steps of one episode
    i64 step;            // number of the first in the series (an episode, or all of a cross_episodes lane)
    i64 raw;
  };
  i64 warm() const { return i64{spec_.burn_in} * spec_.stride; }  // steps in front of the first row to learn from
  const EpisodeSteps& steps_of(i64 step) const;
  i64 needed() const;
  void forget();
  void restart(i64 raw);
  void emit(i64 start, i64 stop, bool next, u32 flags, std::vector<Window>& out) const;
  void known_transitions(std::vector<Window>& out);
  void transitions(bool all, bool next, u32 flags, std::vector<Window>& out);
  void reached(bool known, bool next, u32 flags, std::vector<Window>& out);
  void tail(bool next, u32 flags, std::vector<Window>& out);
  void rest(bool known, bool next, u32 flags, std::vector<Window>& out);
  void end_run(i64 raw, std::vector<Window>& out);
  void episode(bool known, bool next, u32 flags, std::vector<Window>& out);
  u64 unmade() const;

  ViewSpec spec_;
  EpisodeSteps current_{0, 0};
  std::vector<EpisodeSteps> older_;  // cross_episodes: earlier episodes that pending windows reach into
  i64 steps_ = 0;                    // complete steps of the series
  i64 start_ = 0;                    // start of the next window; a step of the series
  i64 made_ = 0;                     // end of the furthest window made so far; a step of the series
  u64 left_out_ = 0;
  bool open_ = false;
  bool observed_ = false;  // the observation after step steps_ - 1 is known
  bool stops_ = false;     // the last step's discount is 0
  bool over_ = false;      // last() was called: items that need no final observation have been made
  // cross_episodes, for the tail: how the latest episode ended
  bool known_ = true;   // items that end there can be made
  bool final_ = false;  // its final observation is stored
  u32 end_flags_ = 0;
};

}  // namespace di
