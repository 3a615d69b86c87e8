// Parts of chunk bodies that are not in memory, as a batch needs them: Gather lists them, the disk tier reads them, and Gather
// then finds its rows in them. For one batch, one thread at a time.
#pragma once

#include <map>
#include <vector>

#include "base/types.h"

namespace di {

// Thrown by Gather when it meets a body that is not in memory and was not read for it. Nothing has changed but the targets.
struct NotInMemory {};

struct BodyPart {
  u64 from = 0, bytes = 0;  // of the body
  const u8* at = nullptr;   // where they were read to; null: not yet
};

class ColdBody {
 public:
  explicit ColdBody(u32 chunk) : chunk_(chunk) {}

  u32 chunk() const { return chunk_; }  // its descriptor
  void want(u64 from, u64 bytes);
  bool wants() const { return !wanted_.empty(); }
  const std::vector<BodyPart>& wanted() const { return wanted_; }  // and not there
  // What was wanted and is not there, sorted; parts at most `gap` bytes apart are joined. The caller sets their `at`.
  std::vector<BodyPart*> missing(u64 gap);
  bool has(u64 from, u64 bytes) const { return find(from, bytes) != nullptr; }
  // The address of these bytes, which lie in one part. Throws kCorruptData when they do not.
  const u8* at(u64 from, u64 bytes) const;

 private:
  const BodyPart* find(u64 from, u64 bytes) const;

  u32 chunk_;
  std::vector<BodyPart> wanted_;
  std::map<u64, BodyPart> parts_;  // by `from`; they may overlap
};

// The bodies of a batch, by the address of their chunks' heads. Sorted by address, so that a batch is always read alike.
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
