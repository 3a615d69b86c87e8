// An object that is being written. No process can read it before it is sealed. The destructor frees a draft that was
// not sealed; if the process is killed, the reaper frees it.
#pragma once

#include <string>
#include <utility>

#include "attach/arena.h"

namespace di {

struct DraftRequest {
  u64 bytes = 0;
  const u8* id = nullptr;  // null: the object gets its id when it is published as weights
  u64 expires_ns = 0;      // on the clock of os::boot_ns(); 0: never
};

class Draft {
 public:
  // Takes the ledger entry that will own the block, so that the reaper frees the block if this process dies.
  Draft(Arena& arena, Deadline deadline)
      : arena_(arena), entry_(arena.ledger().take_one(deadline)), fork_generation_(arena.fork_generation()) {}
  ~Draft();  // takes no lock: marks the entry as dropped, and a later call of this process frees the block
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  // Returns the memory to write to. If it throws, the draft is as before: kObjectExists, kStoreFull, or kCapacity for
  // an object that can never fit.
  u8* make_block(const DraftRequest& request, Deadline deadline);
  // Makes the object readable. Takes no lock and cannot fail.
  void seal();
  // The same, and pins the object with the ledger entry `pin` in the same hold of the heap's lock, so that nobody can
  // delete it while the caller still has its memory. If it throws, the draft is as before. A kill in between leaves the
  // object sealed, and no pin.
  void seal_pinned(u32 pin, Deadline deadline);
  // Frees the block now if the heap's lock is soon available; else later, as the destructor does.
  void abandon();
  bool is_open() const { return entry_ != kNone; }  // neither sealed, published nor abandoned
  // For Weights::publish(), which seals the object itself: it takes descriptor and ledger entry, then calls
  // hand_over(). After that the draft no longer owns the block.
  u32 descriptor() const { return descriptor_; }
  u32 entry() const { return entry_; }
  void hand_over() { entry_ = kNone; }

 private:
  Arena& arena_;
  u32 entry_;  // kNone: sealed, abandoned or handed over
  u32 descriptor_ = kNone;
  u64 fork_generation_;
};

// Why an id is not free, or not readable yet: "object … exists", or which process is still writing it. Reads the
// descriptor without a lock: if it was reused meanwhile, the text names another process.
std::string describe_taken(const Arena& arena, const Id& id, u32 descriptor);

}  // namespace di
