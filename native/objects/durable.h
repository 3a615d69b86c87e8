// Objects and weights with durability="disk". Such an object is sealed once its record is on disk (tier/object_log.h).
// So an object that can be read is on disk. docs/object_log.md says which records count when a store is opened again.
//
// put: write the block, append its record, sync, then in one hold of the heap's lock name its place and seal it. After
// a kill before that hold no object names the record, and void_stray_records() marks it as void; the reaper frees the
// block. delete: mark the record, then remove the object. After a kill in between the object stays until the store
// ends.
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
// Seals the drafts once they are on disk, all of them or none. Throws kStoreFull, kStoreError, kTimeout: none was
// sealed.
void keep_objects(Arena& arena, std::span<const DurableDraft> drafts);
// As Weights::publish(); the draft is the next version, and stays until a newer one is on disk.
i64 publish_durable(Arena& arena, const std::string& name, Draft* draft, u64 keep, u32 pin = kNone);
// False: no such object. The record of a durable object is marked first; sync_objects() brings the mark to the disk.
bool remove_object(Arena& arena, const Id& id, Deadline deadline);
// When it returns, all durable objects and all deletes so far are on disk, where the next store of the folder finds
// them. Throws kStoreError if files, or the folder, were removed or renamed.
void sync_objects(Arena& arena, Deadline deadline);
// If this process has begun a new log file, of durable or other objects, tidies the full ones. Called between two
// calls.
void tidy_if_rolled(Arena& arena);

}  // namespace di
