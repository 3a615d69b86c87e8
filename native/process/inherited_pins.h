// The pins that a forked child inherits. The parent notes them just before the fork; attach/fork.h says what becomes of
// each in the child. Inherited arrays keep naming ledger entries by the parent's numbers, so the child uses these
// numbers for nothing else. Guarded by Client::local().
#pragma once

#include <span>
#include <vector>

#include "base/types.h"

namespace di {

struct InheritedPin {
  u32 number;     // of the parent's ledger entry
  u64 what, ref;  // as it was
};

class InheritedPins {
 public:
  bool is_noted() const { return noted_; }    // by the fork that made this process, or by one under way
  void note(std::vector<InheritedPin> pins);  // in order of their numbers
  void set_noted(bool noted) { noted_ = noted; }
  bool has(u32 number) const;  // an inherited array may still drop the number

  // In the child.
  void discard(std::span<const u32> dropped);       // in order: of arrays that are gone
  std::span<InheritedPin> left() { return left_; }  // pins of living arrays that are not repeated
  template <class IsDone>
  void end_where(IsDone is_done) {
    std::erase_if(left_, is_done);
  }
  void keep() noexcept;  // the remaining pins are not repeated: their arrays have copies of the bytes

 private:
  std::vector<InheritedPin> left_, kept_;  // by number
  bool noted_ = false;
};

}  // namespace di
