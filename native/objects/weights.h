// Published weights. Version v of a name is an object whose id is computed from the name's entry and v; the entry holds
// the numbers of the newest and the oldest version. These change under the heap's lock and are read without it.
//
// publish() works in this order: seal the object, store `newest`, delete old versions, store `oldest`. If a publisher
// is killed in between, the next one replaces a version that was sealed but not announced, and goes on deleting. Last of
// all it wakes who waits for the version, among them draws from tables with a Pace (replay/limiter.h).
#pragma once

#include <string>

#include "objects/draft.h"

namespace di {

struct DurableVersion {
  i64 version = 0;  // as its record says
  LogPlace place;   // of the record
};

class Weights {
 public:
  explicit Weights(Heap& heap) : heap_(heap), memory_(heap.memory) {}

  u32 entry(const std::string& name, Deadline deadline);  // index of a name's entry, which is made if there is none
  u32 find(const std::string& name) const;                // takes no lock; kNone: there is none
  // Publishes the draft as version `newest + 1` of entry `index` and deletes all but the last `keep` versions. Without
  // a draft (null) it skips the number: no such version can be read. If it throws, the caller still owns the draft. The
  // newest durable version also stays, until a newer one is durable. With `durable` the draft is such a version; if
  // another version came in between, the result is 0 and nothing has happened. With `pin`, a ledger entry, the draft is
  // pinned in the same hold of the lock. With `at` the draft becomes that version instead; if `at` is not above
  // `newest`, the result is 0 and nothing has happened. If that skips numbers, all older versions but the newest
  // durable one are deleted.
  i64 publish(u32 index, Draft* draft, u64 keep, Deadline deadline, const DurableVersion* durable = nullptr,
              u32 pin = kNone, i64 at = 0);
  // The id of version v of weights entry i.
  static void version_id(const Memory& memory, u32 index, i64 version, Id& id);

 private:
  void wake_paced(u32 index) const;
  void retire(u32 index, i64 version) DI_REQUIRES(heap_.lock);
  void retire_before(u32 index, i64 stop, u64 keep) DI_REQUIRES(heap_.lock);

  Heap& heap_;
  Memory& memory_;
};

}  // namespace di
