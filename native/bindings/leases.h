// Leases of a table's items, for Python.
#pragma once

#include "bindings/bindings.h"

namespace di::py {

u64 lease_span(double seconds);  // in nanoseconds
void bind_leases(nb::class_<Table>& type);

}  // namespace di::py
