// Windows against a model that looks at whole episodes: after every call, what has been made so far must be what the
// model says exists by then. Plus the examples of the contract, written out.
#include "rows/windows.h"

#include <algorithm>
#include <random>
#include <vector>

#include "base/status.h"
#include "check.h"

using namespace di;

namespace {

struct Step {
  i64 raw;
  i64 number;  // in its episode
  bool stops;  // its discount is 0
  bool last;   // ends its episode
  bool final;  // … and a final observation follows
  bool terminated;
  bool settled;  // … and nothing will follow about it
};

// What is known of a run: one episode, or for cross_episodes the lane since the run began.
struct Known {
  std::vector<Step> steps;
  bool following = false;  // the observation behind the last step
  bool ended = false;      // no step will follow
};

struct Model {
  ViewSpec spec;

  // Whether the row behind step `at` can be told, and how.
  bool tell(const Known& run, i64 at, bool* next, u32* flags) const {
    const Step& step = run.steps[static_cast<size_t>(at)];
    bool newest = at + 1 == static_cast<i64>(run.steps.size());
    *flags = 0;
    *next = true;
    if (!step.last) return !newest || run.following;
    if (step.terminated) *flags |= kItemTerminal;
    if (step.final) return step.settled;
    *next = false;
    *flags |= kItemNoNext;
    return step.settled && step.terminated;
  }

  Window window(const Known& run, i64 start, i64 stop, bool next, u32 flags) const {
    const Step& from = run.steps[static_cast<size_t>(start)];
    i64 back = std::min<i64>(spec.stack - 1, from.number);
    i64 behind = run.steps[static_cast<size_t>(stop - 1)].raw + 1 + next;
    return {static_cast<u32>(behind - from.raw + back), from.raw - back, static_cast<u32>(back), from.number, flags};
  }

  void add(const Known& run, i64 start, i64 stop, std::vector<Window>& out) const {
    bool next = false;
    u32 flags = 0;
    if (spec.has_next() && !tell(run, stop - 1, &next, &flags)) return;
    out.push_back(window(run, start, stop, next, flags));
  }

  // A transition with a horizon: made when that many steps follow, or nothing will. It ends in front of a last
  // observation that never came, if it still has its n steps then.
  void add_future(const Known& run, i64 start, std::vector<Window>& out) const {
    const i64 rows = static_cast<i64>(run.steps.size()), most = std::max(spec.n_step, spec.horizon);
    const bool over = run.ended && run.steps.back().settled;
    bool next = false;
    u32 flags = 0;
    const i64 stop = std::min(rows, start + most);
    if (stop - start < most && !over) return;
    if (tell(run, stop - 1, &next, &flags))
      out.push_back(window(run, start, stop, next, flags));
    else if (over && stop - 1 - start >= spec.n_step)
      out.push_back(window(run, start, stop - 1, true, 0));
  }

  // Items of windows with random starts: the windows of period 1, and of each `period` of them one item that covers
  // their rows, once they are all there or the run is over.
  std::vector<Window> parts(const Known& run) const {
    Model single{spec};
    single.spec.period = 1;
    single.spec.random_start = false;
    std::vector<Window> all = single.windows(run), out;
    const bool over = run.ended && (!spec.bootstrap || run.steps.empty() || run.steps.back().settled);
    i64 first_step = 0;  // of the part
    for (size_t at = 0; at < all.size(); first_step += spec.period) {
      size_t end = at;
      while (end < all.size() && own(run, all[end]) < first_step + spec.period) ++end;
      if (end - at < spec.period && !over) break;
      Window item = all[at];
      const Window& latest = all[end - 1];
      item.rows = static_cast<u32>(latest.first + latest.rows - item.first);
      item.flags = latest.flags;
      out.push_back(item);
      at = end;
    }
    return out;
  }
  // Number of a window's first own step in the run.
  static i64 own(const Known& run, const Window& window) {
    i64 step = 0;
    while (run.steps[static_cast<size_t>(step)].raw != window.first + window.back) ++step;
    return step;
  }

  std::vector<Window> windows(const Known& run) const {
    if (spec.random_start) return parts(run);
    std::vector<Window> out;
    const i64 rows = static_cast<i64>(run.steps.size());
    if (spec.kind == ViewKind::kStep) {
      for (i64 at = 0; at < rows; ++at) add(run, at, at + 1, out);
    } else if (spec.kind == ViewKind::kTransition) {
      for (i64 start = 0; start < rows; ++start) {
        i64 stop = start;
        bool whole = false;
        if (spec.horizon != 0) {
          add_future(run, start, out);
          continue;
        }
        while (stop < rows && !whole)
          whole = run.steps[static_cast<size_t>(stop++)].stops || stop - start == spec.n_step;
        if (whole || run.ended) add(run, start, stop, out);
      }
    } else if (spec.kind == ViewKind::kEpisode) {
      if (rows > spec.max_length) {
        out.push_back(window(run, 0, spec.max_length, spec.bootstrap, kItemCut));
      } else if (run.ended && rows > 0) {
        add(run, 0, rows, out);
      }
    } else {
      const i64 time = i64{spec.burn_in + spec.length - 1} * spec.stride + 1;
      for (i64 start = 0; start + spec.burn_in * i64{spec.stride} < rows; start += spec.period) {
        if (start + time <= rows) {
          add(run, start, start + time, out);
        } else if (run.ended && spec.tail == Tail::kShift && rows >= time) {
          add(run, rows - time, rows, out);
        } else if (run.ended && spec.tail != Tail::kDrop) {
          add(run, start, rows, out);
        }
        if (start + time >= rows) break;
      }
    }
    return out;
  }
};

bool before(const Window& a, const Window& b) { return std::pair(a.first, a.rows) < std::pair(b.first, b.rows); }

// Everything `all` holds has been made; nothing else has.
void same(std::vector<Window> made, std::vector<Window> all) {
  std::sort(made.begin(), made.end(), before);
  std::sort(all.begin(), all.end(), before);
  CHECK(made == all);
}

class Checked {  // Windows with the model beside it, for one lane
 public:
  explicit Checked(const ViewSpec& spec) : model_{spec}, windows_(spec) {}

  void begin(i64 raw) {
    windows_.begin(raw);
    if (!model_.spec.cross_episodes) restart();
    raw_ = raw;
    number_ = 0;
    run_.following = run_.ended = false;
    CHECK(windows_.oldest_needed() <= raw);
  }
  void row(bool stops) {
    stage([&](Windows& windows, std::vector<Window>& out) { windows.row(out, stops); });
    run_.steps.push_back({raw_++, number_++, stops, false, false, false, false});
    run_.following = false;
    compare();
  }
  void observed() {
    stage([](Windows& windows, std::vector<Window>& out) { windows.observed(out); });
    run_.following = true;
    compare();
  }
  void last() {
    stage([](Windows& windows, std::vector<Window>& out) { windows.last(out); });
    if (!model_.spec.cross_episodes) run_.ended = true;
    run_.steps.back().last = true;
    compare();
  }
  void end(bool terminated, bool final) {
    stage([&](Windows& windows, std::vector<Window>& out) { windows.end(terminated, final, out); });
    if (number_ > 0) {
      Step& step = run_.steps.back();
      step.last = step.settled = true;
      step.final = final || run_.following;
      step.terminated = terminated;
    }
    if (!model_.spec.cross_episodes) run_.ended = true;
    compare();
  }
  void close() {
    stage([](Windows& windows, std::vector<Window>& out) { windows.close(out); });
    run_.ended = true;
    if (!run_.steps.empty()) compare();
  }
  // The run in front of a discarded episode gets its tail, if no item reached into the episode.
  void discard() {
    const std::vector<Window> before = made_;
    stage([](Windows& windows, std::vector<Window>& out) { windows.discard(out); });
    const auto into = [&](const Window& window) { return window.first + window.rows > raw_ - number_; };
    if (!model_.spec.cross_episodes || std::any_of(before.begin(), before.end(), into)) {
      CHECK(made_ == before);
    } else {
      run_.steps.resize(run_.steps.size() - static_cast<size_t>(number_));
      run_.ended = true;
      compare();
    }
    restart();
  }
  i64 number() const { return number_; }
  i64 raw() const { return raw_; }

 private:
  void restart() {
    run_ = {};
    made_.clear();
  }
  // As the writer does it: on a copy first, which must change nothing.
  template <class Call>
  void stage(Call call) {
    const i64 needed = windows_.oldest_needed();
    std::vector<Window> tried, out;
    Windows copy = windows_;
    call(copy, tried);
    call(windows_, out);
    CHECK(tried == out);
    CHECK(windows_.oldest_needed() >= needed);
    for (const Window& window : out) {
      CHECK(window.first >= needed && window.rows > window.back);
      made_.push_back(window);
    }
  }
  void compare() const { same(made_, model_.windows(run_)); }

  Model model_;
  Windows windows_;
  Known run_;
  std::vector<Window> made_;
  i64 raw_ = 0;
  i64 number_ = 0;
};

ViewSpec random_spec(std::mt19937_64& random) {
  auto up_to = [&](u32 most) { return static_cast<u32>(1 + random() % most); };
  const ViewKind kinds[] = {ViewKind::kStep, ViewKind::kTransition, ViewKind::kSequence, ViewKind::kEpisode};
  ViewSpec spec;
  spec.kind = kinds[random() % 4];
  spec.n_step = up_to(5);
  spec.horizon = random() % 2 ? up_to(9) : 0;
  spec.stack = random() % 2 ? 1 : up_to(5);
  spec.length = up_to(6);
  spec.period = random() % 2 ? spec.length : up_to(8);
  spec.burn_in = static_cast<u32>(random() % 4);
  spec.max_length = up_to(8);
  spec.tail = static_cast<Tail>(random() % 3);
  if (spec.kind == ViewKind::kSequence) spec.cross_episodes = random() % 3 == 0;
  if (spec.kind == ViewKind::kSequence || spec.kind == ViewKind::kEpisode) spec.bootstrap = random() % 2;
  if (spec.kind == ViewKind::kStep) spec.stack = 1;
  if (spec.kind == ViewKind::kSequence && random() % 4 == 0) {
    spec.stride = up_to(3);
    spec.stack = 1;
    spec.cross_episodes = spec.bootstrap = false;
  }
  spec.random_start = spec.kind == ViewKind::kSequence && !(spec.cross_episodes && spec.bootstrap) && random() % 2 == 0;
  return spec;
}

void random_lanes() {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    const ViewSpec spec = random_spec(random);
    Checked lane(spec);
    i64 raw = static_cast<i64>(random() % 100);
    for (u64 episodes = 1 + random() % 5; episodes > 0; --episodes) {
      lane.begin(raw);
      bool observed = false, flagged = random() % 2;
      for (u64 steps = random() % 12; steps > 0; --steps) {
        lane.row(random() % 6 == 0);
        observed = !(flagged && steps == 1) && random() % 2;
        if (observed) lane.observed();
      }
      if (random() % 10 == 0) {
        lane.discard();
        raw = lane.raw() + static_cast<i64>(random() % 2);
        continue;
      }
      if (lane.number() > 0 && flagged && random() % 2) lane.last();
      const bool terminated = !observed && random() % 2, final = random() % 2;
      lane.end(terminated, final);
      raw = lane.raw() + (final || observed);
    }
    if (spec.cross_episodes) lane.close();
  }
}

std::vector<Window> play(Windows& windows, i64 raw, u32 steps, bool terminated, bool final) {
  std::vector<Window> out;
  windows.begin(raw);
  for (u32 i = 0; i < steps; ++i) windows.row(out);
  windows.end(terminated, final, out);
  return out;
}

void transitions() {
  Windows windows({.kind = ViewKind::kTransition, .n_step = 3, .stack = 4});
  // 5 steps and a final observation: k = 3, 3, 3, 2, 1; the last three end with the terminated step.
  CHECK(play(windows, 10, 5, true, true) == (std::vector<Window>{{4, 10, 0, 0, 0},
                                                                 {5, 10, 1, 1, 0},
                                                                 {6, 10, 2, 2, kItemTerminal},
                                                                 {6, 10, 3, 3, kItemTerminal},
                                                                 {5, 11, 3, 4, kItemTerminal}}));
  CHECK(play(windows, 16, 2, true, false) ==
        (std::vector<Window>{{2, 16, 0, 0, kItemTerminal | kItemNoNext}, {2, 16, 1, 1, kItemTerminal | kItemNoNext}}));
  CHECK(play(windows, 18, 4, false, false) == (std::vector<Window>{{4, 18, 0, 0, 0}}));  // abandoned
  CHECK(play(windows, 22, 0, false, false).empty());

  // A lost life ends the sums of all steps before it as soon as the observation behind it is known.
  std::vector<Window> out;
  windows.begin(0);
  windows.row(out, true);
  CHECK(out.empty());
  windows.observed(out);
  CHECK(out == (std::vector<Window>{{2, 0, 0, 0, 0}}));
}

void sequences() {
  Windows pad({.kind = ViewKind::kSequence, .length = 4, .period = 2, .burn_in = 2});
  CHECK(play(pad, 0, 9, true, true) == (std::vector<Window>{{6, 0, 0, 0, 0}, {6, 2, 0, 2, 0}, {5, 4, 0, 4, 0}}));
  CHECK(play(pad, 10, 2, true, true).empty());  // no row after burn-in
  CHECK(play(pad, 13, 3, false, false) == (std::vector<Window>{{3, 13, 0, 0, 0}}));
  Windows shift({.kind = ViewKind::kSequence, .length = 4, .period = 4, .tail = Tail::kShift, .bootstrap = true});
  CHECK(play(shift, 0, 6, true, true) == (std::vector<Window>{{5, 0, 0, 0, 0}, {5, 2, 0, 2, kItemTerminal}}));
  CHECK(play(shift, 7, 3, true, false) == (std::vector<Window>{{3, 7, 0, 0, kItemTerminal | kItemNoNext}}));
  Windows drop({.kind = ViewKind::kSequence, .length = 4, .period = 4, .tail = Tail::kDrop});
  CHECK(play(drop, 0, 6, true, true) == (std::vector<Window>{{4, 0, 0, 0, 0}}));
  Windows cut({.kind = ViewKind::kEpisode, .max_length = 3, .bootstrap = true});
  CHECK(play(cut, 0, 5, true, true) == (std::vector<Window>{{4, 0, 0, 0, kItemCut}}));
  CHECK(play(cut, 6, 3, true, true) == (std::vector<Window>{{4, 6, 0, 0, kItemTerminal}}));
  CHECK(play(cut, 10, 2, false, false).empty());
}

void across_discarded_episodes() {
  std::vector<Window> out;
  Windows windows({.kind = ViewKind::kSequence, .length = 4, .period = 4, .cross_episodes = true});
  CHECK(play(windows, 0, 3, true, true).empty());
  windows.begin(4);
  windows.row(out);
  CHECK(out == (std::vector<Window>{{5, 0, 0, 0, 0}}));
  windows.discard(out);  // an item reaches into it: its rows stay, the run ends
  CHECK(out.size() == 1 && windows.oldest_needed() >= 5);
  CHECK(play(windows, 6, 3, true, true).empty());
  windows.begin(11);  // behind the final observation and a row that was known ahead
  windows.row(out);
  CHECK(out.back() == (Window{6, 6, 0, 0, 0}));
  windows.end(true, true, out);
  out.clear();
  windows.begin(13);
  windows.row(out);
  windows.discard(out);  // nothing of it is in an item, nor is anything in front of it left over
  CHECK(out.empty());

  for (const Tail tail : {Tail::kPad, Tail::kShift, Tail::kDrop}) {
    Windows tailed({.kind = ViewKind::kSequence, .length = 4, .period = 4, .tail = tail, .cross_episodes = true});
    CHECK(play(tailed, 0, 6, true, true) == (std::vector<Window>{{4, 0, 0, 0, 0}}));
    out.clear();
    tailed.begin(7);
    tailed.row(out);
    tailed.discard(out);
    std::vector<Window> expected;
    if (tail == Tail::kPad) expected.push_back({2, 4, 0, 4, 0});
    if (tail == Tail::kShift) expected.push_back({4, 2, 0, 2, 0});
    CHECK(out == expected);
    tailed.close(out);
    CHECK(out == expected);
  }
}

void limits() {
  auto refused = [](ViewSpec spec) {
    try {
      Windows windows(spec);
    } catch (const Error& error) {
      return error.code() == Code::kInvalid;
    }
    return false;
  };
  CHECK(refused({.kind = ViewKind::kTransition, .n_step = 0}));
  CHECK(refused({.kind = ViewKind::kTransition, .stack = 257}));
  CHECK(refused({.kind = ViewKind::kSequence, .length = 1u << 20}));
  CHECK(refused({.kind = ViewKind::kSequence, .length = ~0u, .burn_in = 5}));
  CHECK(refused({.kind = ViewKind::kSequence, .length = 4, .period = 1u << 20, .random_start = true}));
  CHECK(refused({.kind = ViewKind::kSequence, .length = 4, .bootstrap = true, .stride = 2}));
  CHECK(refused({.kind = ViewKind::kSequence, .length = 1u << 16, .stride = 1u << 16}));
  CHECK(refused({.kind = ViewKind::kSequence, .length = 4, .stride = 0}));
  CHECK(refused({.kind = ViewKind::kSequence, .cross_episodes = true, .bootstrap = true, .random_start = true}));
  CHECK(refused({.kind = ViewKind::kEpisode, .max_length = ~0u}));
  CHECK(!refused({.kind = ViewKind::kEpisode, .max_length = kMaxWindowRows - 1}));
}

}  // namespace

int main() {
  transitions();
  sequences();
  across_discarded_episodes();
  limits();
  random_lanes();
}
