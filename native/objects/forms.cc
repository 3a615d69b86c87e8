#include "objects/forms.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"

namespace di {
namespace {

u64 align64(u64 value) { return (value + 63) & ~u64{63}; }

// Bytes of the elements; ~0: the shape is negative, or the product overflows. As numpy does, sizes of 0 are left out of
// that product.
u64 element_bytes(const ArrayForm& form) {
  i64 bytes = form.item_bytes;
  bool empty = false;
  for (int i = 0; i < form.ndim; ++i) {
    empty = empty || form.shape[i] == 0;
    if (form.shape[i] < 0 || __builtin_mul_overflow(bytes, std::max<i64>(form.shape[i], 1), &bytes)) return ~u64{0};
  }
  return empty ? 0 : static_cast<u64>(bytes);
}

void require_form(bool sound) {
  if (!sound) throw Error(Code::kCorruptData, "an object's header is damaged");
}

}  // namespace

bool is_plain_element(char kind, u64 item_bytes) {
  switch (kind) {
    case 'b': return item_bytes == 1;
    case 'i':
    case 'u': return item_bytes == 1 || item_bytes == 2 || item_bytes == 4 || item_bytes == 8;
    case 'f': return item_bytes == 2 || item_bytes == 4 || item_bytes == 8;
    case 'c': return item_bytes == 8 || item_bytes == 16;
    default: return false;
  }
}

u64 packed_payload_at(u64 header_bytes) { return align64(sizeof(PackedForm) + header_bytes); }

bool holds_array(const u8* block, u64 bytes) {
  u32 form = 0;
  if (bytes >= sizeof(ArrayForm)) std::memcpy(&form, block, sizeof form);
  return form == kFormArray;
}

ArrayForm read_array_form(const u8* block, u64 bytes) {
  ArrayForm form;
  std::memcpy(&form, block, sizeof form);
  require_form(is_plain_element(form.kind, form.item_bytes) && form.ndim <= kFormDims);
  require_form(form.bytes <= bytes - sizeof form && element_bytes(form) == form.bytes);
  return form;
}

PackedValue read_packed(const u8* block, u64 bytes) {
  PackedForm form{};
  if (bytes >= sizeof form) std::memcpy(&form, block, sizeof form);
  const u64 start = packed_payload_at(form.header_bytes);
  const bool foreign = form.form == kFormForeign;
  require_form((foreign || form.form == kFormPacked) && start <= bytes && form.payload_bytes <= bytes - start);
  return {{block + sizeof form, form.header_bytes}, {block + start, form.payload_bytes}, foreign};
}

}  // namespace di
