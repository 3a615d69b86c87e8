#include "replay/row_form.h"

namespace di {
namespace {

[[noreturn]] void refuse() { throw Error(Code::kCorruptData, "received rows that lie outside their message"); }

// Whether a * b <= most, even if the product does not fit 64 bits.
bool product_fits(u64 a, u64 b, u64 most) { return a == 0 || b <= most / a; }

}  // namespace

void RowForm::require_places(const std::vector<ValuePlace>& leaves, const std::vector<u64>& row_bytes) const {
  const u64 rows = lanes_ == 0 ? 1 : lanes_;
  for (const ValuePlace& leaf : leaves) {
    if (leaf.column >= row_bytes.size() || row_bytes[leaf.column] == 0 || leaf.at > stride_) refuse();
    if (!product_fits(row_bytes[leaf.column], rows, stride_ - leaf.at)) refuse();
  }
}

void RowForm::require(const std::vector<u64>& row_bytes, u64 at, u64 count, u64 bytes) const {
  require_places(step_, row_bytes);
  require_places(next_, row_bytes);
  if (stride_ == 0 || count == 0 || at > bytes || !product_fits(stride_, count, bytes - at)) refuse();
}

void RowForm::place(const u8* call, const std::vector<u64>& row_bytes, WriterCall* made) const {
  const u64 rows = lanes_ == 0 ? 1 : lanes_;
  made->columns.assign(row_bytes.size(), ColumnInput{});
  made->next.assign(next_.empty() ? 0 : row_bytes.size(), ColumnInput{});
  for (const ValuePlace& leaf : step_)
    made->columns[leaf.column] = {call + leaf.at, row_bytes[leaf.column] * rows, row_bytes[leaf.column], nullptr};
  for (const ValuePlace& leaf : next_)
    made->next[leaf.column] = {call + leaf.at, row_bytes[leaf.column] * rows, row_bytes[leaf.column], nullptr};
}

}  // namespace di
