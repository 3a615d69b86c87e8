#include <algorithm>
#include <cstring>

#include "attach/looks.h"
#include "bindings/bindings.h"
#include "heap/tiers.h"
#include "maintenance/chores.h"
#include "objects/reopening.h"
#include "process/clients.h"
#include "process/waits.h"
#include "replay/directory.h"
#include "replay/lost_rows.h"
#include "replay/session_marks.h"
#include "tier/body_check.h"

namespace di::py {
namespace {

nb::dict client_stats(const Arena& arena, u32 slot, u64* page_tables) {
  const ClientSlot& client = arena.client(slot);
  nb::dict entry = new_dict();
  entry["slot"] = slot;
  entry["pid"] = client.pid.load();
  const bool mine = slot == arena.slot();
  entry["alive"] = mine || !is_dead(arena, slot);
  entry["self"] = mine;
  const bool near =
      same_pid_namespace(arena, slot);  // otherwise its pid belongs to another process in this pid namespace
  entry["other_pid_namespace"] = !near;
  const os::ProcessLook look = near ? os::look_at(client.pid.load()) : os::ProcessLook{};
  entry["state"] = look.state != 0 ? std::string(1, look.state) : std::string(look.known ? "gone" : "unknown");
  entry["role"] = client.role.load();
  entry["pinned"] = pinned_bytes(arena, slot);
  const u64 tables = near ? os::page_table_bytes(client.pid.load()) : 0;
  entry["page_tables"] = tables;
  *page_tables += tables;
  entry["stale_dropped"] = client.stale_dropped.load();
  return entry;
}

// A stopped process that owns the heap's or the table's lock, and so keeps others waiting: its client slot + 1, or 0.
u32 stopped_holder(const Arena& arena, u32 table) {
  const auto stopped = [&arena](const LockWord& lock) -> u32 {
    const u32 holder = lock_owner(lock.word.load());
    if (holder >= kMaxClients || !same_pid_namespace(arena, holder)) return 0;
    const char state = os::look_at(arena.client(holder).pid.load()).state;
    return state == 'T' || state == 't' ? holder + 1 : 0;
  };
  const u32 found = stopped(arena.heap_header().lock);
  return found != 0 || table >= arena.table_count() ? found : stopped(arena.table(table).lock);
}

nb::list waiters(const Arena& arena) {
  static const char* kinds[] = {"", "lock", "room", "items", "limiter", "object", "weights", "memory", "table"};
  nb::list all = new_list();
  for (const Waiting& found : all_waiting(arena)) {
    nb::dict waiting = new_dict();
    waiting["slot"] = found.slot;
    waiting["pid"] = arena.client(found.slot).pid.load();
    waiting["thread"] = found.thread;
    waiting["kind"] = kinds[static_cast<u32>(found.kind)];
    waiting["table"] =
        found.table < arena.table_count() ? nb::object(nb::str(arena.table(found.table).name)) : nb::none();
    waiting["wanted_bytes"] = found.wanted_bytes;
    waiting["since_seconds"] = static_cast<double>(found.age_ns) * 1e-9;
    const u32 culprit = found.culprit != 0 ? found.culprit : stopped_holder(arena, found.table);
    const bool known = culprit != 0 && culprit <= kMaxClients;
    waiting["culprit_pid"] = known ? nb::object(nb::int_(arena.client(culprit - 1).pid.load())) : nb::none();
    waiting["culprit_name"] = known ? nb::object(nb::cast(describe_client(arena, culprit - 1))) : nb::none();
    all.append(waiting);
  }
  return all;
}

// The uid of the newest chunk.
u64 last_uid(const ArenaPointer& arena, Deadline deadline) {
  arena->enter();
  const MaybeRelease release(true);
  const HeapGuard guard(arena->heap(), deadline);
  return arena->heap_header().next_uid;
}

// Writes copies of some bodies of these tables (none: of all tables) and returns their bytes. 0: every chunk up to
// `last` has a copy, or the files can take no more.
u64 write_to_disk(const ArenaPointer& arena, const std::optional<std::vector<std::string>>& tables, u64 last,
                  Deadline deadline) {
  arena->enter();
  if (!arena->tiered()) return 0;
  std::string why;
  const MaybeRelease release(true);
  BodiesWanted wanted{last, {}};
  if (tables) {
    const TableDirectory directory(arena);
    for (const std::string& name : *tables)
      if (const std::shared_ptr<Table> table = directory.find(name)) wanted.tables.push_back(table->index());
    if (wanted.tables.empty()) return 0;
  }
  return arena->tier()->write_some(wanted, deadline, &why);
}

nb::object disk_stats(const Arena& arena) {
  if (!arena.tiered()) return nb::none();
  const TierHeader& tier = arena.tier_header();
  nb::dict all = new_dict();
  all["folder"] = folder_of(tier);
  all["capacity"] = tier.capacity.load();
  all["files"] = tier.file_bytes.load();
  all["live"] = tier.live_bytes.load();
  all["raw"] = tier.raw_bytes.load();
  all["clean"] = tier.clean_bytes.load();
  all["written"] = tier.written_bytes.load();
  all["drawn_cold"] = tier.drawn_cold.load();
  all["write_budget"] = tier.write_budget.load();
  all["seconds"] = static_cast<double>(os::now_ns() - std::min(os::now_ns(), tier.made_ns)) / 1e9;
  all["moved"] = tier.moved_bytes.load();
  all["written_chunks"] = tier.written_bodies.load();
  all["dropped_chunks"] = tier.dropped_bodies.load();
  all["read"] = tier.read_bytes.load();
  all["reads"] = tier.read_calls.load();
  all["loaded"] = tier.loaded_batches.load();
  all["loaded_ahead"] = tier.loaded_ahead.load();
  all["stalled_seconds"] = static_cast<double>(tier.stalled_ns.load()) / 1e9;
  all["damaged_chunks"] = tier.damaged_chunks.load();
  all["damaged_items"] = tier.damaged_items.load();
  all["objects"] = tier.away_objects.load();
  all["object_bytes"] = tier.away_bytes.load();
  all["loaded_objects"] = tier.loaded_objects.load();
  return all;
}

// For a store with a disk tier: notes that a loader has handed out a batch.
void note_loaded(const ArenaPointer& arena, u64 ahead, double stalled_seconds) {
  if (!arena->tiered()) return;
  TierHeader& tier = arena->tier_header();
  tier.loaded_batches.fetch_add(1, std::memory_order_relaxed);
  tier.loaded_ahead.fetch_add(ahead, std::memory_order_relaxed);
  tier.stalled_ns.fetch_add(static_cast<u64>(stalled_seconds * 1e9), std::memory_order_relaxed);
}

std::string uuid_text(const ArenaPointer& arena) {
  std::string uuid;
  for (const u8 byte : arena->header().uuid) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", byte);
    uuid += text;
  }
  return uuid;
}

nb::dict stats(const ArenaPointer& arena) {
  arena->enter();
  try {
    arena->ledger().sweep(Deadline::only_try());  // ends pins that this process has dropped, if the lock is free
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  }
  const HeapHeader& heap = arena->heap_header();
  nb::dict all = new_dict();
  all["name"] = arena->name();
  all["uuid"] = uuid_text(arena);
  const u64 object = heap.object_bytes, chunk = heap.chunk_bytes, meta = heap.meta_bytes, fixed = heap.fixed_bytes;
  all["budget"] = heap.budget.load();
  all["committed"] = object + chunk + meta + fixed + heap.free_bytes;
  all["object_pages"] = object;
  all["chunk_pages"] = chunk;
  all["meta"] = meta;
  all["fixed"] = fixed;
  all["free_pages"] = heap.free_bytes.load();
  all["live"] = heap.live_bytes.load();
  all["pinned"] = heap.pinned_bytes.load();
  all["pending"] = heap.pending_bytes.load();
  all["reserved"] = heap.table_charge.load();
  all["objects"] = heap.live_objects;
  all["deaths"] = heap.deaths.load();
  all["rebuilds"] = heap.rebuilds.load();
  all["present"] = os::file_blocks_bytes(arena->fd());
  nb::list clients = new_list();
  u64 tables = 0;
  for (u32 slot = 0; slot < kMaxClients; ++slot)
    if (arena->client(slot).state.load() != 0) clients.append(client_stats(*arena, slot, &tables));
  all["disk"] = disk_stats(*arena);
  all["page_tables"] = tables;
  all["clients"] = clients;
  all["waiters"] = waiters(*arena);
  all["tables"] = nb::cast(TableDirectory(arena).names());
  return all;
}

nb::object open(const std::string& name, Arena::Mode mode, u64 budget, u64 seed, Deadline deadline,
                const std::string& disk, u64 disk_capacity, u64 write_budget) {
  NewStore fresh(budget, seed);
  fresh.disk = disk;
  fresh.disk_capacity = disk_capacity;
  fresh.write_budget = write_budget;
  fresh.hidden = true;
#ifdef DI_FAULTS
  if (const char* const folder = std::getenv("DI_STORE_TEST_DISK"); folder != nullptr && disk.empty()) {
    fresh.disk = std::string(folder) + "/" + name;
    fresh.disk_capacity = u64{1} << 30;
  }
#endif
  ArenaPointer arena = Arena::open(name, mode, fresh, deadline);
  if (arena->is_hidden() && arena->tiered()) {
    const MaybeRelease release(true);
    try {
      const Reopened reopened = reopen_objects(*arena);
      arena->note_lost(reopened.damaged, reopened.foreign);
    } catch (...) {
      arena->abandon();
      throw;
    }
  }
  reap_soon(arena);
  return share(arena);
}

nb::object attach(const std::string& name, const std::vector<StoreHolder>& holders, Deadline deadline) {
  const std::vector<os::Holder> known(holders.begin(), holders.end());
  ArenaPointer arena = Arena::open(name, Arena::Mode::kAttach, {0, 0}, deadline, &known);
  reap_soon(arena);
  return share(arena);
}

std::vector<std::string> check(const ArenaPointer& arena, bool repair, Deadline deadline) {
  arena->enter();
  std::vector<std::string> findings;
  patiently(*arena, deadline, [&] { reap(arena, deadline); });
  end_what_is_due(arena, deadline);
  for (const std::string& name : TableDirectory(arena).names()) {
    try {
      if (const TablePointer table = TableDirectory(arena).find(name)) table->check(repair, deadline, &findings);
    } catch (const Error& error) {
      if (error.code() != Code::kTableNotFound) throw;  // the table was dropped meanwhile
    }
  }
  SessionMarks(arena).check(repair, deadline, &findings);
  arena->heap().check(repair, deadline, &findings);
  return findings;
}

LostRows drop_lost(const ArenaPointer& arena, bool marked, Deadline deadline) {
  arena->enter();
  const MaybeRelease release(true);
  return drop_lost_rows(arena, marked, deadline);
}

std::vector<std::string> check_disk(const ArenaPointer& arena, bool repair, Deadline deadline) {
  arena->enter();
  if (arena->tier() == nullptr) return {};
  const MaybeRelease release(true);
  BodyCheck check(arena->heap(), arena->tier()->lost(), repair);
  while (check.step(deadline)) {
  }
  return check.findings();
}

u32 declare_layout(const ArenaPointer& arena, nb::dict layout, Deadline deadline) {
  arena->enter();
  LayoutHeader header{};
  header.record_bytes = field<u32>(layout, "record_bytes");
  header.column_wise = field<u32>(layout, "column_wise");
  header.column_bytes = field<u64>(layout, "column_bytes");
  header.late_bytes = field<u64>(layout, "late_bytes");
  std::vector<ColumnLayout> columns;
  std::string text;
  for (nb::handle entry : layout["columns"]) {
    const auto name = field<std::string>(entry, "name");
    columns.push_back({static_cast<u32>(field<ColumnPlace>(entry, "place")), field<u32>(entry, "row_bytes"),
                       field<u32>(entry, "offset"), field<u32>(entry, "index"), field<u64>(entry, "before"),
                       name.size()});
    text += name;
  }
  return publish_layout(*arena, header, columns, text + field<std::string>(layout, "types"), deadline);
}

void bind_facts(nb::class_<Arena>& type) {
  type.def_prop_ro("name", [](const ArenaPointer& a) { return a->name(); })
      .def_prop_ro("pid", [](const ArenaPointer&) { return os::pid(); })
      .def_prop_ro("slot", [](const ArenaPointer& a) { return a->slot(); })
      .def_prop_ro("created", [](const ArenaPointer& a) { return a->created(); })
      .def_prop_ro("hidden", [](const ArenaPointer& a) { return a->is_hidden(); })
      .def("announce", [](const ArenaPointer& a) { a->announce(); })
      .def("abandon", [](const ArenaPointer& a) { a->abandon(); })
      .def_prop_ro("damaged_objects", [](const ArenaPointer& a) { return a->damaged_objects(); })
      .def_prop_ro("foreign_logs", [](const ArenaPointer& a) { return a->foreign_logs(); })
      .def_prop_ro("fd_number", [](const ArenaPointer& a) { return a->fd(); })
      .def_prop_ro("uuid", &uuid_text)
      .def_prop_ro("seed", [](const ArenaPointer& a) { return a->header().seed; })
      .def_prop_ro("budget", [](const ArenaPointer& a) { return a->heap_header().budget.load(); })
      .def_prop_ro("fit", [](const ArenaPointer& a) { return a->header().fit != 0; })
      .def_prop_ro("range_bytes", [](const ArenaPointer& a) { return a->places().range_bytes(); })
      .def("stats", &stats, nb::sig("def stats(self) -> dict[str, typing.Any]"));
}

// `sealed_seq` announces objects and weights, `room_seq` bytes and tables; `kind` says which.
Awaited awaited(const ArenaPointer& arena, WaitKind kind) {
  HeapHeader& heap = arena->heap_header();
  if (kind == WaitKind::kObject || kind == WaitKind::kWeights)
    return {arena, &heap.sealed_seq, &heap.sealed_waiters, kind};
  return {arena, &heap.room_seq, &heap.room_waiters, kind};
}

void bind_waits(nb::class_<Arena>& type) {
  type.def("sealed_seq", [](const ArenaPointer& a) { return a->heap_header().sealed_seq.load(); })
      .def("room_seq", [](const ArenaPointer& a) { return a->heap_header().room_seq.load(); })
      .def_prop_ro("wait_sealed", [](const ArenaPointer& a) { return awaited(a, WaitKind::kObject); })
      .def_prop_ro("wait_weights", [](const ArenaPointer& a) { return awaited(a, WaitKind::kWeights); })
      .def_prop_ro("wait_room", [](const ArenaPointer& a) { return awaited(a, WaitKind::kRoom); })
      .def_prop_ro("wait_table", [](const ArenaPointer& a) { return awaited(a, WaitKind::kTable); });
}

void bind_room(nb::class_<Arena>& type) {
  type.def(
          "resize",
          [](const ArenaPointer& a, u64 budget, Deadline deadline) {
            a->enter();
            std::string why;
            if (!a->heap().resize(budget, deadline, &why)) throw Error(Code::kCapacity, why).told();
          },
          nb::sig("def resize(self, budget: int, timeout: float, /) -> None"))
      .def(
          "grow",
          [](const ArenaPointer& a, u64 more, Deadline deadline) {
            a->enter();
            std::string why;
            if (!a->heap().grow(more, deadline, &why)) throw Error(Code::kCapacity, why).told();
          },
          nb::sig("def grow(self, more: int, timeout: float, /) -> None"))
      .def(
          "available",
          [](const ArenaPointer& a, u64 wanted, Deadline deadline) {
            a->enter();
            return a->heap().available(wanted, deadline);
          },
          nb::sig("def available(self, wanted: int, timeout: float, /) -> int"))
      .def(  // bytes of memory for the descriptors of so many further chunks
          "descriptor_bytes",
          [](const ArenaPointer& a, u64 chunks, Deadline deadline) {
            a->enter();
            return a->heap().descriptor_bytes(chunks, deadline);
          },
          nb::sig("def descriptor_bytes(self, chunks: int, timeout: float, /) -> int"))
      .def("left_in_tiers", [](const ArenaPointer& a) {
        return left_for_tables(*a, a->heap().disk, a->heap().budget.spendable(), a->is_hidden());
      });
}

void bind_care(nb::class_<Arena>& type) {
  type.def("enter", [](const ArenaPointer& a) { a->enter(); })
      .def("reap",
           [](const ArenaPointer& a) {
             a->enter();
             return reap_soon(a);
           })
      .def("chore",
           [](const ArenaPointer& a) {
             a->enter();
             const MaybeRelease release(true);
             return chore(a);
           })
      .def_prop_ro("tiered", [](const ArenaPointer& a) { return a->tiered(); })
      .def_prop_ro("disk",
                   [](const ArenaPointer& a) { return a->tiered() ? folder_of(a->tier_header()) : std::string(); })
      .def("check", &check, nb::sig("def check(self, repair: bool, timeout: float, /) -> list[str]"))
      .def("check_disk", &check_disk, nb::sig("def check_disk(self, repair: bool, timeout: float, /) -> list[str]"))
      .def("drop_lost", &drop_lost, nb::sig("def drop_lost(self, marked: bool, timeout: float, /) -> LostRows"))
      .def(
          "note_lost_file",
          [](const ArenaPointer& a, u32 file, const std::string& what) {
            a->enter();
            if (a->tier() != nullptr) a->tier()->lost().note_file(file, what);
          },
          nb::sig("def note_lost_file(self, file: int, what: str, /) -> None"))
      .def("remove", [](const ArenaPointer& a) { a->header().removed.store(1); })
      .def("note_loaded", &note_loaded, nb::sig("def note_loaded(self, ahead: int, stalled_seconds: float, /) -> None"))
      .def(
          "set_role", [](const ArenaPointer& a, u32 role) { a->self().role.fetch_or(role); },
          nb::sig("def set_role(self, role: int, /) -> None"));
}

void bind_directory(nb::class_<Arena>& type) {
  type.def("tables", [](const ArenaPointer& a) { return TableDirectory(a).names(); })
      .def(
          "table",
          [](const ArenaPointer& a, const std::string& name) {
            a->enter();
            return share(TableDirectory(a).find(name));
          },
          nb::sig("def table(self, name: str, /) -> Table | None"))
      .def(
          "drop_table",
          [](const ArenaPointer& a, const std::string& name, Deadline deadline) {
            a->enter();
            settle_orphans();
            TableDirectory(a).drop(name, deadline);
          },
          nb::sig("def drop_table(self, name: str, timeout: float, /) -> None"))
      .def("layout_count", [](const ArenaPointer& a) { return a->header().layout_count.load(); })
      .def("publish_layout", &declare_layout,
           nb::sig("def publish_layout(self, layout: dict[str, typing.Any], timeout: float, /) -> int"));
}

void bind_disk(nb::class_<Arena>& type) {
  type.def_prop_rw(
          "sync_every_ms",
          [](const ArenaPointer& a) { return a->tiered() ? a->tier_header().sync_every_ms.load() : 0; },
          [](const ArenaPointer& a, u64 ms) {
            if (a->tiered()) a->tier_header().sync_every_ms.store(ms);
          })
      .def(
          "resize_disk",
          [](const ArenaPointer& a, u64 capacity, Deadline deadline) {
            a->enter();
            if (a->tier() != nullptr) a->tier()->resize(capacity, deadline);
          },
          nb::sig("def resize_disk(self, capacity: int, timeout: float, /) -> None"))
      .def(
          "set_write_budget",
          [](const ArenaPointer& a, u64 bytes_a_day) {
            a->enter();
            if (a->tier() != nullptr) a->tier()->set_write_budget(bytes_a_day);
          },
          nb::sig("def set_write_budget(self, bytes_a_day: int, /) -> None"))
      .def("last_uid", &last_uid, nb::sig("def last_uid(self, timeout: float, /) -> int"))
      .def("write_to_disk", &write_to_disk, nb::arg("tables").none(), nb::arg("last"), nb::arg("timeout"));
}

}  // namespace

// Reaps dead processes, but gives up if a lock is not available: the call that needs that lock reports it.
u32 reap_soon(const ArenaPointer& arena) {
  try {
    return reap(arena, Deadline::slice());
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
    return 0;
  }
}

void bind_arena(nb::module_& module) {
  nb::class_<Arena> type(module, "Arena", nb::is_weak_referenceable());
  type.def_static("open", &open, nb::arg("name"), nb::arg("mode"), nb::arg("budget"), nb::arg("seed"),
                  nb::arg("timeout"), nb::arg("disk") = "", nb::arg("disk_capacity") = 0, nb::arg("write_budget") = 0,
                  nb::sig("def open(name: str, mode: Mode, budget: int, seed: int, timeout: float, disk: str = '', "
                          "disk_capacity: int = 0, write_budget: int = 0) -> Arena"));
  type.def_static("attach", &attach, nb::arg("name"), nb::arg("holders"), nb::arg("timeout"),
                  nb::sig("def attach(name: str, holders: list[Holder], timeout: float) -> Arena"),
                  "Attaches to a store that these processes hold, as list_holders() has just found them.");
  bind_facts(type);
  nb::class_<LostRows>(module, "LostRows").def_ro("items", &LostRows::items).def_ro("what", &LostRows::what);
  bind_room(type);
  bind_care(type);
  bind_disk(type);
  bind_waits(type);
  bind_objects(module, type);
  bind_pins(type);
  bind_directory(type);
  bind_sessions(type);
}

}  // namespace di::py
