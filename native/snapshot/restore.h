// Rebuilds a store from a checkpoint: chunks, then the items of each table, objects and weights. The store is new and
// not yet announced (attach/arena.h): only this process works on it, and nothing is left if it dies. Everything in a
// file is checked before use; damage raises kCorruptData.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rows/saved_rows.h"
#include "snapshot/chunk_file.h"
#include "snapshot/linked_bodies.h"

namespace di {

struct RestoredTable {
  std::shared_ptr<Table> table;
  u32 index = 0, generation = 0;  // of the saved table
  u32 pack_rows = 0;              // ChunkPlan::pack_rows
  bool packed_anew = false;       // by other rules than the saved table's
};

class Restore {
 public:
  explicit Restore(std::shared_ptr<Arena> arena) : arena_(std::move(arena)), linked_(arena_->heap()) {}

  u32 add_layout(const std::string& bytes, Deadline deadline);  // `bytes`: a layout's meta block, as it lies in a store
  void add_table(RestoredTable table) { tables_.push_back(std::move(table)); }
  // `files`: files of the checkpoint, each with the pages at which bodies of chunks to come begin. The disk tier takes
  // these bodies as they are, where it can. `loaded`: bodies that it will store in another form. `own`: the checkpoint
  // lies in the store's own folder.
  using FilePages = std::vector<std::pair<SavedFile*, std::vector<u32>>>;
  void link_files(const FilePages& files, const FilePages& loaded, bool own, Deadline deadline);
  // Adds a chunk of `rows` rows for these tables, given by their numbers here, and returns its descriptor. The record
  // at `page` of `file` has its head. The same record has its body, or else the record of `stored` whose body begins at
  // `body_page` does. The body stays on disk if `stored` was linked. May run in several threads if each has its own
  // `stored`, or its own `file` where there is no `stored`.
  u32 add_chunk(SavedFile& file, u32 page, SavedFile* stored, u32 body_page, u32 layout, u32 rows,
                const std::vector<u32>& tables, Deadline deadline);
  void link(u32 chunk, u32 next);
  void end_chunks(Deadline deadline) { linked_.end(deadline); }  // call it when all chunks and items are in place
  // Fills in a table's items, whose places name chunks of this store, and all else in the image.
  void fill(u32 table, const TableImage& image, Deadline deadline);
  // Adds the objects of the record at `page`. For weights, `versions` maps an object's saved id to its entry and
  // version.
  void add_objects(SavedFile& file, u32 page, const std::map<std::string, std::pair<u32, i64>>& versions,
                   Deadline deadline);
  u32 add_weights(const std::string& name, i64 newest, i64 oldest, Deadline deadline);  // returns the entry

 private:
  void restore_orders(TableCore& core, const TableImage& image);
  void add_object(const SavedObject& saved, const u8* bytes, const std::pair<u32, i64>* version, Deadline deadline);
  struct FreeMemory {
    void operator()(u8* at) const { std::free(at); }
  };
  using Unpacked = std::unique_ptr<u8[], FreeMemory>;
  // The result lies in the file's memory or in *room.
  static std::span<const u8> unpacked(SavedFile& file, const RecordHeader& record, std::vector<u8>* head, bool apart,
                                      Unpacked* room);
  ChunkPlan plan_for(const SavedRows& saved, std::span<u8> head, u64 uid, const std::vector<u32>& tables) const;

  std::shared_ptr<Arena> arena_;
  LinkedBodies linked_;
  std::vector<LayoutInfo> layouts_;
  std::vector<RestoredTable> tables_;
  std::mutex mutex_;         // guards chunks_
  std::vector<u32> chunks_;  // descriptors of the chunks made here, sorted by fill()
};

}  // namespace di
