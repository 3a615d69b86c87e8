// How objects end: removed, expired, freed when nobody has them pinned. Under the heap's lock.
//
// A pin is counted in the descriptor and recorded in a ledger entry of the process that has it. An object that is
// removed while it is pinned is doomed: it cannot be found any more, and its last unpin frees it.
#pragma once

#include "heap/heap_core.h"

namespace di {

inline bool has_expired(const Descriptor& entry, u64 now) { return entry.expires_ns != 0 && entry.expires_ns <= now; }
inline bool has_expired(const Descriptor& entry) { return entry.expires_ns != 0 && has_expired(entry, os::boot_ns()); }

class ObjectEnds {
 public:
  explicit ObjectEnds(HeapCore& heap) : heap_(heap) {}

  void retire(u32 descriptor) DI_UNCHECKED;  // frees a sealed object, now or at its last unpin
  // Adds a pin, for a ledger entry of this process. The pin is counted before the entry names it: a kill in between
  // leaves the count too high, and the lock's next owner recounts. A caller that will read the bytes first checks that
  // they are in memory. `brief`: the pin serves only the work at hand, and a forked child does not repeat it.
  void pin(u32 descriptor, u32 entry, bool brief = false) DI_UNCHECKED;
  void unpin(u32 descriptor) DI_UNCHECKED;
  void expire() DI_UNCHECKED;  // retires all objects whose ttl is over

 private:
  HeapCore& heap_;
};

}  // namespace di
