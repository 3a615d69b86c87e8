// Rows that came from another machine, many in one call (PyWriter::append_rows).
#pragma once

#include <exception>
#include <vector>

#include "bindings/bindings.h"
#include "replay/row_form.h"

namespace di::py {

// What calls that follow each other have made: as an acknowledgement says it, call by call and table by table.
struct RowsMade {
  std::vector<u32> order;   // tables, by position among the writer's, in the order of the client
  u32 calls = 0;            // that are done
  std::vector<u32> counts;  // [calls * tables]: items
  std::vector<u64> keys;
  std::vector<i32> lanes;
  std::vector<i64> starts;
  Blocked blocked;             // the call behind them
  std::exception_ptr failure;  // or what that one has raised

  void add(const Writer& writer);
  bool ended() const { return failure != nullptr || blocked.why != Blocked::Why::kNothing; }
};

void bind_rows(nb::module_& module);

}  // namespace di::py
