#include "replay/row_list.h"

#include <algorithm>

#include "rows/chunks.h"

namespace di {

RowList::RowList(std::shared_ptr<Arena> arena, const ViewSpec& spec, std::vector<std::string> late)
    : arena_(std::move(arena)), spec_(spec), late_(std::move(late)) {}

// Appends the item's rows to walked_.
void RowList::walk(const Drawn& item) {
  const bool behind = spec_.has_next() && (item.flags & (kItemNoNext | kItemFinished)) == 0;
  RowAt at = row_after(heap(), {item.chunk, item.row}, 0);
  for (u32 i = 0; i < item.rows; ++i) {
    if (i != 0) at = row_after(heap(), at, 1);
    if (at.chunk == kNone) throw Error(Code::kCorruptData, "an item's rows are not in its chunks");
    const HeadView view = head_at(heap(), at);
    const bool own = !behind || i + 1 < item.rows;
    walked_.push_back({{episode_of(view, at.row), start_of(view, at.row)}, at, own && !is_final(view, at.row)});
  }
}

// Whether an item after this one has the row as a step of its own.
bool RowList::is_own_of_later(std::size_t item, const Id& id) const {
  for (std::size_t i = item + 1; i < covered_.size(); ++i) {
    const Covered& rows = covered_[i];
    if (rows.begin == rows.end) continue;
    if (id < walked_[rows.begin].id) return false;
    const auto end = walked_.begin() + static_cast<std::ptrdiff_t>(rows.end);
    const auto found = std::lower_bound(walked_.begin() + static_cast<std::ptrdiff_t>(rows.begin), end, id,
                                        [](const Row& row, const Id& wanted) { return row.id < wanted; });
    if (found != end && found->id == id && found->whole) return true;
  }
  return false;
}

// Whether the run's rows from `from` on are the item's first rows, and have all columns that the item reads.
bool RowList::joins(const Covered& item, std::size_t from) const {
  for (std::size_t i = 0; item.begin + i < item.end && from + i < run_.size(); ++i) {
    const Row &listed = run_[from + i], &wanted = walked_[item.begin + i];
    if (listed.id != wanted.id || (wanted.whole && !listed.whole)) return false;
  }
  return true;
}

// Lists the item's rows from its row `from` on.
void RowList::add(std::size_t item, std::size_t from) {
  for (std::size_t i = covered_[item].begin + from; i < covered_[item].end; ++i) {
    Row row = walked_[i];
    row.whole = row.whole || is_own_of_later(item, row.id);
    run_.push_back(row);
    rows_.push_back({row.at, !row.whole, row.whole ? late_there(row.at) : 0});
    ++listed_;
  }
}

u32 RowList::late_there(RowAt at) {
  if (late_.empty()) return 0;
  const HeadView view = head_at(heap(), at);
  const u32 layout = view.layout;
  auto known = late_bits_.find(layout);
  if (known == late_bits_.end()) {
    const LayoutInfo info = read_layout(*arena_, layout);
    const std::vector<std::string> names = read_column_names(*arena_, layout);
    std::vector<u32> bits;
    for (const std::string& name : late_) {
      const auto found = std::find(names.begin(), names.end(), name);
      bits.push_back(found == names.end() ? kNone
                                          : info.columns[static_cast<std::size_t>(found - names.begin())].index);
    }
    known = late_bits_.emplace(layout, std::move(bits)).first;
  }
  const LateRows& late = view.late;
  if (late.words == nullptr) return 0;
  const u32 there = di::late_there(late.words[at.row].word.load(std::memory_order_acquire));
  u32 found = 0;
  for (std::size_t i = 0; i < late_.size(); ++i)
    if (known->second[i] < kMostLate && (there >> known->second[i] & 1) != 0) found |= 1u << i;
  return found;
}

void RowList::forget_call() {
  run_.swap(run_before_);
  run_first_ = run_first_before_;
  listed_ = listed_before_;
}

void RowList::list(std::span<const Drawn> items, std::size_t count) {
  run_before_ = run_;
  run_first_before_ = run_first_;
  listed_before_ = listed_;
  walked_.clear();
  covered_.clear();
  rows_.clear();
  firsts_.assign(count, -1);
  for (const Drawn& item : items) {
    const std::size_t begin = walked_.size();
    if (item.entry != kNone) walk(item);
    covered_.push_back({begin, walked_.size()});
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Covered& item = covered_[i];
    if (item.begin == item.end) continue;
    const Id& first = walked_[item.begin].id;
    while (!run_.empty() && run_.front().id < first) {
      run_.pop_front();
      ++run_first_;
    }
    if (run_.empty() || run_.front().id != first || !joins(item, 0)) {
      run_.clear();
      run_first_ = listed_;
    }
    firsts_[i] = run_first_;
    add(i, run_.size());
  }
}

}  // namespace di
