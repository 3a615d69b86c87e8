// An object that is being written. Nobody can read it before it is sealed; a draft that is not sealed goes.
#pragma once

#include <string>
#include <utility>

#include "attach/arena.h"

namespace di {

struct DraftRequest {
  u64 bytes = 0;
  const u8* id = nullptr;  // null: it gets its id when it is published
  u64 expires_ns = 0;      // as os::boot_ns(); 0: never
};

class Draft {
 public:
  // Takes the ledger entry that will hold the block up, so that the block goes if this process dies.
  Draft(Arena& arena, Deadline deadline)
      : arena_(arena), entry_(arena.ledger().take_one(deadline)), fork_generation_(arena.fork_generation()) {}
  ~Draft();  // takes no lock
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  // Memory to write to. Throws, and the draft is as before: kObjectExists, kStoreFull, and kCapacity for what can never
  // fit.
  u8* make_block(const DraftRequest& request, Deadline deadline);
  // Readers can find it. Takes no lock, and nothing can fail.
  void seal();
  // Frees the block now, where the heap's lock can be had soon; else as the destructor.
  void abandon();
  // Another will seal it: the descriptor, and the ledger entry that holds it.
  u32 descriptor() const { return descriptor_; }
  u32 entry() const { return entry_; }
  void hand_over() { entry_ = kNone; }

 private:
  Arena& arena_;
  u32 entry_;  // kNone: sealed, or gone
  u32 descriptor_ = kNone;
  u64 fork_generation_;
};

// Why an id is not free, or not readable yet: "object … exists", or who is still writing it. The writer's descriptor is
// read without a lock: one that is used again meanwhile names another process.
std::string describe_taken(const Arena& arena, const Id& id, u32 descriptor);

}  // namespace di
