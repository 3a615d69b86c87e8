// The leases of a table's items: acknowledged, given back, extended, listed.
#include "bindings/leases.h"

#include "process/clients.h"
#include "replay/lease_ends.h"

namespace di::py {
namespace {

Table& enter(const TablePointer& table) {
  table->arena().enter();
  settle_orphans();
  return *table;
}

u64 end(const TablePointer& table, nb::handle keys, u64 number, bool give_back, Deadline deadline) {
  const UserObject array = as_array(keys, NPY_UINT64);
  const LeaseEnd how = give_back ? LeaseEnd::kReturned : LeaseEnd::kAcknowledged;
  return end_leases(enter(table).core, view_of<u64>(array), number, how, deadline);
}

u64 extend(const TablePointer& table, nb::handle keys, u64 number, double seconds, Deadline deadline) {
  const UserObject array = as_array(keys, NPY_UINT64);
  return extend_leases(enter(table).core, view_of<u64>(array), number, lease_span(seconds), deadline);
}

// How many items are leased; the age of the oldest lease in seconds, or None; by holder, in words: its items.
nb::object held(const TablePointer& table, Deadline deadline) {
  Table& entered = enter(table);
  const LeasesHeld found = leases_held(entered.core, deadline);
  nb::dict holders = new_dict();
  for (const auto& [client, items] : found.by_holder)
    holders[nb::str(client == kNone ? "gone" : describe_client(entered.arena(), client).c_str())] = items;
  const double age = static_cast<double>(os::boot_ns() - found.oldest_ns) * 1e-9;
  return new_tuple(nb::int_(found.items), found.items == 0 ? nb::none() : nb::object(nb::float_(age)), holders);
}

}  // namespace

u64 lease_span(double seconds) {
  constexpr double kMostSeconds = 9e9;
  return static_cast<u64>(std::min(seconds, kMostSeconds) * 1e9);
}

void bind_leases(nb::class_<Table>& type) {
  type.def(
          "end_leases", &end,
          nb::sig("def end_leases(self, keys: numpy.typing.NDArray[typing.Any], number: int, give_back: bool, timeout: "
                  "float, /) -> int"))
      .def("extend_leases", &extend,
           nb::sig("def extend_leases(self, keys: numpy.typing.NDArray[typing.Any], number: int, seconds: float, "
                   "timeout: float, /) -> int"))
      .def("leases", &held, nb::sig("def leases(self, timeout: float, /) -> tuple[int, float | None, dict[str, int]]"));
}

}  // namespace di::py
