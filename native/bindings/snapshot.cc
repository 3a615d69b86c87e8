// Checkpoints of a store, and stores made from them.
#include "snapshot/snapshot.h"

#include <nanobind/stl/pair.h>

#include <cstring>

#include "bindings/bindings.h"
#include "objects/weights.h"
#include "os/crc32c.h"
#include "snapshot/chunk_file.h"
#include "snapshot/restore.h"

namespace di::py {
namespace {

// Visits all counts by name, so that both directions and the file agree.
template <class Counts, class Visit>
void each_count(Counts& counts, Visit&& visit) {
  visit("next_number", counts.next_number);
  visit("rng_counter", counts.rng_counter);
  visit("epoch", counts.epoch);
  visit("latest_epoch", counts.latest_epoch);
  visit("finished", counts.finished);
  visit("inserts", counts.total_inserts);
  visit("samples", counts.total_samples);
  visit("removed", counts.total_removed);
  visit("updates", counts.total_updates);
  visit("stale_updates", counts.stale_updates);
  visit("evicted_for_room", counts.evicted_for_room);
  visit("stale_dropped", counts.stale_dropped);
  visit("episodes_cut", counts.episodes_cut);
  visit("steps_left_out", counts.steps_left_out);
  visit("groups_dropped", counts.groups_dropped);
  visit("groups_short", counts.groups_short);
  visit("late_answers", counts.late_answers);
  visit("max_priority", counts.max_priority);
}

template <class Limiter, class Visit>
void each_limit(Limiter& limiter, Visit&& visit) {
  visit("ratio", limiter.ratio);
  visit("min_diff", limiter.min_diff);
  visit("max_diff", limiter.max_diff);
  visit("min_size", limiter.min_size);
  visit("inserts", limiter.inserts);
  visit("samples", limiter.samples);
  visit("queue", limiter.queue);
  visit("since", limiter.since);
}

template <class Value>
nb::dict dict_of(Value& values, auto&& each) {
  nb::dict made = new_dict();
  each(values, [&made](const char* name, const auto& value) { made[name] = value; });
  return made;
}

nb::object words_of(const std::vector<Item>& items) {
  std::vector<u64> words(items.size() * sizeof(Item) / sizeof(u64));
  if (!items.empty()) std::memcpy(words.data(), static_cast<const void*>(items.data()), items.size() * sizeof(Item));
  return new_array(words, NPY_UINT64);
}

nb::dict table_of(const TableImage& image) {
  nb::dict made = new_dict();
  made["index"] = image.index;
  made["generation"] = image.generation;
  made["name"] = image.name;
  made["config"] = image.config;
  made["schema"] = image.schema;
  made["capacity"] = image.capacity;
  made["max_bytes"] = image.max_bytes;
  made["alpha"] = image.alpha;
  made["beta"] = std::isnan(image.beta) ? nb::none() : nb::object(nb::float_(image.beta));
  made["max_staleness"] = image.max_staleness;
  made["counts"] = dict_of(image.counts, [](auto& counts, auto&& visit) { each_count(counts, visit); });
  made["limiter"] = dict_of(image.limiter, [](auto& limiter, auto&& visit) { each_limit(limiter, visit); });
  made["items"] = words_of(image.items);
  made["dense"] = new_array(image.dense, NPY_UINT32);
  made["dense_left"] = image.dense_left;
  made["removed_from"] = new_array(image.removed_from, NPY_UINT32);
  made["removed_left"] = image.removed_left;
  made["free"] = new_array(image.free, NPY_UINT32);
  made["draws"] = new_array(image.draws, NPY_UINT64);
  made["ended"] = new_array(image.ended, NPY_UINT64);
  return made;
}

std::vector<u32> slots_from(nb::handle array) {
  const UserObject kept = as_array(array, NPY_UINT32);
  const std::span<const u32> view = view_of<u32>(kept);
  return {view.begin(), view.end()};
}

TableImage image_from(const nb::dict& from) {
  TableImage image;
  image.alpha = field<double>(from, "alpha");
  image.beta = from["beta"].is_none() ? std::nan("") : field<double>(from, "beta");
  image.max_staleness = field<i64>(from, "max_staleness");
  const nb::dict counts = field<nb::dict>(from, "counts"), limiter = field<nb::dict>(from, "limiter");
  each_count(image.counts, [&counts](const char* name, auto& value) {
    value = field<std::remove_reference_t<decltype(value)>>(counts, name);
  });
  each_limit(image.limiter, [&limiter](const char* name, auto& value) {
    value = field<std::remove_reference_t<decltype(value)>>(limiter, name);
  });
  const UserObject words = as_array(from["items"], NPY_UINT64), draws = as_array(from["draws"], NPY_UINT64),
                   ended = as_array(from["ended"], NPY_UINT64);
  const std::span<const u64> items = view_of<u64>(words), keys = view_of<u64>(draws), values = view_of<u64>(ended);
  image.items.resize(items.size() * sizeof(u64) / sizeof(Item));
  if (!items.empty())
    std::memcpy(static_cast<void*>(image.items.data()), items.data(), image.items.size() * sizeof(Item));
  image.draws.assign(keys.begin(), keys.end());
  image.ended.assign(values.begin(), values.end());
  image.dense = slots_from(from["dense"]);
  image.removed_from = slots_from(from["removed_from"]);
  image.free = slots_from(from["free"]);
  image.dense_left = field<u64>(from, "dense_left");
  image.removed_left = field<u64>(from, "removed_left");
  return image;
}

template <class Field>
nb::object column_of(const Snapshot& snapshot, Field field, int type) {
  using Value = std::remove_cvref_t<decltype(field(snapshot.chunks()[0]))>;
  std::vector<Value> values;
  values.reserve(snapshot.chunks().size());
  for (const ChunkImage& chunk : snapshot.chunks()) values.push_back(field(chunk));
  return new_array(values, type);
}

nb::dict chunks_of(const Snapshot& snapshot) {
  nb::dict made = new_dict();
  made["uid"] = column_of(snapshot, [](const ChunkImage& c) { return c.uid; }, NPY_UINT64);
  made["stored"] = column_of(snapshot, [](const ChunkImage& c) { return c.stored_bytes; }, NPY_UINT64);
  made["chunk"] = column_of(snapshot, [](const ChunkImage& c) { return c.chunk; }, NPY_UINT32);
  made["layout"] = column_of(snapshot, [](const ChunkImage& c) { return c.layout; }, NPY_UINT32);
  made["rows"] = column_of(snapshot, [](const ChunkImage& c) { return c.rows; }, NPY_UINT32);
  made["next"] = column_of(snapshot, [](const ChunkImage& c) { return c.next; }, NPY_UINT32);
  made["closed"] = column_of(snapshot, [](const ChunkImage& c) { return c.closed; }, NPY_UINT32);
  made["late"] = column_of(snapshot, [](const ChunkImage& c) { return c.late; }, NPY_UINT32);
  made["file"] = column_of(snapshot, [](const ChunkImage& c) { return c.file; }, NPY_UINT32);
  made["stored_page"] = column_of(snapshot, [](const ChunkImage& c) { return c.page; }, NPY_UINT32);
  return made;
}

// For all weights: name, newest and oldest version; and for each existing version its number and the object's id.
nb::list weights_of(const Snapshot& snapshot) {
  std::map<std::string, u32> known;
  for (const ObjectImage& object : snapshot.objects())
    known.emplace(std::string(reinterpret_cast<const char*>(object.id), sizeof object.id), 0);
  nb::list all = new_list();
  for (const WeightsImage& weights : snapshot.weights()) {
    nb::list versions = new_list();
    const u32 index = Weights(snapshot.arena().heap()).find(weights.name);
    for (i64 version = weights.newest; version >= weights.oldest && index != kNone; --version) {
      Id id;
      Weights::version_id(snapshot.arena(), index, version, id);
      const std::string text(reinterpret_cast<const char*>(id), sizeof id);
      if (known.contains(text)) versions.append(new_tuple(nb::int_(version), nb::bytes(text.data(), text.size())));
    }
    all.append(new_tuple(nb::str(weights.name.c_str()), nb::int_(weights.newest), nb::int_(weights.oldest), versions));
  }
  return all;
}

nb::bytes layout_of(const Snapshot& snapshot, u32 index) {
  const Arena& arena = snapshot.arena();
  read_layout(arena, index);  // throws when there is no such layout
  const std::span<const u8> block = layout_bytes(arena, index);
  return nb::bytes(reinterpret_cast<const char*>(block.data()), block.size());
}

Uuid uuid_from(const nb::bytes& bytes) {
  Uuid uuid;
  if (bytes.size() != uuid.size()) throw Error(Code::kInvalid, "an id has 16 bytes");
  std::memcpy(uuid.data(), bytes.data(), uuid.size());
  return uuid;
}

void bind_holding(nb::class_<Snapshot>& type) {
  type.def(
          "head_crcs",
          [](const Snapshot& self, nb::handle numbers) {
            std::vector<u32> crcs;
            for (const u32 number : slots_from(numbers)) {
              const std::vector<u8> head = self.head_of(self.chunks().at(number));
              crcs.push_back(crc32c(head.data(), head.size()));
            }
            return new_array(crcs, NPY_UINT32);
          },
          nb::arg("numbers"),
          nb::sig(
              "def head_crcs(self, numbers: numpy.typing.NDArray[typing.Any]) -> numpy.typing.NDArray[numpy.uint32]"))
      .def(
          "find_copies", [](Snapshot& self, Deadline deadline) { self.find_copies(deadline); }, nb::arg("timeout"))
      .def(
          "release",
          [](Snapshot& self, nb::handle numbers, Deadline deadline) {
            const std::vector<u32> all = slots_from(numbers);
            const MaybeRelease release(true);
            self.release(all, deadline);
          },
          nb::arg("numbers"), nb::arg("timeout"),
          nb::sig("def release(self, numbers: numpy.typing.NDArray[typing.Any], timeout: float) -> None"))
      .def(
          "close",
          [](Snapshot& self, Deadline deadline) {
            const MaybeRelease release(true);
            self.release_all(deadline);
          },
          nb::arg("timeout"));
}

void bind_taking(nb::module_& module) {
  nb::class_<Snapshot> type(module, "Snapshot", "A store at one instant: held until close().");
  bind_holding(type);
  type.def(
          "__init__",
          [](Snapshot* self, const ArenaPointer& arena, std::optional<std::vector<std::string>> names,
             Deadline deadline) {
            arena->enter();
            const MaybeRelease release(true);
            new (self) Snapshot(arena, names ? &*names : nullptr, deadline);
          },
          nb::arg("arena"), nb::arg("names").none(), nb::arg("timeout"))
      .def(
          "tables",
          [](const Snapshot& self) {
            nb::list all = new_list();
            for (const TableImage& image : self.tables()) all.append(table_of(image));
            return all;
          },
          nb::sig("def tables(self) -> list[dict[str, typing.Any]]"))
      .def("chunks", &chunks_of, nb::sig("def chunks(self) -> dict[str, numpy.typing.NDArray[typing.Any]]"))
      .def(
          "objects",
          [](const Snapshot& self) {
            std::vector<u64> bytes;
            for (const ObjectImage& object : self.objects()) bytes.push_back(object.bytes);
            return new_array(bytes, NPY_UINT64);
          },
          nb::sig("def objects(self) -> numpy.typing.NDArray[numpy.uint64]"))
      .def("weights", &weights_of, nb::sig("def weights(self) -> list[tuple[str, int, int, list[tuple[int, bytes]]]]"))
      .def("layout", &layout_of, nb::arg("index"))
      .def_prop_ro("next_stream", [](const Snapshot& self) { return self.arena().heap_header().next_stream; })
      .def_prop_ro("next_uid", &Snapshot::next_uid);
}

void bind_files(nb::module_& module) {
  nb::class_<ChunkFile>(module, "ChunkFile", "A file of a checkpoint that is being written.")
      .def(
          "__init__",
          [](ChunkFile* self, const std::string& folder, const nb::bytes& uuid, u32 number, u64 bytes) {
            SegmentOwner owner;
            owner.uuid = uuid_from(uuid);
            owner.epoch = 1;
            owner.incarnation = number;
            owner.number = number;
            const MaybeRelease release(true);
            new (self) ChunkFile(folder, owner, bytes);
          },
          nb::arg("folder"), nb::arg("uuid"), nb::arg("number"), nb::arg("bytes"))
      .def_ro_static("OWN_BYTES", &ChunkFile::kOwnBytes)
      .def_static("bytes_of_chunk", &ChunkFile::bytes_of_chunk, nb::arg("snapshot"), nb::arg("number"), nb::arg("body"))
      .def_static("bytes_of_objects", &ChunkFile::bytes_of_objects, nb::arg("snapshot"), nb::arg("first"),
                  nb::arg("count"))
      .def(
          "add_chunk",
          [](ChunkFile& self, const Snapshot& snapshot, u32 number, bool body) {
            const MaybeRelease release(true);
            return number_or_none(self.add_chunk(snapshot, number, body));
          },
          nb::arg("snapshot"), nb::arg("number"), nb::arg("body"),
          "Page of its record; None: it does not fit any more.")
      .def(
          "add_objects",
          [](ChunkFile& self, Snapshot& snapshot, u64 first, u64 count) {
            const MaybeRelease release(true);
            const u32 page = self.add_objects(snapshot, first, count);
            if (page != ChunkFile::kFull) snapshot.release_objects(first, count);
            return number_or_none(page);
          },
          nb::arg("snapshot"), nb::arg("first"), nb::arg("count"))
      .def("end", [](ChunkFile& self) {
        const MaybeRelease release(true);
        self.end();
      });
  nb::class_<SavedFile>(module, "SavedFile", "A file of a checkpoint that is read.")
      .def(
          "__init__",
          [](SavedFile* self, const std::string& path, const nb::bytes& uuid) {
            const Uuid id = uuid_from(uuid);
            const MaybeRelease release(true);
            new (self) SavedFile(path, id);
          },
          nb::arg("path"), nb::arg("uuid"));
}

std::map<std::string, std::pair<u32, i64>> versions_from(const nb::dict& from) {
  std::map<std::string, std::pair<u32, i64>> versions;
  for (const auto [id, place] : from) {
    const nb::bytes raw = nb::cast<nb::bytes>(id);
    const auto [entry, version] = nb::cast<std::tuple<u32, i64>>(place);
    versions.emplace(std::string(raw.c_str(), raw.size()), std::pair(entry, version));
  }
  return versions;
}

void bind_content(nb::class_<Restore>& type) {
  type.def(
          "fill",
          [](Restore& self, u32 table, const nb::dict& image, Deadline deadline) {
            const TableImage made = image_from(image);
            const MaybeRelease release(true);
            self.fill(table, made, deadline);
          },
          nb::arg("table"), nb::arg("image"), nb::arg("timeout"),
          nb::sig("def fill(self, table: int, image: dict[str, typing.Any], timeout: float) -> None"))
      .def(
          "add_weights",
          [](Restore& self, const std::string& name, i64 newest, i64 oldest, Deadline deadline) {
            return self.add_weights(name, newest, oldest, deadline);
          },
          nb::arg("name"), nb::arg("newest"), nb::arg("oldest"), nb::arg("timeout"))
      .def(
          "add_objects",
          [](Restore& self, SavedFile& file, u32 page, const nb::dict& versions, Deadline deadline) {
            const auto known = versions_from(versions);
            const MaybeRelease release(true);
            self.add_objects(file, page, known, deadline);
          },
          nb::arg("file"), nb::arg("page"), nb::arg("versions"), nb::arg("timeout"),
          nb::sig("def add_objects(self, file: SavedFile, page: int, versions: dict[bytes, tuple[int, int]], timeout: "
                  "float) -> None"));
}

void bind_restoring(nb::module_& module) {
  nb::class_<Restore> type(module, "Restore", "Fills a new store from a checkpoint.");
  bind_content(type);
  type.def(
          "__init__",
          [](Restore* self, const ArenaPointer& arena, u64 next_stream, u64 next_uid, Deadline deadline) {
            arena->enter();
            {
              const HeapGuard guard(arena->heap(), deadline);
              HeapHeader& heap = arena->heap_header();
              heap.next_stream = std::max(heap.next_stream, next_stream);
              heap.next_uid = std::max(heap.next_uid, next_uid);
            }
            new (self) Restore(arena);
          },
          nb::arg("arena"), nb::arg("next_stream"), nb::arg("next_uid"), nb::arg("timeout"))
      .def(
          "add_layout",
          [](Restore& self, const nb::bytes& bytes, Deadline deadline) {
            return self.add_layout(std::string(bytes.c_str(), bytes.size()), deadline);
          },
          nb::arg("layout"), nb::arg("timeout"))
      .def(
          "add_table",
          [](Restore& self, const TablePointer& table, u32 index, u32 generation, u32 pack_rows, bool packed_anew) {
            self.add_table({table, index, generation, pack_rows, packed_anew});
          },
          nb::arg("table"), nb::arg("index"), nb::arg("generation"), nb::arg("pack_rows"), nb::arg("packed_anew"))
      .def(
          "link_files",
          [](Restore& self, const Restore::FilePages& files, const Restore::FilePages& loaded, bool own,
             Deadline deadline) {
            const MaybeRelease release(true);
            self.link_files(files, loaded, own, deadline);
          },
          nb::arg("files"), nb::arg("loaded"), nb::arg("own"), nb::arg("timeout"))
      .def(
          "add_chunk",
          [](Restore& self, SavedFile& file, u32 page, SavedFile* stored, u32 body_page, u32 layout, u32 rows,
             const std::vector<u32>& tables, Deadline deadline) {
            const MaybeRelease release(true);
            return self.add_chunk(file, page, stored, body_page, layout, rows, tables, deadline);
          },
          nb::arg("file"), nb::arg("page"), nb::arg("stored").none(), nb::arg("body_page"), nb::arg("layout"),
          nb::arg("rows"), nb::arg("tables"), nb::arg("timeout"))
      .def("link", &Restore::link, nb::arg("chunk"), nb::arg("next"))
      .def("end_chunks", [](Restore& self, Deadline deadline) { self.end_chunks(deadline); }, nb::arg("timeout"));
}

}  // namespace

void bind_snapshot(nb::module_& module) {
  bind_taking(module);
  bind_files(module);
  bind_restoring(module);
}

}  // namespace di::py
