// Makes a store again from what a checkpoint holds: chunks, then the items of each table, objects and weights. The store is new
// and not yet announced (attach/arena.h): only this process works on it, and if it dies nothing is left. What a file says is
// checked before it is used; damage raises kCorruptData.
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
  u32 index = 0, generation = 0;  // of the table that was saved
  u32 pack_rows = 0;              // ChunkPlan::pack_rows
  bool packed_anew = false;       // by other rules than those by which it was saved
};

class Restore {
 public:
  explicit Restore(std::shared_ptr<Arena> arena) : arena_(std::move(arena)), linked_(arena_->heap()) {}

  u32 add_layout(const std::string& bytes, Deadline deadline);  // as the meta block of a layout lies in a store
  void add_table(RestoredTable table) { tables_.push_back(std::move(table)); }
  // Files, and the pages of them at which bodies of chunks to come begin: the disk tier takes them as they are, where it can.
  // `loaded`: bodies that are to lie there in another way. `own`: the checkpoint lies in the store's own folder.
  using FilePages = std::vector<std::pair<SavedFile*, std::vector<u32>>>;
  void link_files(const FilePages& files, const FilePages& loaded, bool own, Deadline deadline);
  // A chunk of `rows` rows for these tables, by their numbers here. Its head is the record at `page` of `file`; so is its body,
  // or it is the record of `stored` whose body begins at `body_page`. It stays on disk if `stored` was linked. Returns its
  // descriptor. May run in several threads, if each has `stored` for itself, or without it `file`.
  u32 add_chunk(SavedFile& file, u32 page, SavedFile* stored, u32 body_page, u32 layout, u32 rows,
                const std::vector<u32>& tables, Deadline deadline);
  void link(u32 chunk, u32 next);
  void end_chunks(Deadline deadline) { linked_.end(deadline); }  // no chunk comes any more, and items were filled in
  // The items of a table, whose places name chunks of this store; and what else the image has.
  void fill(u32 table, const TableImage& image, Deadline deadline);
  // The objects of the record at `page`; of weights: `versions` has the entry and version of each object by its saved id.
  void add_objects(SavedFile& file, u32 page, const std::map<std::string, std::pair<u32, i64>>& versions,
                   Deadline deadline);
  u32 add_weights(const std::string& name, i64 newest, i64 oldest, Deadline deadline);  // its entry

 private:
  void restore_orders(TableCore& core, const TableImage& image);
  void add_object(const SavedObject& saved, const u8* bytes, const std::pair<u32, i64>* version, Deadline deadline);
  struct Free {
    void operator()(u8* at) const { std::free(at); }
  };
  using Unpacked = std::unique_ptr<u8[], Free>;
  // In memory of the file, or in *room.
  static std::span<const u8> unpacked(SavedFile& file, const RecordHeader& record, std::vector<u8>* head, bool apart,
                                      Unpacked* room);
  ChunkPlan plan_for(const SavedRows& saved, std::span<u8> head, u64 uid, const std::vector<u32>& tables) const;

  std::shared_ptr<Arena> arena_;
  LinkedBodies linked_;
  std::vector<LayoutInfo> layouts_;
  std::vector<RestoredTable> tables_;
  std::mutex mutex_;         // of chunks_
  std::vector<u32> chunks_;  // descriptors of those that were made, sorted by fill()
};

}  // namespace di
