// Rebuilds the heap's derived state from descriptors, ledgers and chunk attachments: after a death, and for a check.
// Everything under the heap's lock.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "heap/heap_core.h"

namespace di {

class HeapRecovery {
 public:
  explicit HeapRecovery(HeapCore& heap) : heap_(heap) {}

  void rebuild() DI_UNCHECKED;
  void recount_charges() DI_UNCHECKED;  // what tables' chunks occupy
  // Compares the derived state with its truths and repairs it; `findings` say what was wrong.
  void check(std::vector<std::string>* findings) DI_UNCHECKED;

 private:
  using Figures = std::vector<std::pair<std::string, u64>>;
  void relist_descriptors() DI_REQUIRES(heap_.lock);
  void refill_index() DI_REQUIRES(heap_.lock);
  void clear_unmade();
  void relink_bodies() DI_REQUIRES(heap_.lock);
  void free_strays() DI_REQUIRES(heap_.lock);
  void recount_pins() DI_REQUIRES(heap_.lock);
  void check_descriptors(std::vector<std::string>* findings) const;
  Figures figures() const;

  HeapCore& heap_;
};

}  // namespace di
