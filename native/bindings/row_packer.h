// Copies the values of a step to their places in a frame for another machine.
#pragma once

#include <optional>
#include <vector>

#include "bindings/bindings.h"

namespace di::py {

class RowPacker {
 public:
  // For each leaf: its name in the step, dtype, shape, offset from the beginning of the call, and whether it ends
  // episodes.
  using Leaf = std::tuple<nb::object, nb::object, std::vector<npy_intp>, u64, bool>;

  RowPacker(const std::vector<Leaf>& leaves, u64 stride);
  // Writes to the bytes of `block` from `at` on. Returns whether one of the values ends the episode. nullopt: the step
  // has other leaves, or a leaf that the package must convert or check. Then the bytes there mean nothing.
  std::optional<bool> write(nb::handle step, nb::handle block, u64 at) const;

 private:
  struct LeafPlace {
    nb::object name, dtype;
    PyArray_Descr* descr;  // what `dtype` holds
    std::vector<npy_intp> shape;
    u64 at, bytes;
    bool ends;
  };

  static bool copy(const LeafPlace& place, nb::handle value, u8* to);
  static bool copy_number(const LeafPlace& place, PyObject* value, u8* to);

  std::vector<LeafPlace> places_;
  u64 stride_;
};

void bind_row_packer(nb::module_& module);

}  // namespace di::py
