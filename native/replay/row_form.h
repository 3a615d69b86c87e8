// Calls of one form as they come from another machine: their values lie one call after the other, at the same offsets
// in each call. The sender may say anything, so every offset is checked against the size of the data.
#pragma once

#include <vector>

#include "replay/writer_call.h"

namespace di {

class RowForm {
 public:
  struct ValuePlace {  // the value of one column in each call, for all its lanes
    u32 column;
    u64 at;  // bytes after the beginning of the call
  };

  // stride: bytes from one call to the next. lanes: the leading axis of every value; 0: there is none.
  RowForm(std::vector<ValuePlace> step, std::vector<ValuePlace> next, u64 stride, u64 lanes)
      : step_(std::move(step)), next_(std::move(next)), stride_(stride), lanes_(lanes) {}

  // Throws kCorruptData unless every value of `count` calls that begin at `at` lies in `bytes` bytes, and has a column.
  // row_bytes: by column of the layout, bytes of one row's value; 0: any size, and then no call of a form may give the
  // column.
  void require(const std::vector<u64>& row_bytes, u64 at, u64 count, u64 bytes) const;
  // Fills the inputs with the values of the call that begins at `call`. require() has checked the form.
  void place(const u8* call, const std::vector<u64>& row_bytes, WriterCall* made) const;

  u64 stride() const { return stride_; }
  u64 lanes() const { return lanes_; }

 private:
  void require_places(const std::vector<ValuePlace>& leaves, const std::vector<u64>& row_bytes) const;

  std::vector<ValuePlace> step_, next_;
  u64 stride_, lanes_;
};

}  // namespace di
