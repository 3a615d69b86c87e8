#include "replay/new_blocks.h"

#include "heap/heap.h"

namespace di {

NewBlocks::~NewBlocks() {
  const os::Quiet quiet;
  for (const Made& made : made_) {
    try {
      arena_.heap().maker.abandon(made.descriptor, made.entry);
    } catch (...) {  // the reaper frees the block when this process ends
    }
  }
}

u32 NewBlocks::add(u64 bytes, Deadline deadline) {
  if (bytes == 0) return 0;
  made_.reserve(made_.size() + 1);  // first, so that listing the new block can't fail
  const u32 entry = arena_.ledger().take_one(deadline);
  try {
    made_.push_back({arena_.heap().maker.begin_meta(bytes, table_, entry, deadline), entry});
  } catch (...) {
    arena_.ledger().give_unused(entry);
    throw;
  }
  return made_.back().descriptor + 1;
}

void NewBlocks::seal() {
  for (const Made& made : made_) arena_.heap().maker.seal(made.descriptor, made.entry);
  made_.clear();
}

}  // namespace di
