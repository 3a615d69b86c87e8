// Rows from another machine, many in one call (PyWriter::append_rows).
#pragma once

#include <exception>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/cells.h"
#include "replay/row_form.h"

namespace di::py {

// The results of consecutive calls, in the order of an acknowledgement: call by call and table by table.
struct RowsMade {
  std::vector<u32> order;   // tables, by position among the writer's, in the order of the client
  u32 calls = 0;            // calls that are done
  std::vector<u32> counts;  // [calls * tables]: items
  std::vector<u64> keys;
  std::vector<i32> lanes;
  std::vector<i64> starts;
  Blocked blocked;             // why the next call is blocked
  std::exception_ptr failure;  // or the error that it raised

  void add(const Writer& writer);
  bool ended() const { return failure != nullptr || blocked.why != Blocked::Why::kNothing; }
};

class PyWriter;

// Makes calls of a writer whose values lie in a message as it arrived.
class WriterRows {
 public:
  explicit WriterRows(PyWriter& writer) : writer_(writer) {}

  // Appends `count` calls, until one is blocked or refused. Their values begin at `at` of `body`; the first call has
  // the number `seq`. `order`: for each table of the client, its position among the writer's tables.
  std::unique_ptr<RowsMade> append(const RowForm& form, nb::handle body, u64 at, u32 count, u64 seq, nb::handle lane,
                                   nb::handle priority, std::vector<u32> order);
  // As append(), but without the GIL and without priorities, for a form that require() has accepted. False: another
  // thread is in the middle of a call.
  bool append_known(const RowForm& form, const std::vector<u32>& lanes, const u8* body, u32 count, u64 seq,
                    RowsMade* made);
  // The lanes of the calls of a form with this `lane`. Throws what such a call would throw.
  std::vector<u32> require(const RowForm& form, nb::handle lane);

 private:
  CallShape begin(const RowForm& form, nb::handle lane);
  void append_each(const RowForm& form, const u8* body, u32 count, u64 seq, RowsMade* made);

  PyWriter& writer_;
};

std::unique_ptr<RowsMade> append_rows(PyWriter& writer, const RowForm& form, nb::handle body, u64 at, u32 count,
                                      u64 seq, nb::handle lane, nb::handle priority, std::vector<u32> order);

void bind_rows(nb::module_& module);

}  // namespace di::py
