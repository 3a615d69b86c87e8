// Objects and weights with durability="disk": sealed when their record is on disk (tier/object_log.h), so whoever can read one
// knows that it stays. docs/object_log.md says which records count when a store is opened again.
//
// put: write the block, append its record, sync, then in one hold of the heap's lock name its place and seal it. Killed before
// that: a record that no object names, which settle_logs() marks as void, and a block that the reaper frees.
// delete: mark the record, then remove the object. Killed in between: an object that is there until the store ends.
#pragma once

#include <span>
#include <string>

#include "objects/weights.h"

namespace di {

struct DurableDraft {
  Draft* draft = nullptr;
  const u8* id = nullptr;
  u32 pin = kNone;  // a ledger entry: the object is pinned with it in the hold of the lock that seals it
};
// Seals the drafts once they are on disk, all of them or none. Throws kStoreFull, kStoreError, kTimeout: none was sealed.
void keep_objects(Arena& arena, std::span<const DurableDraft> drafts);
// As Weights::publish(); the draft is the next version, and stays until a newer one is on disk.
i64 publish_durable(Arena& arena, const std::string& name, Draft* draft, u64 keep, u32 pin = kNone);
// False: missing. The record of a durable one is marked first; sync_objects() has the mark on disk.
bool remove_object(Arena& arena, const Id& id, Deadline deadline);
// All that was durable before is on disk, where the next store of the folder finds it. Throws kStoreError: files, or the folder,
// were removed or renamed.
void sync_objects(Arena& arena, Deadline deadline);
// Whoever begins a file of records, of durable objects or others, also looks after those that are full. Between two calls.
void tidy_if_rolled(Arena& arena);

}  // namespace di
