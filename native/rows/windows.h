// Which items arise as the steps of one lane are written. Pure arithmetic on row numbers: nothing here knows bytes,
// chunks or tables, so the writer can run it on a copy first and learn what a call would make before it writes.
//
// Raw rows number everything a lane stores: the steps of an episode are consecutive, and an observation known ahead
// (`next=`, `final=`) lies in the raw row after the last step, which later becomes either the next step or a row that
// holds only the final observation.
//
// Order of calls for one episode:
//   begin(raw)  ( row() [observed()] )*  [last()]  end(…) | discard()
// A step that carries `terminated` or `truncated` is followed by end(), not by observed(): end() takes the observation
// behind it and knows that the windows which end there are terminal. When its final observation may still come with a
// later call, last() comes at once and end() when that is settled.
//
// Choices where the contract leaves one:
//  * kItemTerminal and kItemNoNext concern the row behind the last step: views without one (Step, Sequence and Episode
//    without bootstrap) never carry them; their items may appear before anybody knows how the episode ends.
//  * tail kShift in an episode shorter than one window: as kPad. A tail (pad or shift) is made only while no window has
//    reached the last row. Bootstrap after a padded tail: the row directly behind the last valid one.
//  * period > length skips rows: an episode whose rest holds no start with a valid row after burn-in ends without tail.
//  * cross_episodes: rows count from the lane's first step; `tail` applies once, at close(). The frame-stack history in
//    front of a window stops at the begin of the episode its first step lies in: is_first says nothing about frames in
//    front. The bootstrap row of a window that ends with an episode is that episode's final observation; without one
//    it is repeated after termination, and after truncation there is no item.
//  * discard(): items that exist stay; none follows from this episode. In cross_episodes it ends the run, whose rows in
//    front of it get their tail as at close(), unless an item reached into it; the next episode begins a new run.
#pragma once

#include <vector>

#include "base/layout.h"

namespace di {

enum class Tail : u32 { kPad = 0, kDrop = 1, kShift = 2 };

struct ViewSpec {
  ViewKind kind = ViewKind::kStep;
  u32 n_step = 1;      // Transition
  u32 stack = 1;       // largest frame_stack over the columns; 1..256
  u32 length = 1;      // Sequence: rows to learn from
  u32 period = 1;      // Sequence: rows between starts
  u32 burn_in = 0;     // Sequence: real rows in front of `length`
  u32 max_length = 1;  // Episode
  Tail tail = Tail::kPad;
  bool cross_episodes = false;
  bool bootstrap = false;  // Sequence, Episode: some column has one row more

  // Rows of one example's time axis, bootstrap and stack apart.
  u32 time() const {
    return kind == ViewKind::kSequence ? burn_in + length : kind == ViewKind::kEpisode ? max_length : 1;
  }
  // Whether an item ends with the row behind its last step (unless kItemNoNext).
  bool has_next() const { return kind == ViewKind::kTransition || bootstrap; }
};

struct Window {
  i64 first;  // raw row where the item's rows begin, `back` rows of stack history included
  u32 rows;   // raw rows, history, spanned final observations and the row behind the last step included
  u32 back;   // rows of history before the item's own first step
  u32 flags;  // kItem…
  i64 start;  // number, in its episode, of the item's own first step
  bool operator==(const Window&) const = default;
};

constexpr u32 kMaxWindowRows = kMostChunks - kMostEmptyChunks;  // where each row has a chunk of its own
constexpr u32 kMaxStack = 256;
static_assert(kMaxWindowRows < 1u << kSpanRowsBits && kMaxStack <= 1u << kSpanBackBits);

class Windows {  // of one table and lane; copies are cheap
 public:
  explicit Windows(const ViewSpec& spec);  // throws kInvalid when an item's rows do not fit its slot

  // An episode begins; its step 0 will lie at this raw row. The last one has ended. Rows between the two hold no steps:
  // its final observation, and one of the next episode that was known ahead and dropped.
  void begin(i64 raw);
  // The next step has been written completely; the observation behind it is not known yet. `stops`: every element of
  // its `discount` column is 0, the n-step sum stops here (Transition). Implies observed() for the step before.
  void row(std::vector<Window>& out, bool stops = false);
  // The observation behind the last step is known (all columns this view takes from it): a raw row follows with it.
  void observed(std::vector<Window>& out);
  // The last row() was the episode's last step: items that need no observation behind it appear now.
  void last(std::vector<Window>& out);
  // The episode is over and nothing about it will follow. has_final: the raw row behind its last step holds the final
  // observation (implied by observed()). Without it a terminated episode repeats the last observation (kItemNoNext),
  // any other makes no item that would need it.
  void end(bool terminated, bool has_final, std::vector<Window>& out);
  // No further items from this episode, if one is open.
  void discard(std::vector<Window>& out);
  // The lane's stream ends (its writer closes): the tail of a cross_episodes run. The episode has ended before.
  void close(std::vector<Window>& out);
  // No raw row before this one is needed by a future window: the writer forgets older chunks.
  i64 oldest_needed() const;

  bool open() const { return open_; }
  i64 steps() const { return steps_ - current_.step; }  // complete steps of the open episode

 private:
  struct Segment {  // consecutive steps of one episode
    i64 step;       // number of the first in the run (an episode, or all of a cross_episodes lane)
    i64 raw;
  };
  const Segment& segment(i64 step) const;
  i64 needed() const;
  void forget();
  void restart(i64 raw);
  void emit(i64 start, i64 stop, bool next, u32 flags, std::vector<Window>& out) const;
  void transitions(bool all, bool next, u32 flags, std::vector<Window>& out);
  void reached(bool known, bool next, u32 flags, std::vector<Window>& out);
  void tail(bool next, u32 flags, std::vector<Window>& out);
  void end_run(i64 raw, std::vector<Window>& out);
  void episode(bool known, bool next, u32 flags, std::vector<Window>& out);

  ViewSpec spec_;
  Segment current_{0, 0};
  std::vector<Segment> older_;  // cross_episodes: earlier episodes that pending windows reach into
  i64 steps_ = 0;               // complete steps of the run
  i64 start_ = 0;               // start of the next window; a step of the run
  i64 made_ = 0;                // where the furthest window made ends; a step of the run
  bool open_ = false;
  bool observed_ = false;  // the observation behind step steps_ - 1 is known
  bool stops_ = false;     // the last step's discount is 0
  bool over_ = false;      // last(): what needs no final observation has been made
  // cross_episodes: how the latest episode ended, for the tail
  bool known_ = true;
  bool final_ = false;
  u32 end_flags_ = 0;
};

}  // namespace di
