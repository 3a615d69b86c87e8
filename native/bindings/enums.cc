// Binds the core's states and kinds, each once. Python uses only their names; it repeats no number.
#include "attach/arena.h"
#include "bindings/bindings.h"
#include "replay/lease_ends.h"
#include "rows/views.h"

namespace di::py {
namespace {

void bind_rows(nb::module_& module) {
  nb::enum_<ColumnPlace>(module, "ColumnPlace")
      .value("RECORD", ColumnPlace::kRecord)
      .value("COLUMN", ColumnPlace::kColumn)
      .value("HEAP", ColumnPlace::kHeap)
      .value("LATE", ColumnPlace::kLate);
  nb::enum_<ViewKind>(module, "ViewKind")
      .value("STEP", ViewKind::kStep)
      .value("OPAQUE", ViewKind::kOpaque)
      .value("TRANSITION", ViewKind::kTransition)
      .value("SEQUENCE", ViewKind::kSequence)
      .value("EPISODE", ViewKind::kEpisode);
  nb::enum_<Tail>(module, "Tail").value("PAD", Tail::kPad).value("DROP", Tail::kDrop).value("SHIFT", Tail::kShift);
  nb::enum_<Op>(module, "Op", "What an output of a view is made of; `native/rows/views.h` tells of each.")
      .value("ROW", Op::kRow)
      .value("NEXT", Op::kNext)
      .value("LAST", Op::kLast)
      .value("STACK", Op::kStack)
      .value("NEXT_STACK", Op::kNextStack)
      .value("WINDOW", Op::kWindow)
      .value("FIRST", Op::kFirst)
      .value("FUTURE", Op::kFuture)
      .value("REWARD", Op::kReward)
      .value("DISCOUNT", Op::kDiscount)
      .value("STEPS", Op::kSteps)
      .value("MASK", Op::kMask)
      .value("LENGTHS", Op::kLengths)
      .value("IS_FIRST", Op::kIsFirst)
      .value("FUTURE_STEPS", Op::kFutureSteps);
  nb::enum_<Number>(module, "Number", "Types of numbers that the core computes with; bool is U1.")
      .value("F4", Number::kF4)
      .value("F8", Number::kF8)
      .value("I1", Number::kI1)
      .value("I2", Number::kI2)
      .value("I4", Number::kI4)
      .value("I8", Number::kI8)
      .value("U1", Number::kU1)
      .value("U2", Number::kU2)
      .value("U4", Number::kU4)
      .value("U8", Number::kU8);
}

void bind_tables(nb::module_& module) {
  nb::enum_<SamplerKind>(module, "SamplerKind")
      .value("UNIFORM", SamplerKind::kUniform)
      .value("FIFO", SamplerKind::kFifo)
      .value("LIFO", SamplerKind::kLifo)
      .value("MIN_HEAP", SamplerKind::kMinHeap)
      .value("MAX_HEAP", SamplerKind::kMaxHeap)
      .value("PRIORITIZED", SamplerKind::kPrioritized)
      .value("ONCE", SamplerKind::kOnce);
  nb::enum_<LeaseEnd>(module, "LeaseEnd", "How a lease ends; `native/replay/lease_ends.h`.")
      .value("ACKNOWLEDGED", LeaseEnd::kAcknowledged)
      .value("DROPPED", LeaseEnd::kDropped)
      .value("RETURNED", LeaseEnd::kReturned);
  nb::enum_<GoneFor>(module, "GoneFor", "Why an item left its table; `native/replay/gone_keys.h`.")
      .value("EVICTED", GoneFor::kEvicted)
      .value("USED_UP", GoneFor::kUsedUp)
      .value("DROPPED", GoneFor::kDropped)
      .value("STALE", GoneFor::kStale)
      .value("DELETED", GoneFor::kDeleted)
      .value("RESET", GoneFor::kReset)
      .value("LOST", GoneFor::kLost)
      .value("OVERDUE", GoneFor::kOverdue);
  nb::enum_<Autoreset>(module, "Autoreset")
      .value("OFF", Autoreset::kOff)
      .value("NEXT_STEP", Autoreset::kNextStep)
      .value("SAME_STEP", Autoreset::kSameStep);
  using Why = Blocked::Why;
  nb::enum_<Why>(module, "BlockedBy", "What a writer's call waits for.")
      .value("NOTHING", Why::kNothing)
      .value("LIMITER", Why::kLimiter)
      .value("TABLE_ROOM", Why::kTableRoom)
      .value("STORE_ROOM", Why::kStoreRoom)
      .value("LOCK", Why::kLock);
}

}  // namespace

void bind_enums(nb::module_& module) {
  using Mode = Arena::Mode;
  nb::enum_<Mode>(module, "Mode", "How a store is opened.")
      .value("OPEN", Mode::kOpen)
      .value("NEW", Mode::kNew)
      .value("ATTACH", Mode::kAttach)
      .value("FRESH", Mode::kFresh);
  bind_rows(module);
  bind_tables(module);
}

}  // namespace di::py
