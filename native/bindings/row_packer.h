// Copies the values of a step to where they lie in a frame that goes to another machine.
#pragma once

#include <optional>
#include <vector>

#include "bindings/bindings.h"

namespace di::py {

class RowPacker {
 public:
  // By leaf: its name in the step, dtype, shape, place behind the beginning of the call, and whether it ends episodes.
  using Leaf = std::tuple<nb::object, nb::object, std::vector<npy_intp>, u64, bool>;

  RowPacker(const std::vector<Leaf>& leaves, u64 stride);
  // Writes to the bytes of `block` from `at` on. Returns whether one of the values ends the episode; nothing: the step has
  // other leaves, or one that has to be converted or looked at by the package. Then what lies there means nothing.
  std::optional<bool> write(nb::handle step, nb::handle block, u64 at) const;

 private:
  struct Place {
    nb::object name, dtype;
    PyArray_Descr* descr;  // what `dtype` holds
    std::vector<npy_intp> shape;
    u64 at, bytes;
    bool ends;
  };

  static bool copy(const Place& place, nb::handle value, u8* to);
  static bool copy_number(const Place& place, PyObject* value, u8* to);

  std::vector<Place> places_;
  u64 stride_;
};

void bind_row_packer(nb::module_& module);

}  // namespace di::py
