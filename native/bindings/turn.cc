// A lock among the threads of one process that survives exceptions of signal handlers: its owner "has the turn".
//
// A signal handler may raise after any call that Python makes, even between a lock's acquire() and the line that would
// note that the lock is taken. So take() returns an object (Hold), and the turn ends when that object is destroyed: as
// a context manager, or with the stack of the interrupted function.
//
// A call in a task sleeps while its thread goes on with others. So the turn belongs to a Hold. The thread is its owner
// too unless the call sleeps: then a call of the same thread waits for it, as for one of another thread.
//
// All of this runs with the GIL held, and the GIL guards these fields. A waiting thread sleeps in Python, on its own
// lock (its "bell"), which is released to wake it. So no C++ frame is on the stack of a sleeping thread. A sleeper that
// was interrupted leaves its bell in the list; the next end of a turn releases that bell without effect.
#include "bindings/turn.h"

namespace di::py {
namespace {

constexpr u64 kStarvedNs = 5'000'000;  // newcomers go first until a thread has waited this long: fewer thread switches
constexpr u64 kGraceNs = 2'000'000;    // after that, a free turn is kept this long for the waiting threads

constexpr unsigned long kAsleep = 1;  // no thread's identity, which is an address

struct Turn {
  PyObject_HEAD unsigned long owner;  // thread; 0: free; kAsleep: the call that has it sleeps
  u64 hold;                           // number of the Hold that has it; 0: free, or a TurnHold has it
  PyObject* bells;                    // list of locks, one for each sleeping thread; null: none yet
  u64 wanted_ns;                      // when the longest wait began; 0: no thread waits
  u64 grace_ns;                       // newcomers must not take the turn before this; 0: they may
  u64 holds;                          // numbers given to Holds so far
};

// Python code has no reference to it but the one of the running `with`: its destruction has to end the turn even where
// an exception of a signal handler prevents the call of __exit__. So others name it by its number.
struct Hold {
  PyObject_HEAD Turn* turn;
  u64 number;
  bool mine;
};

PyTypeObject* hold_type = nullptr;

void ring(Turn* turn) {
  const u64 now = os::now_ns();
  turn->grace_ns = turn->wanted_ns != 0 && now - turn->wanted_ns > kStarvedNs ? now + kGraceNs : 0;
  PyObject* bells = turn->bells;
  turn->bells = nullptr;
  const nb::error_scope kept;  // a Hold may be destroyed while an exception is set
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bells); ++i) {
    PyObject* done = PyObject_CallMethod(PyList_GET_ITEM(bells, i), "release", nullptr);
    if (done == nullptr) PyErr_Clear();
    Py_XDECREF(done);
  }
  Py_DECREF(bells);
}

void give(Turn* turn) {
  turn->owner = 0;
  turn->hold = 0;
  if (turn->bells != nullptr) ring(turn);
}

bool try_take(Turn* turn, bool newcomer) {
  if (turn->owner != 0) return false;
  if (turn->grace_ns != 0 && newcomer && os::now_ns() < turn->grace_ns) return false;
  turn->grace_ns = 0;
  if (!newcomer) turn->wanted_ns = 0;
  turn->owner = PyThread_get_thread_ident();
  return true;
}

PyObject* turn_take(PyObject* self, PyObject* newcomer) {
  Turn* turn = reinterpret_cast<Turn*>(self);
  if (turn->owner == PyThread_get_thread_ident()) Py_RETURN_NONE;
  Hold* hold = PyObject_New(Hold, hold_type);
  if (hold == nullptr) return nullptr;
  hold->turn = reinterpret_cast<Turn*>(Py_NewRef(self));
  hold->number = ++turn->holds;
  hold->mine = try_take(turn, newcomer == Py_True);
  if (hold->mine) turn->hold = hold->number;
  return reinterpret_cast<PyObject*>(hold);
}

PyObject* turn_hold(PyObject* self, PyObject*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<Turn*>(self)->hold);
}

// Whether this number, an int that `hold` returned, is of the Hold that has the turn.
bool is_of(const Turn* turn, PyObject* number) { return turn->hold == PyLong_AsUnsignedLongLong(number); }

PyObject* turn_pass_on(PyObject* self, PyObject* number) {
  Turn* turn = reinterpret_cast<Turn*>(self);
  if (is_of(turn, number)) give(turn);
  Py_RETURN_NONE;
}

PyObject* turn_take_again(PyObject* self, PyObject* number) {
  Turn* turn = reinterpret_cast<Turn*>(self);
  if (!try_take(turn, false)) Py_RETURN_FALSE;
  turn->hold = PyLong_AsUnsignedLongLong(number);
  Py_RETURN_TRUE;
}

PyObject* turn_sleep(PyObject* self, PyObject* number) {
  Turn* turn = reinterpret_cast<Turn*>(self);
  if (is_of(turn, number)) turn->owner = kAsleep;
  Py_RETURN_NONE;
}

PyObject* turn_wake(PyObject* self, PyObject* number) {
  Turn* turn = reinterpret_cast<Turn*>(self);
  if (is_of(turn, number)) turn->owner = PyThread_get_thread_ident();
  Py_RETURN_NONE;
}

PyObject* turn_hang(PyObject* self, PyObject* bell) {
  Turn* turn = reinterpret_cast<Turn*>(self);
  if (turn->wanted_ns == 0) turn->wanted_ns = os::now_ns();
  if (turn->owner == 0) Py_RETURN_FALSE;
  if (turn->bells == nullptr && (turn->bells = PyList_New(0)) == nullptr) return nullptr;
  if (PyList_Append(turn->bells, bell) != 0) return nullptr;
  Py_RETURN_TRUE;
}

void turn_dealloc(PyObject* self) {
  Py_XDECREF(reinterpret_cast<Turn*>(self)->bells);
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

void hold_end(Hold* hold) {
  if (hold->turn->hold == hold->number) give(hold->turn);
  hold->mine = false;
}

PyObject* hold_enter(PyObject* self, PyObject*) { return PyBool_FromLong(reinterpret_cast<Hold*>(self)->mine ? 1 : 0); }

PyObject* hold_exit(PyObject* self, PyObject* const*, Py_ssize_t) {
  hold_end(reinterpret_cast<Hold*>(self));
  Py_RETURN_NONE;
}

void hold_dealloc(PyObject* self) {
  Hold* hold = reinterpret_cast<Hold*>(self);
  hold_end(hold);
  Py_DECREF(hold->turn);
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyMethodDef turn_methods[] = {
    {"take", turn_take, METH_O, "take(newcomer): a context manager, which says whether it has the turn; None: inside."},
    {"hold", turn_hold, METH_NOARGS, "The number of the hold that has it."},
    {"pass_on", turn_pass_on, METH_O, "pass_on(hold): others may have it until `take_again`; the hold's end is none."},
    {"take_again", turn_take_again, METH_O, "take_again(hold): whether the hold has it again."},
    {"sleep", turn_sleep, METH_O, "sleep(hold): the call that has it sleeps in a task; others of this thread wait."},
    {"wake", turn_wake, METH_O, "wake(hold): the call goes on, in this thread."},
    {"hang", turn_hang, METH_O, "hang(bell): the lock is released when the turn ends; False: it has ended already."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef hold_methods[] = {
    {"__enter__", hold_enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(hold_exit)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot turn_slots[] = {{Py_tp_methods, turn_methods},
                            {Py_tp_dealloc, reinterpret_cast<void*>(turn_dealloc)},
                            {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
                            {0, nullptr}};
PyType_Slot hold_slots[] = {
    {Py_tp_methods, hold_methods}, {Py_tp_dealloc, reinterpret_cast<void*>(hold_dealloc)}, {0, nullptr}};
PyType_Spec turn_spec = {"di_store._core.Turn", sizeof(Turn), 0, Py_TPFLAGS_DEFAULT, turn_slots};
PyType_Spec hold_spec = {"di_store._core.Hold", sizeof(Hold), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                         hold_slots};

}  // namespace

TurnHold::TurnHold(nb::handle turn)
    : turn_(Py_NewRef(turn.ptr())), mine_(try_take(reinterpret_cast<Turn*>(turn.ptr()), true)) {}

TurnHold::~TurnHold() {
  if (mine_) give(reinterpret_cast<Turn*>(turn_));
  Py_DECREF(turn_);
}

void bind_turn(nb::module_& module) {
  module.attr("Turn") = checked(PyType_FromSpec(&turn_spec));
  nb::object hold = checked(PyType_FromSpec(&hold_spec));
  module.attr("Hold") = hold;
  hold_type = reinterpret_cast<PyTypeObject*>(hold.release().ptr());
}

}  // namespace di::py
