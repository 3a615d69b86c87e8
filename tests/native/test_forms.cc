// Forms of objects: what a damaged array header says is refused, whichever of its fields does not fit the others.
#include <cstring>
#include <functional>
#include <vector>

#include "base/status.h"
#include "check.h"
#include "objects/forms.h"

using namespace di;

namespace {

constexpr u64 kBytes = sizeof(ArrayForm) + 48;

bool is_refused(const std::function<void(ArrayForm*)>& damage) {
  ArrayForm form{kFormArray, 2, 'i', 8, 0, 48, {2, 3}, 0};
  damage(&form);
  std::vector<u8> block(kBytes);
  std::memcpy(block.data(), &form, sizeof form);
  CHECK(holds_array(block.data(), kBytes));
  try {
    read_array_form(block.data(), kBytes);
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorruptData);
    return true;
  }
  return false;
}

void damaged_arrays() {
  CHECK(!is_refused([](ArrayForm*) {}));
  CHECK(is_refused([](ArrayForm* form) { form->kind = 'x'; }));
  CHECK(is_refused([](ArrayForm* form) { form->ndim = 6; }));
  CHECK(is_refused([](ArrayForm* form) { form->bytes = 56; }));
  CHECK(is_refused([](ArrayForm* form) { form->shape[0] = -2; }));
  CHECK(is_refused([](ArrayForm* form) { form->shape[0] = i64{1} << 62; }));
  CHECK(!is_refused([](ArrayForm* form) { form->bytes = 0, form->shape[0] = 0; }));
  CHECK(is_refused([](ArrayForm* form) { form->bytes = 0, form->shape[0] = 0, form->shape[1] = i64{1} << 62; }));
  // Sizes that no such element has, where the product is right all the same: numpy would read beyond the block.
  CHECK(is_refused([](ArrayForm* form) { form->item_bytes = 3, form->shape[0] = 16, form->shape[1] = 1; }));
  CHECK(is_refused([](ArrayForm* form) { form->kind = 'f', form->item_bytes = 1, form->shape[0] = 16; }));
  CHECK(is_refused([](ArrayForm* form) { form->kind = 'c', form->item_bytes = 4, form->shape[0] = 4; }));
}

void packed() {
  std::vector<u8> block(192);
  const PackedForm form{kFormPacked, 50, 64};
  std::memcpy(block.data(), &form, sizeof form);
  const PackedValue value = read_packed(block.data(), block.size());
  CHECK(value.header.data() == block.data() + 16 && value.header.size() == 50);
  CHECK(value.payload.data() == block.data() + 128 && value.payload.size() == 64);
  CHECK(!value.foreign);
  const u32 foreign = kFormForeign, unknown = kFormForeign + 1;
  std::memcpy(block.data(), &foreign, sizeof foreign);
  CHECK(read_packed(block.data(), block.size()).foreign);
  std::memcpy(block.data(), &unknown, sizeof unknown);
  bool known = true;
  try {
    read_packed(block.data(), block.size());
  } catch (const Error&) {
    known = false;
  }
  CHECK(!known);
  std::memcpy(block.data(), &form, sizeof form);
  for (const u64 bytes : {u64{0}, u64{8}, u64{100}, u64{191}}) {
    bool refused = false;
    try {
      read_packed(block.data(), bytes);
    } catch (const Error&) {
      refused = true;
    }
    CHECK(refused);
  }
}

}  // namespace

int main() {
  damaged_arrays();
  packed();
}
