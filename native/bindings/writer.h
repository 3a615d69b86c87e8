// The core's writer as Python sees it. writer.cc writes steps of streams. writer_whole.cc inserts whole items, and
// restored ones.
#pragma once

#include <atomic>
#include <memory>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/cells.h"
#include "bindings/writer_rows.h"

namespace di::py {

// Allows one call of a writer at a time. Other code may run in the middle of a call: conversions of values while
// arguments are parsed, signal handlers while it waits, other threads while it copies without the GIL. That other code
// may not begin another call. A call that ends releases the objects that its inputs point into, while no other call can
// begin.
class Busy {
 public:
  Busy(std::atomic<bool>& busy, Cells& cells) : busy_(busy), cells_(cells) {
    if (busy.exchange(true))
      throw Error(Code::kStoreError,
                  "this writer is in the middle of another call, and was called again from a signal handler, from "
                  "__array__ of a value being written, or by another task or thread: nothing was written; call it "
                  "after the end of that call (a signal handler can set a flag)")
          .told();
  }
  ~Busy() {
    cells_.end();
    busy_ = false;
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::atomic<bool>& busy_;
  Cells& cells_;
};

class PyWriter {
 public:
  PyWriter(ArenaPointer arena, nb::dict plan, Deadline deadline);
  ~PyWriter() {
    // In a forked child it is not destroyed: a thread of the parent may have been changing it during the fork.
    if (writer_ != nullptr && !arena_->owns(fork_generation_)) static_cast<void>(writer_.release());
  }
  PyWriter(const PyWriter&) = delete;
  PyWriter& operator=(const PyWriter&) = delete;
  nb::object append(nb::handle step, nb::handle next, nb::handle final, nb::handle lane, nb::handle priority,
                    i64 steps);
  nb::object end_episode(nb::handle final, nb::handle lane, bool discard);
  nb::object insert(nb::handle rows, const std::vector<std::tuple<u32, u32, u32>>& items, u32 total,
                    nb::handle priority, bool bare);
  nb::object insert_now(nb::handle value, nb::handle priority, nb::handle timeout);
  nb::object restore_rows(nb::handle rows, nb::handle episodes, nb::handle steps, nb::handle finals, nb::handle late,
                          const std::vector<u32>& observed);
  nb::object restore_items(nb::handle items, i64 next);
  nb::object finish() {
    const Busy call(busy_, cells_);
    enter();
    return run([&] { return writer_->end_open_episodes(Deadline::slice()); });
  }
  nb::object resume() {
    const Busy call(busy_, cells_);
    enter();
    return run([&] { return writer_->resume(); });
  }
  void close() {
    const Busy call(busy_, cells_);
    closed_ = true;
    writer_->close();
  }
  void number_call(u64 seq) {
    const Busy call(busy_, cells_);
    enter();
    writer_->number_call(seq);
  }
  std::atomic<bool>& busy() { return busy_; }
  void set_version(u32 table, i64 version) {
    const Busy call(busy_, cells_);  // waits for a running call, whose rows keep their version
    writer_->set_version(table, version);
  }

 private:
  friend class WriterRows;

  void enter();
  CallShape shape_of(nb::handle lane, u32 steps, bool time);  // fills call_.lanes
  bool take_lanes(nb::handle lane);
  void take_lane(i64 lane);
  void begin_call(u32 steps);
  void refuse_late(const std::vector<ColumnInput>& given, const char* option) const;
  void parse_priorities(nb::handle priority, const CallShape& shape);
  void parse_priority(nb::handle value, const CallShape& shape, std::size_t table);
  nb::object result(Blocked blocked);
  [[noreturn]] void refuse(const Error& error) const;
  template <class Run>
  Blocked attempt(Run&& call);
  template <class Run>
  nb::object run(Run&& call) {
    return result(attempt(call));
  }

  ArenaPointer arena_;
  std::unique_ptr<Writer> writer_;
  Cells cells_;
  std::vector<u64> row_bytes_;  // Cells::row_bytes
  bool vector_ = false;
  u64 fork_generation_ = 0;
  std::atomic<bool> busy_ = false;
  nb::object turn_;    // turn of the threads that insert through this writer; none: one thread owns it
  u32 steps_ = kNone;  // for a finished transition inserted whole: its column of the number of steps, not a row: kNone
  i64 n_step_ = 0;     // value for that column if a transition lacks it
  // versions_: a dict by name of the versions of weights that this process last fetched. weights_: the name of the
  // weights by which the rows are tracked; none: of no weights.
  nb::object versions_, weights_;
  bool closed_ = false;
  u32 calls_ = 0;  // calls of insert_now()
  WriterCall call_;
};

nb::object keys_of(const std::vector<MadeItem>& made);  // uint64[n]

// Makes one attempt. A lock that is not available becomes a Blocked: nothing was written, and Python waits and repeats
// the call as after any other Blocked.
template <class Run>
Blocked PyWriter::attempt(Run&& call) {
  Blocked blocked;
  try {
    MaybeRelease release(cells_.bytes() > kKeepGil);
    blocked = call();
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) refuse(error);
    blocked.why = Blocked::Why::kLock;
    blocked.seq = writer_->plan().tables[0].table->header().room_seq.load();
    blocked.text = error.what();
    blocked.holder = error.holder();
  }
  return blocked;
}

}  // namespace di::py
