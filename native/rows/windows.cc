#include "rows/windows.h"

#include <algorithm>

#include "base/status.h"

namespace di {

Windows::Windows(const ViewSpec& spec) : spec_(spec) {
  spec_.cross_episodes = spec.cross_episodes && spec.kind == ViewKind::kSequence;
  spec_.horizon = spec.kind == ViewKind::kTransition ? spec.horizon : 0;
  spec_.stride = spec.kind == ViewKind::kSequence ? spec.stride : 1;
  spec_.random_start = spec.random_start && spec.kind == ViewKind::kSequence;
  spec_.bootstrap = spec.bootstrap && (spec.kind == ViewKind::kSequence || spec.kind == ViewKind::kEpisode);
  if (spec.n_step < 1 || spec.length < 1 || spec.period < 1 || spec.max_length < 1 || spec.stack < 1 ||
      spec_.stride < 1) {
    throw Error(Code::kInvalid, "n_step, length, period, max_length, frame_stack and stride must be at least 1");
  }
  if (spec.stack > kMaxStack) {
    throw Error(Code::kInvalid, "frame_stack of " + std::to_string(spec.stack) + " rows: at most " +
                                    std::to_string(kMaxStack) + " are possible");
  }
  if (spec_.random_start && spec_.cross_episodes && spec_.bootstrap)
    throw Error(Code::kInvalid, "windows that start at random and run over episodes cannot have a bootstrap row");
  if (spec_.stride > 1 && (spec_.cross_episodes || spec_.bootstrap || spec_.stack > 1))
    throw Error(Code::kInvalid, "windows with a stride cannot have a bootstrap row or stacks, nor run over episodes");
  const u64 starts = spec_.random_start ? spec.period : 1;
  u64 steps = spec.kind == ViewKind::kTransition ? u64{spec_.most_steps()}
              : spec.kind == ViewKind::kSequence ? (u64{spec.burn_in} + spec.length - 1) * spec_.stride + starts
                                                 : u64{spec.time()};
  // Across episodes each step may come with two rows that hold no step: see begin().
  u64 rows = steps * (spec_.cross_episodes ? 3 : 1) + spec.stack;
  if (rows > kMaxWindowRows) {
    throw Error(Code::kInvalid,
                "an item of this view spans " + std::to_string(rows) + " rows, at most " +
                    std::to_string(kMaxWindowRows) +
                    " are possible: lower n_step, burn_in + length, max_length, horizon, stride, or period with "
                    "random starts");
  }
}

const Windows::EpisodeSteps& Windows::steps_of(i64 step) const {
  if (step >= current_.step || older_.empty()) return current_;
  auto after = std::upper_bound(older_.begin(), older_.end(), step,
                                [](i64 value, const EpisodeSteps& steps) { return value < steps.step; });
  return after == older_.begin() ? older_.front() : *(after - 1);
}

// The first own step of the earliest window that can still be made.
i64 Windows::needed() const {
  switch (spec_.kind) {
    case ViewKind::kTransition: return start_;
    case ViewKind::kSequence: {
      const i64 start = std::min(start_, steps_);
      if (spec_.tail != Tail::kShift || spec_.random_start) return start;
      // A shifted tail begins time() steps before the end of the series. If the open episode is discarded, the series
      // ends before that episode, so those steps are needed too.
      const bool withdrawn = open_ && spec_.cross_episodes && made_ <= current_.step;
      return std::min(start, std::max<i64>(0, (withdrawn ? current_.step : steps_) - spec_.span()));
    }
    case ViewKind::kEpisode: return over_ ? steps_ : current_.step;
    default: return steps_;
  }
}

i64 Windows::oldest_needed() const {
  if (!open_ && !spec_.cross_episodes) return current_.raw + steps();
  i64 step = needed();
  const EpisodeSteps& in = steps_of(step);
  i64 number = step - in.step;
  return in.raw + number - std::min<i64>(spec_.stack - 1, number);
}

void Windows::forget() {
  if (older_.empty()) return;
  i64 step = needed();
  size_t gone = 0;
  while (gone < older_.size() && (gone + 1 < older_.size() ? older_[gone + 1].step : current_.step) <= step) ++gone;
  older_.erase(older_.begin(), older_.begin() + static_cast<std::ptrdiff_t>(gone));
}

void Windows::restart(i64 raw) {
  older_.clear();
  current_ = {0, raw};
  steps_ = start_ = made_ = 0;
}

void Windows::begin(i64 raw) {
  if (!spec_.cross_episodes || steps_ == 0) {
    restart(raw);
  } else {
    if (steps_ > current_.step) older_.push_back(current_);
    current_ = {steps_, raw};
    forget();
  }
  open_ = true;
  observed_ = stops_ = over_ = false;
}

void Windows::emit(i64 start, i64 stop, bool next, u32 flags, std::vector<Window>& out) const {
  const EpisodeSteps& from = steps_of(start);
  const EpisodeSteps& to = steps_of(stop - 1);
  i64 number = start - from.step;
  i64 back = std::min<i64>(spec_.stack - 1, number);
  i64 first = from.raw + number - back;
  i64 behind = to.raw + (stop - to.step) + (next ? 1 : 0);
  out.push_back({static_cast<u32>(behind - first), first, static_cast<u32>(back), number, flags});
}

void Windows::transitions(bool all, bool next, u32 flags, std::vector<Window>& out) {
  const bool stops = stops_ && spec_.horizon == 0;
  while (start_ < steps_ && (all || stops || steps_ - start_ >= spec_.most_steps())) {
    emit(start_++, steps_, next, flags, out);
  }
}

// For an episode whose last observation is unknown: makes the transitions with a horizon. Each covers the steps before
// that observation.
void Windows::known_transitions(std::vector<Window>& out) {
  while (spec_.horizon != 0 && steps_ - 1 - start_ >= spec_.n_step) emit(start_++, steps_ - 1, true, 0, out);
}

// Makes the next item if it ends with the last step. If the row after that step never came, skips the window that needs
// it: the item, or the last of its windows.
void Windows::reached(bool known, bool next, u32 flags, std::vector<Window>& out) {
  if (start_ + spec_.most_steps() != steps_) return;
  if (known) {
    emit(start_, steps_, next, flags, out);
  } else if (spec_.most_steps() > spec_.span()) {
    emit(start_, steps_ - 1, true, 0, out);
  }
  made_ = steps_;
  start_ += spec_.period;
}

// Makes the windows with random starts that are left at the end of the series. `known`: as in reached(). A series that
// is shorter than one window gets a padded one.
void Windows::rest(bool known, bool next, u32 flags, std::vector<Window>& out) {
  const i64 stop = known ? steps_ : steps_ - 1;
  const bool padded = known && start_ == 0 && stop < spec_.span() && spec_.tail != Tail::kDrop && warm() < stop;
  if (start_ + spec_.span() <= stop || padded) emit(start_, stop, !known || next, known ? flags : 0, out);
  made_ = start_ = steps_;
}

void Windows::tail(bool next, u32 flags, std::vector<Window>& out) {
  if (spec_.random_start) return rest(true, next, flags, out);
  if (spec_.tail == Tail::kDrop || made_ >= steps_ || start_ + warm() >= steps_) return;
  bool shifted = spec_.tail == Tail::kShift && steps_ >= spec_.span();
  i64 start = shifted ? steps_ - spec_.span() : start_;
  emit(start, steps_, next, flags, out);
  made_ = steps_;
}

void Windows::episode(bool known, bool next, u32 flags, std::vector<Window>& out) {
  if (steps() == 0) return;
  bool cut = steps() > spec_.max_length;
  if (cut) {
    emit(current_.step, current_.step + spec_.max_length, spec_.bootstrap, kItemCut, out);
  } else if (known || !spec_.bootstrap) {
    emit(current_.step, steps_, next && spec_.bootstrap, spec_.bootstrap ? flags : 0, out);
  }
}

void Windows::row(std::vector<Window>& out, bool stops) {
  observed(out);
  ++steps_;
  observed_ = false;
  stops_ = stops;
  if (spec_.kind == ViewKind::kSequence) {
    if (!spec_.bootstrap) reached(true, false, 0, out);
    forget();
  } else if (spec_.kind == ViewKind::kEpisode) {
    // The episode is longer than the view: its cut item is made now, so that no window keeps the rest of the episode.
    if (!over_ && steps() > spec_.max_length) {
      over_ = true;
      episode(true, false, 0, out);
    }
  } else if (spec_.kind != ViewKind::kTransition) {
    emit(steps_ - 1, steps_, false, 0, out);
  }
}

void Windows::observed(std::vector<Window>& out) {
  if (observed_ || steps() == 0) return;
  observed_ = true;
  if (spec_.kind == ViewKind::kTransition) transitions(false, true, 0, out);
  if (spec_.kind == ViewKind::kSequence && spec_.bootstrap) reached(true, true, 0, out);
}

void Windows::last(std::vector<Window>& out) {
  if (over_ || !open_) return;
  bool whole = spec_.kind == ViewKind::kEpisode;
  if (spec_.bootstrap && !(whole && steps() > spec_.max_length)) return;
  over_ = true;
  if (whole) episode(true, false, 0, out);
  if (spec_.kind == ViewKind::kSequence && !spec_.cross_episodes) tail(false, 0, out);
}

// For the end of an episode whose last observation is missing: counts the steps that items would begin with, or cover.
u64 Windows::unmade() const {
  i64 left = 0;
  if (spec_.kind == ViewKind::kTransition) left = steps_ - start_;
  if (spec_.kind == ViewKind::kEpisode && spec_.bootstrap && !over_) left = steps();
  if (spec_.kind == ViewKind::kSequence && spec_.bootstrap && !spec_.cross_episodes && spec_.tail != Tail::kDrop)
    left = steps_ - made_;
  return static_cast<u64>(std::max<i64>(left, 0));
}

void Windows::end(bool terminated, bool has_final, std::vector<Window>& out, bool counted) {
  if (!open_) return;
  last(out);
  bool next = has_final || observed_;
  bool known = next || terminated;
  u32 flags = (terminated ? kItemTerminal : 0) | (next ? 0 : kItemNoNext);
  if (steps() > 0) {
    if (spec_.kind == ViewKind::kTransition && known) transitions(true, next, flags, out);
    if (spec_.kind == ViewKind::kTransition && !known) known_transitions(out);
    if (spec_.kind == ViewKind::kEpisode && !over_) episode(known, next, flags, out);
    if (spec_.kind == ViewKind::kSequence && spec_.bootstrap) {
      reached(known, next, flags, out);
      if (known && !spec_.cross_episodes) tail(next, flags, out);
      if (!known && spec_.random_start) rest(false, true, 0, out);
    }
    if (counted && !known) left_out_ += unmade();
    known_ = known;
    final_ = next;
    end_flags_ = flags;
  }
  open_ = false;
}

void Windows::discard(std::vector<Window>& out) {
  if (!open_) return;
  open_ = false;
  if (!spec_.cross_episodes) return;
  const i64 behind = current_.raw + steps();
  steps_ = current_.step;
  end_run(behind, out);
}

void Windows::close(std::vector<Window>& out) {
  if (spec_.cross_episodes) end_run(current_.raw + steps(), out);
}

// Makes the tail of the series. A new series begins at raw row `raw` or later.
void Windows::end_run(i64 raw, std::vector<Window>& out) {
  if (!spec_.bootstrap) {
    tail(false, 0, out);
  } else if (known_) {
    tail(final_, end_flags_, out);
  }
  restart(raw);
}

}  // namespace di
