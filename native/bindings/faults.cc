// Makes allocations fail on request, in builds with fault points. Each thread counts its calls of `operator new` in
// this module's code. Two kinds are not counted: nanobind's allocations (CMakeLists.txt gives it di_plain_new), and
// those that libstdc++ makes for strings inside its own library. Memory comes from malloc(), as it does without this
// file, so any code may free it.
#ifdef DI_FAULTS

#include <cstdlib>
#include <new>

#include "bindings/bindings.h"

namespace {

thread_local di::u64 t_allocations = 0;  // by this thread since fail_allocation()
thread_local di::u64 t_fails_at = 0;     // number of the one that fails; 0: none
thread_local bool t_spared = false;

void* allocate(std::size_t bytes) {
  if (!t_spared && ++t_allocations == t_fails_at) throw std::bad_alloc();
  void* at = std::malloc(bytes == 0 ? 1 : bytes);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}

}  // namespace

extern "C" void* di_plain_new(std::size_t bytes) {
  void* at = std::malloc(bytes == 0 ? 1 : bytes);
  if (at == nullptr) std::abort();
  return at;
}

extern "C" void* di_plain_new_array(std::size_t bytes) { return di_plain_new(bytes); }

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t) noexcept { std::free(at); }

namespace di::py {

SparedAllocations::SparedAllocations() { t_spared = true; }
SparedAllocations::~SparedAllocations() { t_spared = false; }

void bind_faults(nb::module_& module) {
  module.def("fault_points", &os::fault_points);
  module.def("arm_fault", &os::arm_fault, nb::sig("def arm_fault(spec: str, /) -> None"));
  module.def(
      "fail_allocation",
      [](u64 number) {
        t_allocations = 0;
        t_fails_at = number;
      },
      nb::sig("def fail_allocation(number: int, /) -> None"));
  module.def(
      "shift_clock", [](double seconds) { os::shift_boot_ns(static_cast<i64>(seconds * 1e9)); },
      nb::sig("def shift_clock(seconds: float, /) -> None"));
  module.def("allocations", [] { return t_allocations; });
}

}  // namespace di::py

#endif  // DI_FAULTS
