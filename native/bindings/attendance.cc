// Registers a writer with its tables before its columns are known.
#include "bindings/bindings.h"
#include "replay/table.h"

namespace di::py {
namespace {

// Stands for a writer before its first step, when its columns are not known yet. The table already counts it as open,
// so that learners wait for its items.
class Attendance {
 public:
  Attendance(TablePointer table, Deadline deadline) : table_(std::move(table)) {
    table_->arena().enter();
    entry_ = table_->core.writers.open(deadline);
    fork_generation_ = table_->arena().fork_generation();
  }
  ~Attendance() {
    const os::Quiet quiet;
    try {
      end();
    } catch (...) {
    }
  }
  Attendance(const Attendance&) = delete;
  Attendance& operator=(const Attendance&) = delete;
  void end() {
    if (entry_ == kNone || !table_->arena().owns(fork_generation_)) return;
    if (table_->live()) {
      table_->core.writers.close(entry_);
    } else {
      table_->arena().ledger().entry(entry_).what.store(0);
      table_->arena().ledger().give(entry_);
    }
    entry_ = kNone;
  }

 private:
  TablePointer table_;
  u32 entry_ = kNone;
  u64 fork_generation_ = 0;
};

}  // namespace

void bind_attendance(nb::module_& module) {
  nb::class_<Attendance>(module, "Attendance")
      .def(nb::init<TablePointer, Deadline>(), nb::sig("def __init__(self, table: Table, timeout: float, /) -> None"))
      .def("end", &Attendance::end);
}

}  // namespace di::py
