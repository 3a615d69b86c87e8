#include "rows/returns.h"

#include <algorithm>
#include <cstring>

namespace di {

namespace {

template <class T>
double load_as(const u8* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return static_cast<double>(value);
}

double load(const u8* from, Number number) {
  switch (number) {
    case Number::kF4: return load_as<float>(from);
    case Number::kF8: return load_as<double>(from);
    case Number::kI1: return load_as<signed char>(from);
    case Number::kI2: return load_as<std::int16_t>(from);
    case Number::kI4: return load_as<i32>(from);
    case Number::kI8: return load_as<i64>(from);
    case Number::kU1: return load_as<u8>(from);
    case Number::kU2: return load_as<u16>(from);
    case Number::kU4: return load_as<u32>(from);
    case Number::kU8: return load_as<u64>(from);
  }
  return 0;
}

void store_float(u8* to, double value) {
  const float narrow = static_cast<float>(value);
  std::memcpy(to, &narrow, sizeof narrow);
}

// The stored value of an output of an item inserted whole (kItemFinished), or nullptr if the output must be computed.
const u8* finished(const Output& output, const ItemBlock& block, const Rows& item, u32 count) {
  if ((item.flags & kItemFinished) == 0 || output.finished == kNone) return nullptr;
  return fixed(block.place(item, item.back), output.finished, u64{number_bytes(output.finished_number)} * count);
}

}  // namespace

u32 number_bytes(Number number) {
  switch (number) {
    case Number::kI1:
    case Number::kU1: return 1;
    case Number::kI2:
    case Number::kU2: return 2;
    case Number::kF4:
    case Number::kI4:
    case Number::kU4: return 4;
    default: return 8;
  }
}

void store_integer(u8* to, u32 value, u32 bytes) {
  const u64 wide = value;
  std::memcpy(to, &wide, bytes);  // little-endian, as on every supported machine
}

Returns::Returns(const ViewPlan& plan) : plan_(plan) {
  powers_.assign(plan.spec.kind == ViewKind::kTransition ? plan.spec.n_step + size_t{1} : 2, 1.0);
  for (size_t k = 1; k < powers_.size(); ++k) powers_[k] = powers_[k - 1] * plan.gamma;
}

double Returns::weight(const Place& place, u32 element) const {
  const u32 bytes = number_bytes(plan_.discount_number);
  const u8* value = fixed(place, plan_.discount_column, u64{bytes} * plan_.discount_count);
  return value == nullptr ? 1 : load(value + u64{element} * bytes, plan_.discount_number);
}

bool Returns::stops(const Place& place) const {
  for (u32 e = 0; e < plan_.discount_count; ++e) {
    if (weight(place, e) != 0) return false;
  }
  return true;
}

void Returns::cut(ItemBlock& block) const {
  if (plan_.spec.kind != ViewKind::kTransition || plan_.discount_column == kNone) return;
  for (Rows& item : block.items) {
    for (u32 i = 0; i + 1 < item.steps; ++i) {
      if (!stops(block.place(item, item.back + i))) continue;
      item.steps = i + 1;
      item.next = true;  // another step follows in the window, so the observation after this one is stored
      break;
    }
  }
}

void Returns::reward(const ItemBlock& block, u8* to) const {
  const ColumnLayout* layout = block.map == nullptr ? nullptr : &block.map->column[plan_.reward_column];
  const bool plain = layout != nullptr && plan_.discount_column == kNone && plan_.reward_count == 1 &&
                     plan_.reward_number == Number::kF4 && layout->place == static_cast<u32>(ColumnPlace::kRecord);
  for (size_t i = 0; i < block.items.size(); ++i, to += u64{plan_.reward_count} * 4) {
    const Rows& item = block.items[i];
    if (!plain || item.pieces != 1) {
      reward_of(block, item, to);
      continue;
    }
    const u8* from = block.row[i] + layout->offset;
    double sum = 0;
    for (u32 k = 0; k < item.steps; ++k, from += block.map->record_bytes) sum += powers_[k] * load_as<float>(from);
    store_float(to, sum);
  }
}

void Returns::reward_of(const ItemBlock& block, const Rows& item, u8* to) const {
  const u32 bytes = number_bytes(plan_.reward_number);
  const bool weighted = plan_.discount_column != kNone && (item.flags & kItemFinished) == 0;
  for (u32 e = 0; e < plan_.reward_count; ++e) {
    double sum = 0, factor = 1;
    for (u32 i = 0; i < item.steps; ++i) {
      const Place place = block.place(item, item.back + i);
      const u8* value = fixed(place, plan_.reward_column, u64{bytes} * plan_.reward_count);
      if (value != nullptr) sum += factor * load(value + u64{e} * bytes, plan_.reward_number);
      factor *= plan_.gamma;
      if (weighted) factor *= weight(place, plan_.discount_count == 1 ? 0 : e);
    }
    store_float(to + u64{e} * 4, sum);
  }
}

void Returns::discount(const Output& output, const ItemBlock& block, u8* to) const {
  const u32 count = output.row_bytes / 4;
  for (const Rows& item : block.items) {
    if (const u8* whole = finished(output, block, item, count)) {
      const u32 bytes = number_bytes(output.finished_number);
      for (u32 e = 0; e < count; ++e)
        store_float(to + u64{e} * 4, load(whole + u64{e} * bytes, output.finished_number));
    } else if ((item.flags & kItemTerminal) != 0) {
      std::memset(to, 0, output.row_bytes);
    } else if (plan_.discount_column == kNone) {
      store_float(to, powers_[item.steps]);
    } else {
      discount_of(block, item, count, to);
    }
    to += output.row_bytes;
  }
}

void Returns::discount_of(const ItemBlock& block, const Rows& item, u32 count, u8* to) const {
  for (u32 e = 0; e < count; ++e) {
    double factor = 1;
    for (u32 i = 0; i < item.steps; ++i) factor *= plan_.gamma * weight(block.place(item, item.back + i), e);
    store_float(to + u64{e} * 4, factor);
  }
}

void Returns::steps(const Output& output, const ItemBlock& block, u8* to) const {
  for (const Rows& item : block.items) {
    u32 steps = item.steps;
    if (const u8* whole = finished(output, block, item, 1)) {
      steps = static_cast<u32>(std::clamp(load(whole, output.finished_number), 0.0, double{kMaxWindowRows}));
    }
    store_integer(to, steps, output.row_bytes);
    to += output.row_bytes;
  }
}

}  // namespace di
