// The leases of a table's items: acknowledged, given back, extended, listed.
#include "bindings/leases.h"

#include "process/clients.h"
#include "replay/lease_ends.h"
#include "replay/session_marks.h"

namespace di::py {
namespace {

Table& enter(const TablePointer& table) {
  table->arena().enter();
  settle_orphans();
  return *table;
}

u64 end(const TablePointer& table, nb::handle keys, u64 number, LeaseEnd how, Deadline deadline) {
  const UserObject array = as_array(keys, NPY_UINT64);
  return end_leases(enter(table).core, view_of<u64>(array), number, how, deadline);
}

u64 extend(const TablePointer& table, nb::handle keys, u64 number, double seconds, Deadline deadline) {
  const UserObject array = as_array(keys, NPY_UINT64);
  return extend_leases(enter(table).core, view_of<u64>(array), number, lease_span(seconds), deadline);
}

// "pid 123", "client 1a2b3c4d of pid 123", "gone".
std::string describe(Table& table, u32 holder) {
  Lease lease{};
  lease.holder = holder;
  const u32 mark = lease_mark(lease), client = client_of(table.core, lease);
  if (mark == kNone) return holder == 0 ? "gone" : describe_client(table.arena(), client);
  const SessionMark& found = table.arena().mark(mark);
  char id[9];
  std::snprintf(id, sizeof id, "%02x%02x%02x%02x", found.session[0], found.session[1], found.session[2],
                found.session[3]);
  return std::string("client ") + id + (client == kNone ? "" : " of " + describe_client(table.arena(), client));
}

// How many items are leased; the age of the oldest lease in seconds, or None; by holder, in words: its items.
nb::object held(const TablePointer& table, Deadline deadline) {
  Table& entered = enter(table);
  const LeasesHeld found = leases_held(entered.core, deadline);
  nb::dict holders = new_dict();
  for (const auto& [holder, items] : found.by_holder) holders[nb::str(describe(entered, holder).c_str())] = items;
  const double age = static_cast<double>(os::boot_ns() - found.oldest_ns) * 1e-9;
  return new_tuple(nb::int_(found.items), found.items == 0 ? nb::none() : nb::object(nb::float_(age)), holders);
}

// The session's mark of the table and its owner, for Reader::begin().
nb::object claim_session(const TablePointer& table, nb::handle session, Deadline deadline) {
  Table& entered = enter(table);
  const ClaimedMark claimed = SessionMarks(entered.core.arena).claim(session_id(session), entered, deadline);
  return new_tuple(nb::int_(claimed.mark), nb::int_(claimed.owner));
}

bool owns_session(const TablePointer& table, u32 mark, u64 owner) { return is_ours(enter(table).core, {mark, owner}); }

}  // namespace

u64 lease_span(double seconds) {
  constexpr double kMostSeconds = 9e9;
  return static_cast<u64>(std::min(seconds, kMostSeconds) * 1e9);
}

void bind_leases(nb::class_<Table>& type) {
  type.def("end_leases", &end,
           nb::sig("def end_leases(self, keys: numpy.typing.NDArray[typing.Any], number: int, how: LeaseEnd, timeout: "
                   "float, /) -> int"))
      .def("extend_leases", &extend,
           nb::sig("def extend_leases(self, keys: numpy.typing.NDArray[typing.Any], number: int, seconds: float, "
                   "timeout: float, /) -> int"))
      .def("claim_session", &claim_session,
           nb::sig("def claim_session(self, session: bytes, timeout: float, /) -> tuple[int, int]"))
      .def("owns_session", &owns_session, nb::sig("def owns_session(self, mark: int, owner: int, /) -> bool"))
      .def("leases", &held, nb::sig("def leases(self, timeout: float, /) -> tuple[int, float | None, dict[str, int]]"));
}

}  // namespace di::py
