// How a value lies in its object's block: as an array or packed. docs/object_format.md draws both forms. Only the codec
// (src/di_store/objects/codec) knows what the header of a packed value means. Both forms are written by
// bindings/objects.cc, which copies from Python's buffers, and read by the functions here.
#pragma once

#include <span>

#include "base/types.h"

namespace di {

constexpr u32 kFormArray = 0x31415344;   // "DSA1"
constexpr u32 kFormPacked = 0x31505344;  // "DSP1"
// As kFormPacked, for bytes that another machine sent: decoding them runs no code that they name.
constexpr u32 kFormForeign = 0x31465344;  // "DSF1"
constexpr int kFormDims = 5;

struct ArrayForm {  // the elements follow at byte 64
  u32 form;
  u8 ndim;
  char kind;  // numpy's letter: b i u f c
  u8 item_bytes;
  u8 pad;
  u64 bytes;  // of all elements
  i64 shape[kFormDims];
  u64 reserved;
};
static_assert(sizeof(ArrayForm) == 64);

struct PackedForm {  // the header follows at once, the payload at the next multiple of 64
  u32 form;
  u32 header_bytes;
  u64 payload_bytes;
};
static_assert(sizeof(PackedForm) == 16);

struct PackedValue {
  std::span<const u8> header, payload;
  bool foreign = false;
};

// Whether arrays of this element type are stored as ArrayForm; others are packed.
bool is_plain_element(char kind, u64 item_bytes);
// Where the payload of a packed value lies in its block.
u64 packed_payload_at(u64 header_bytes);

// Read a block of `bytes` bytes and check what it says against that size. The last two throw kCorruptData.
bool holds_array(const u8* block, u64 bytes);
ArrayForm read_array_form(const u8* block, u64 bytes);
PackedValue read_packed(const u8* block, u64 bytes);

}  // namespace di
