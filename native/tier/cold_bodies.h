// Parts of chunk bodies that a batch needs and that are not in memory. Gather lists them, the disk tier reads them, and
// Gather then finds its rows in them. One object serves one batch, from one thread at a time.
#pragma once

#include <map>
#include <vector>

#include "base/types.h"

namespace di {

// Gather throws this when it meets a body that is not in memory and was not read for it. Only the targets have changed.
struct NotInMemory {};

struct BodyPart {
  u64 from = 0, bytes = 0;  // of the body
  const u8* at = nullptr;   // the bytes once they are read; null: not yet
};

class ColdBody {
 public:
  explicit ColdBody(u32 chunk) : chunk_(chunk) {}

  u32 chunk() const { return chunk_; }  // its descriptor
  void want(u64 from, u64 bytes);
  bool wants() const { return !wanted_.empty(); }
  const std::vector<BodyPart>& wanted() const { return wanted_; }  // wanted and missing parts
  // The wanted parts that are missing, sorted. Parts at most `gap` bytes apart are joined. The caller sets their `at`.
  std::vector<BodyPart*> missing(u64 gap);
  bool has(u64 from, u64 bytes) const { return find(from, bytes) != nullptr; }
  // The address of these bytes, which must lie in one part; otherwise throws kCorruptData.
  const u8* at(u64 from, u64 bytes) const;

 private:
  const BodyPart* find(u64 from, u64 bytes) const;

  u32 chunk_;
  std::vector<BodyPart> wanted_;
  std::map<u64, BodyPart> parts_;  // by `from`; they may overlap
};

// The bodies of a batch, keyed by the address of the chunk's head. The map is sorted, so a batch is always read in the
// same order.
class ColdBodies {
 public:
  ColdBody& of(const u8* head, u32 chunk) { return bodies_.try_emplace(head, chunk).first->second; }
  const ColdBody* find(const u8* head) const {
    const auto found = bodies_.find(head);
    return found == bodies_.end() ? nullptr : &found->second;
  }
  bool empty() const { return bodies_.empty(); }
  auto begin() { return bodies_.begin(); }
  auto end() { return bodies_.end(); }
  auto begin() const { return bodies_.begin(); }
  auto end() const { return bodies_.end(); }

 private:
  std::map<const u8*, ColdBody> bodies_;
};

}  // namespace di
