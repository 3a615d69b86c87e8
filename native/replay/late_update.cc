#include "replay/late_update.h"

#include <algorithm>

#include "replay/answers.h"
#include "replay/due_groups.h"
#include "replay/lease_ends.h"

namespace di {
namespace {

constexpr u64 kHoldBytes = 256 << 10;  // bytes of values written in one hold of the locks

}  // namespace

LateUpdate::LateUpdate(std::shared_ptr<Table> table, const ViewSpec& spec, std::vector<std::string> columns)
    : table_(std::move(table)), spec_(spec), columns_(std::move(columns)) {
  tables_[table_->index()] = table_;
}

const LateUpdate::LatePlaces& LateUpdate::places(u32 layout) {
  const auto known = places_.find(layout);
  if (known != places_.end()) return known->second;
  const LayoutInfo info = read_layout(table_->arena(), layout);
  const std::vector<std::string> names = read_column_names(table_->arena(), layout);
  LatePlaces found{info.late_bytes, {}};
  for (const std::string& column : columns_) {
    const auto at = std::find(names.begin(), names.end(), column);
    const ColumnLayout none{kNone, 0, 0, 0, 0};
    found.column.push_back(at == names.end() ? none : info.columns[static_cast<std::size_t>(at - names.begin())]);
  }
  return places_.emplace(layout, std::move(found)).first->second;
}

// Calls visit() with the items that a key's slot stands for. The slot of a group's first answer stands for the whole
// group if the range goes beyond the answer's own row.
template <class Visit>
void LateUpdate::each_item(u32 slot, LateRange range, Visit visit) {
  TableCore& core = table_->core;
  const bool group = core.groups.on() && !core.items[slot].is(ItemState::kMember);
  if (group && (range.first != 0 || range.count != 1))
    core.groups.each(slot, [&](u32, const Item& item) { visit(item); });
  else
    visit(core.items[slot]);
}

// Finds the other tables of these items' chunks. True: the locks of some are not held. Under this table's lock.
bool LateUpdate::learn_tables(std::span<const u64> keys, LateRange range) {
  TableCore& core = table_->core;
  bool more = false;
  for (const u64 key : keys) {
    if (!core.items.holds(key)) continue;
    each_item(key_slot(key), range, [&](const Item& item) { more = learn_tables_of(item) || more; });
  }
  return more;
}

bool LateUpdate::learn_tables_of(const Item& item) {
  bool more = false;
  u32 chunk = item.chunk();
  for (u32 left = table_->core.chunks.covered(chunk, item.row(), item.rows()); left > 0 && chunk != kNone; --left) {
    for (const Attachment& at : heap().chunk_memory.attachments(chunk)) {
      if (at.attached.load() == 0) continue;
      const auto known = tables_.find(at.table);
      if (known != tables_.end() && known->second->generation() == at.table_generation) continue;
      TableHeader& header = table_->arena().table(at.table);
      if (!header.is(TableState::kLive) || header.generation.load() != at.table_generation) continue;
      tables_[at.table] = std::make_shared<Table>(table_->arena().shared_from_this(), at.table);
      more = true;
    }
    chunk = heap().chunk_memory.head(chunk).next.load(std::memory_order_acquire) - 1;
  }
  return more;
}

// Appends the rows of an item's own steps to steps_.
void LateUpdate::list_item(const Item& item) {
  const bool next = spec_.has_next() && (item.flags() & (kItemNoNext | kItemFinished)) == 0;
  u32 own = item.rows() - std::min(item.rows(), item.back() + (next ? 1 : 0));
  if (spec_.horizon != 0) own = std::min(own, spec_.n_step);
  RowAt at = first_step(heap(), item);
  for (u32 i = 0; i < own; ++i) {
    // Don't go on after the last row: the item does not keep the chunk of the next row.
    if (i != 0) at = row_after(heap(), at, 1);
    if (at.chunk == kNone) throw Error(Code::kCorruptData, "an item's rows are not in its chunks");
    if (spec_.cross_episodes && is_final(head_at(heap(), at), at.row)) continue;
    if (i % spec_.stride == 0) steps_.push_back(at);
  }
}

// Fills steps_ with the rows to write; for a group, with the rows of its answers, in their order. Throws kInvalid if
// the item has fewer steps.
void LateUpdate::list_steps(u32 slot, LateRange range) {
  steps_.clear();
  each_item(slot, range, [this](const Item& item) { list_item(item); });
  if (range.count == 0) return;
  const i64 have = static_cast<i64>(steps_.size());
  const i64 first = range.first < 0 ? range.first + have : range.first;
  if (first < 0 || first >= have)
    throw Error(Code::kInvalid, "row=" + std::to_string(range.first) + ": an item has " + std::to_string(have) +
                                    " rows; the values of the items before it were set");
  steps_ = {steps_[static_cast<std::size_t>(first)]};
}

// Makes items of any table live that wait at this row and now have all they wait for. All locks are held.
void LateUpdate::end_waits(RowAt at) {
  const std::span<Attachment> all = heap().chunk_memory.attachments(at.chunk);
  const LateRows late = head_at(heap(), at).late;
  for (u32 i = 0; i < std::min<std::size_t>(all.size(), late.tables); ++i) {
    const auto found = tables_.find(all[i].table);
    const u32 slot = late.waits(i, at.row).load(std::memory_order_relaxed) - 1;
    if (slot == kNone || found == tables_.end() || found->second->generation() != all[i].table_generation) continue;
    TableCore& core = found->second->core;
    if (slot >= core.items.slots() || !is_complete(heap(), at, i)) continue;
    const Item& item = core.items[slot];
    const bool waits = item.is(ItemState::kWaiting) || item.is(ItemState::kMember);
    const RowAt first = waits ? first_step(heap(), item) : RowAt{};
    if (first.chunk != at.chunk || first.row != at.row) continue;  // the slot has another item by now
    if (!core.groups.on())
      core.end_wait(slot);
    else if (!end_wait_of_group(core, core.groups.item_of(slot)))
      continue;
    core.commit();
    DI_FAULT("late.item_went_on");
  }
}

void LateUpdate::write(u64 item, std::span<const LateValue> values, LateRange range) {
  for (std::size_t i = 0; i < steps_.size() && i < range.given(); ++i) {
    const RowAt at = steps_[i];
    const HeadView head = head_at(heap(), at);
    const LatePlaces& where = places(head.layout);
    const LateRows late = where.late_bytes == 0 ? LateRows{} : late_of(head, where.late_bytes);
    for (const LateValue& value : values) {
      const ColumnLayout& column = where.column.at(value.column);
      if (column.place != static_cast<u32>(ColumnPlace::kLate) || late.words == nullptr ||
          column.row_bytes != value.row_bytes)
        throw Error(Code::kInvalid, "column '" + columns_[value.column] + "' is not late in these rows");
    }
    LateChange change(late, at.row);
    for (const LateValue& value : values)
      change.set(where.column[value.column], value.data + (item * range.given() + i) * value.row_bytes);
    change.show();
    end_waits(at);
  }
}

u64 LateUpdate::update_some(std::span<const u64> keys, u64 first, std::span<const LateValue> values, LateRange range,
                            std::optional<u64> lease, Deadline deadline) {
  for (;;) {
    std::vector<std::unique_ptr<TableGuard>> guards;
    for (auto at = tables_.begin(); at != tables_.end();) {
      try {
        guards.push_back(std::make_unique<TableGuard>(at->second->core, deadline));
        ++at;
      } catch (const Error& error) {
        if (error.code() != Code::kTableNotFound || at->second == table_) throw;
        at = tables_.erase(at);  // the table was dropped meanwhile: its items are gone
      }
    }
    require_not_taken_over(table_->core);
    if (learn_tables(keys, range)) continue;
    for (const auto& [index, table] : tables_) {
      end_due_groups(table->core);
      table->core.change();
    }
    u64 there = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!table_->core.items.holds(keys[i])) continue;
      list_steps(key_slot(keys[i]), range);
      write(first + i, values, range);
      ++there;
    }
    if (lease) end_leases_now(table_->core, keys, *lease, LeaseEnd::kAcknowledged);
    for (const auto& [index, table] : tables_) table->core.items_came().signal(kMaxClients);
    return there;
  }
}

u64 LateUpdate::run(std::span<const u64> keys, std::span<const LateValue> values, LateRange range,
                    std::optional<u64> lease, Deadline deadline) {
  u64 bytes = 1, there = 0;
  for (const LateValue& value : values) bytes += value.row_bytes * range.given();
  const std::size_t some = std::clamp<u64>(kHoldBytes / bytes, 1, kBatchStep);
  for (std::size_t at = 0; at < keys.size(); at += some) {
    const std::size_t count = std::min(some, keys.size() - at);
    there += update_some(keys.subspan(at, count), at, values, range, lease, deadline);
  }
  for (const auto& [index, table] : tables_) table->core.do_deferred(Deadline::only_try());
  return there;
}

}  // namespace di
