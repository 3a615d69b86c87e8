#include "process/inherited_pins.h"

#include <algorithm>

namespace di {

void InheritedPins::note(std::vector<InheritedPin> pins) {
  left_ = std::move(pins);
  kept_.reserve(kept_.size() + left_.size());  // for keep()
  noted_ = true;
}

bool InheritedPins::has(u32 number) const {
  const auto among = [number](const std::vector<InheritedPin>& pins) {
    const auto before = [](const InheritedPin& pin, u32 at) { return pin.number < at; };
    const auto found = std::lower_bound(pins.begin(), pins.end(), number, before);
    return found != pins.end() && found->number == number;
  };
  return among(left_) || among(kept_);
}

void InheritedPins::discard(std::span<const u32> dropped) {
  const auto gone = [dropped](const InheritedPin& pin) {
    return std::binary_search(dropped.begin(), dropped.end(), pin.number);
  };
  std::erase_if(left_, gone);
  std::erase_if(kept_, gone);
}

void InheritedPins::keep() noexcept {
  kept_.insert(kept_.end(), left_.begin(), left_.end());
  std::sort(kept_.begin(), kept_.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  left_.clear();
}

}  // namespace di
