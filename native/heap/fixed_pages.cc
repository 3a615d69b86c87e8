#include "heap/fixed_pages.h"

namespace di {
namespace {

constexpr int kMostMoves = 8;  // other processes may take the returned pages

}  // namespace

bool commit_fixed(Heap& heap, u64 offset, u64 bytes, Deadline deadline, std::string* why) {
  for (int moves = 0; !heap.memory.commit(offset, bytes, why); ++moves) {
    if (moves == kMostMoves || heap.move_pages(kSliceBytes, PageReclaim::Unused::kAny, deadline) == 0) return false;
    os::forget_headroom();
  }
  return true;
}

}  // namespace di
