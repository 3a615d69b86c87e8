#include <cstring>

#include "bindings.h"
#include "chores.h"

namespace di::py {
namespace {

const Id& id_of(const nb::bytes& bytes) {
  if (bytes.size() != sizeof(Id)) throw Error(Code::kInvalid, "an object id is 20 bytes (40 hex characters)");
  return *reinterpret_cast<const Id*>(bytes.c_str());
}

// Fresh ids: 12 random bytes of this process, then a counter.
void fresh_id(Id& id) {
  static u8 prefix[12];
  static u32 owner = 0;
  static u64 counter = 0;
  if (owner != os::pid()) {
    os::random_bytes(prefix, sizeof prefix);
    owner = os::pid();
  }
  ++counter;
  std::memcpy(id, prefix, sizeof prefix);
  std::memcpy(id + sizeof prefix, &counter, 8);
}

nb::bytes put(const ArenaPointer& arena, nb::handle value, nb::handle id, double ttl) {
  arena->enter();
  Id own;
  if (id.is_none())
    fresh_id(own);
  else
    std::memcpy(own, id_of(nb::cast<nb::bytes>(id)), sizeof own);
  const u64 expires = ttl > 0 ? os::boot_ns() + static_cast<u64>(ttl * 1e9) : 0;
  const u32 entry = arena->ledger().take_one();
  u32 descriptor = kNone;
  try {
    object_put(arena, value, entry, own, expires, &descriptor);
  } catch (...) {
    if (arena->ledger().entry(entry).what.load() == 0) {
      if (descriptor == kNone) arena->ledger().give(entry);
    } else {
      arena->heap().abandon(descriptor, entry, kForever);
    }
    throw;
  }
  DI_FAULT("put.before_seal");
  arena->heap().seal(descriptor, entry);
  return nb::bytes(reinterpret_cast<const char*>(own), sizeof own);
}

nb::object get(const ArenaPointer& arena, const Id& id, nb::handle copy) {
  const u32 entry = arena->ledger().take_one();
  u32 descriptor = kNone;
  Heap::PinResult result;
  try {
    result = arena->heap().pin(id, entry, &descriptor, soon());
  } catch (...) {
    arena->ledger().give(entry);
    throw;
  }
  if (result != Heap::PinResult::kPinned) {
    arena->ledger().give(entry);
    throw Error(Code::kObjectNotFound,
                result == Heap::PinResult::kMissing ? "there is no object with this id" : "the object is still being written");
  }
  return object_get(arena, descriptor, entry, copy);
}

i64 publish(const ArenaPointer& arena, const std::string& name, nb::handle value, u64 keep) {
  arena->enter();
  const u32 index = arena->heap().weights_entry(name, true, minute());
  if (value.is_none()) return arena->heap().publish(index, kNone, kNone, keep, minute());
  const u32 entry = arena->ledger().take_one();
  u32 descriptor = kNone;
  try {
    object_put(arena, value, entry, nullptr, 0, &descriptor);
  } catch (...) {
    if (arena->ledger().entry(entry).what.load() == 0) {
      if (descriptor == kNone) arena->ledger().give(entry);
    } else {
      arena->heap().abandon(descriptor, entry, kForever);
    }
    throw;
  }
  return arena->heap().publish(index, descriptor, entry, keep, minute());
}

nb::object latest(const ArenaPointer& arena, const std::string& name, i64 version, nb::handle copy) {
  arena->enter();
  const u32 index = arena->heap().weights_entry(name, false, minute());
  if (index == kNone) throw Error(Code::kObjectNotFound, "no weights named '" + name + "' were published");
  Id id;
  Heap::version_id(*arena, index, version, id);
  return get(arena, id, copy);
}

i64 newest(const ArenaPointer& arena, const std::string& name) {
  arena->enter();
  const u32 index = arena->heap().weights_entry(name, false, minute());
  return index == kNone ? 0 : arena->weights(index).newest.load(std::memory_order_acquire);
}

void wait_word(const ArenaPointer& arena, Shared<u32>& word, Shared<u32>& waiters, u32 seen, double seconds, WaitKind kind,
               u32 table) {
  WaitRecord record(*arena, kind, table);
  waiters.fetch_add(1);
  try {
    os::Blocking blocking;
    os::futex_wait(word, seen, static_cast<u64>(std::max(0.0, seconds) * 1e9));
  } catch (...) {
    waiters.fetch_sub(1);
    throw;
  }
  waiters.fetch_sub(1);
}

// A walk without locks: a descriptor reused meanwhile garbles a tool's figure for a moment.
u64 pinned_bytes(const Arena& arena, u32 slot) {
  u64 bytes = 0;
  for (u32 at = arena.client(slot).ledger.load(std::memory_order_acquire); at != 0;) {
    const LedgerBlock& block = *reinterpret_cast<const LedgerBlock*>(arena.heap().block(at - 1));
    for (const LedgerEntry& entry : block.entries) {
      const u64 what = entry.what.load(std::memory_order_acquire);
      if (ledger_kind(what) == LedgerKind::kPin && (what & kLedgerDropped) == 0)
        bytes += Blocks::block_bytes(arena.heap().descriptor(ledger_descriptor(what)).bytes);
    }
    at = block.next.load(std::memory_order_acquire);
  }
  return bytes;
}

nb::dict client_stats(const Arena& arena, u32 slot) {
  static const char* kinds[] = {"", "lock", "room", "items", "limiter", "object", "weights", "memory"};
  const ClientSlot& client = arena.client(slot);
  nb::dict entry;
  entry["slot"] = slot;
  entry["pid"] = client.pid.load();
  const bool mine = slot == arena.slot();
  entry["alive"] = mine || !arena.is_dead(slot);
  const char state = os::process_state(client.pid.load());
  entry["state"] = state == 0 ? std::string("gone") : std::string(1, state);
  entry["role"] = client.role.load();
  entry["pinned"] = pinned_bytes(arena, slot);
  entry["page_tables"] = os::page_table_bytes(client.pid.load());
  entry["stale_dropped"] = client.stale_dropped.load();
  const u32 kind = client.wait_kind.load(std::memory_order_acquire);
  const bool waits = client.wait_asleep.load() != 0 || os::now_ns() < client.wait_until_ns.load();
  if (kind == 0 || kind > 7 || !waits) {
    entry["waiting"] = nb::none();
    return entry;
  }
  nb::dict waiting;
  waiting["kind"] = kinds[kind];
  const u32 table = client.wait_table.load();
  waiting["table"] = table < arena.table_count() ? nb::object(nb::str(arena.table(table).name)) : nb::none();
  waiting["since_seconds"] = static_cast<double>(os::now_ns() - client.wait_since_ns.load()) * 1e-9;
  const u32 culprit = client.wait_culprit.load();
  waiting["culprit_pid"] = culprit == 0 || culprit > kMaxClients ? nb::none() : nb::object(nb::int_(arena.client(culprit - 1).pid.load()));
  entry["waiting"] = waiting;
  return entry;
}

nb::dict stats(const ArenaPointer& arena) {
  arena->enter();
  const HeapHeader& heap = arena->heap_header();
  nb::dict all;
  all["name"] = arena->name();
  std::string uuid;
  for (const u8 byte : arena->header().uuid) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", byte);
    uuid += text;
  }
  all["uuid"] = uuid;
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
  nb::list clients;
  u64 tables = 0;
  for (u32 slot = 0; slot < kMaxClients; ++slot)
    if (arena->client(slot).state.load() != 0) {
      clients.append(client_stats(*arena, slot));
      tables += os::page_table_bytes(arena->client(slot).pid.load());
    }
  all["page_tables"] = tables;
  all["clients"] = clients;
  all["tables"] = nb::cast(Table::names(*arena));
  return all;
}

}  // namespace

void bind_arena(nb::module_& module) {
  nb::class_<Arena>(module, "Arena", nb::is_weak_referenceable())
      .def_static("open",
                  [](const std::string& name, int mode, u64 budget, u64 seed, double timeout) {
                    ArenaPointer arena = Arena::open(name, static_cast<Arena::Mode>(mode), budget, seed, deadline_after(timeout));
                    try {
                      reap(arena, os::now_ns() + 100'000'000);
                    } catch (const Error& error) {  // a stopped process holds a lock: looking at the store still works
                      if (error.code() != Code::kTimeout) throw;
                    }
                    return arena;
                  })
      .def_prop_ro("name", [](const ArenaPointer& a) { return a->name(); })
      .def_prop_ro("pid", [](const ArenaPointer&) { return os::pid(); })
      .def_prop_ro("slot", [](const ArenaPointer& a) { return a->slot(); })
      .def_prop_ro("created", [](const ArenaPointer& a) { return a->created(); })
      .def_prop_ro("fd_number", [](const ArenaPointer& a) { return a->fd(); })
      .def_prop_ro("budget", [](const ArenaPointer& a) { return a->heap_header().budget.load(); })
      .def_prop_ro("range_bytes", [](const ArenaPointer& a) { return a->header().range_bytes; })
      .def_prop_ro("fork_generation", [](const ArenaPointer& a) { return a->fork_generation(); })
      .def("enter", [](const ArenaPointer& a) { a->enter(); })
      .def("put", &put, nb::arg("value"), nb::arg("id").none(), nb::arg("ttl"))
      .def("get",
           [](const ArenaPointer& a, const nb::bytes& id, nb::handle copy) {
             a->enter();
             return get(a, id_of(id), copy);
           },
           nb::arg("id"), nb::arg("copy").none())
      .def("contains",
           [](const ArenaPointer& a, const nb::bytes& id) {
             a->enter();
             return a->heap().contains(id_of(id), minute());
           })
      .def("delete",
           [](const ArenaPointer& a, nb::list ids) {
             a->enter();
             u64 gone = 0;
             for (nb::handle id : ids) gone += a->heap().remove(id_of(nb::cast<nb::bytes>(id)), minute());
             return gone;
           })
      .def("keys",
           [](const ArenaPointer& a, nb::handle after, u64 n) {
             a->enter();
             nb::list all;
             const u8* from = after.is_none() ? nullptr : id_of(nb::cast<nb::bytes>(after));
             for (const std::string& key : a->heap().keys(from, n, minute())) all.append(nb::bytes(key.data(), key.size()));
             return all;
           },
           nb::arg("after").none(), nb::arg("n"))
      .def("publish", &publish, nb::arg("name"), nb::arg("value").none(), nb::arg("keep"))
      .def("newest", &newest)
      .def("latest", &latest, nb::arg("name"), nb::arg("version"), nb::arg("copy").none())
      .def("sealed_seq", [](const ArenaPointer& a) { return a->heap_header().sealed_seq.load(); })
      .def("wait_sealed",
           [](const ArenaPointer& a, u32 seen, double seconds) {
             a->enter();
             HeapHeader& heap = a->heap_header();
             wait_word(a, heap.sealed_seq, heap.sealed_waiters, seen, seconds, WaitKind::kObject, kNone);
           })
      .def("room_seq", [](const ArenaPointer& a) { return a->heap_header().room_seq.load(); })
      .def("wait_room",
           [](const ArenaPointer& a, u32 seen, double seconds) {
             a->enter();
             HeapHeader& heap = a->heap_header();
             wait_word(a, heap.room_seq, heap.room_waiters, seen, seconds, WaitKind::kRoom, kNone);
           })
      .def("reap",
           [](const ArenaPointer& a) {
             a->enter();
             return reap(a, minute());
           })
      .def("chore",
           [](const ArenaPointer& a) {
             a->enter();
             nb::gil_scoped_release release;
             return chore(a);
           })
      .def("resize",
           [](const ArenaPointer& a, u64 budget) {
             a->enter();
             std::string why;
             if (!a->heap().resize(budget, minute(), &why)) throw Error(Code::kCapacity, why);
           })
      .def("available",
           [](const ArenaPointer& a) {
             a->enter();
             return a->heap().available(minute());
           })
      .def("check",
           [](const ArenaPointer& a, bool repair) {
             a->enter();
             std::vector<std::string> findings;
             reap(a, minute());
             for (const std::string& name : Table::names(*a))
               if (const TablePointer table = Table::find(a, name)) table->check(minute(), &findings);
             a->heap().check(repair, minute(), &findings);
             return findings;
           })
      .def("remove", [](const ArenaPointer& a) { a->header().removed.store(1); })
      .def("set_role", [](const ArenaPointer& a, u32 role) { a->self().role.fetch_or(role); })
      .def("stats", &stats)
      .def("tables", [](const ArenaPointer& a) { return Table::names(*a); })
      .def("table",
           [](const ArenaPointer& a, const std::string& name) {
             a->enter();
             return Table::find(a, name);
           })
      .def("drop_table",
           [](const ArenaPointer& a, const std::string& name, double timeout) {
             a->enter();
             settle_orphans();
             Table::drop(a, name, deadline_after(timeout));
           })
      .def("layout_count", [](const ArenaPointer& a) { return a->header().layout_count.load(); })
      .def("layout_text", [](const ArenaPointer& a, u32 index) { return read_layout_text(*a, index); })
      .def("publish_layout", [](const ArenaPointer& a, const std::vector<std::tuple<u32, u32, u32, u32, u64>>& columns,
                                u32 record_bytes, u32 column_wise, u64 column_bytes, const std::string& text) {
        a->enter();
        LayoutHeader header{};
        header.record_bytes = record_bytes;
        header.column_wise = column_wise;
        header.column_bytes = column_bytes;
        std::vector<ColumnLayout> all;
        for (const auto& [place, row_bytes, offset, index, before] : columns)
          all.push_back(ColumnLayout{place, row_bytes, offset, index, before});
        return publish_layout(*a, header, all, text, minute());
      });
}

}  // namespace di::py
