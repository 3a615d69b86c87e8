// CRC-32C by tables and by instructions.
//
// The instruction takes a new word each cycle but needs three cycles for one, so three parts of the data are summed at
// once. The checksum's algebra joins the sums: bytes are coefficients of a polynomial modulo P, and n zero bytes after
// some data multiply its sum by x^(8n).
//
// Carry-less products do the same with whole registers: each 16 bytes of a block of 256 bytes are multiplied by x^2048
// and added to the next 256 bytes. Those then have the checksum of both blocks. The instruction sums up the rest after
// the last block.
#include "os/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/layout.h"
#include "os/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace di {

namespace {

constexpr u32 kPolynomial = 0x82f63b78;  // reflected: the top bit is the coefficient of x^0

// a * b modulo P.
constexpr u32 multiply(u32 a, u32 b) {
  u32 product = 0;
  for (u32 bit = 1u << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// x^(8 bytes) modulo P.
constexpr u32 shift_by(u64 bytes) {
  u32 result = 1u << 31, square = 1u << 23;
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) result = multiply(result, square);
    square = multiply(square, square);
  }
  return result;
}

using Table = std::array<std::array<u32, 256>, 8>;

// [k][b]: the amount that byte b adds to the sum when k bytes follow.
constexpr Table make_table() {
  Table table{};
  for (u32 byte = 0; byte < 256; ++byte) {
    u32 sum = byte;
    for (u32 bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? kPolynomial : 0);
    table[0][byte] = sum;
  }
  for (u64 k = 1; k < 8; ++k)
    for (u32 byte = 0; byte < 256; ++byte)
      table[k][byte] = (table[k - 1][byte] >> 8) ^ table[0][table[k - 1][byte] & 255];
  return table;
}
constexpr Table kTable = make_table();

u64 word_at(const u8* data) {
  u64 word = 0;
  std::memcpy(&word, data, 8);
  return word;
}

u32 by_tables(const u8* data, u64 bytes, u32 state) {
  for (; bytes >= 8; bytes -= 8, data += 8) {
    const u64 word = word_at(data) ^ state;
    state = 0;
    for (u64 k = 0; k < 8; ++k) state ^= kTable[7 - k][word >> (8 * k) & 255];
  }
  for (; bytes != 0; --bytes) state = (state >> 8) ^ kTable[0][(state ^ *data++) & 255];
  return state;
}

#if defined(__x86_64__) || defined(__aarch64__)

// Bytes of each of the three parts. Three parts and 16 bytes make a page.
constexpr u64 kPart = 1360;
static_assert(3 * kPart + 16 == kPageBytes && kPart % 8 == 0);

using ShiftTable = std::array<std::array<u32, 256>, 4>;

// [k][b]: the value of byte k of a sum after `bytes` zero bytes.
constexpr ShiftTable make_shift(u64 bytes) {
  ShiftTable table{};
  const u32 factor = shift_by(bytes);
  for (u32 k = 0; k < 4; ++k) {
    std::array<u32, 8> bits{};
    for (u32 bit = 0; bit < 8; ++bit) bits[bit] = multiply(1u << (8 * k + bit), factor);
    for (u32 byte = 1; byte < 256; ++byte)
      table[k][byte] = table[k][byte & (byte - 1)] ^ bits[static_cast<u32>(__builtin_ctz(byte))];
  }
  return table;
}
constexpr ShiftTable kShiftOne = make_shift(kPart), kShiftTwo = make_shift(2 * kPart);

u32 shifted(const ShiftTable& table, u32 sum) {
  return table[0][sum & 255] ^ table[1][sum >> 8 & 255] ^ table[2][sum >> 16 & 255] ^ table[3][sum >> 24];
}

#if defined(__x86_64__)
#define DI_CRC_TARGET __attribute__((target("sse4.2,crc32")))  // crc32: needed by clang 20 and later
DI_CRC_TARGET inline u64 add_word(u64 sum, u64 word) { return _mm_crc32_u64(sum, word); }
DI_CRC_TARGET inline u32 add_byte(u32 sum, u8 byte) { return _mm_crc32_u8(sum, byte); }
#else
// In assembly, because compilers disagree on how a single function asks for the instruction.
#define DI_CRC_TARGET
inline u64 add_word(u64 sum, u64 word) {
  u32 result = static_cast<u32>(sum);
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(result) : "r"(word));
  return result;
}
inline u32 add_byte(u32 sum, u8 byte) {
  asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(sum) : "r"(u32{byte}));
  return sum;
}
#endif

DI_CRC_TARGET u32 by_instruction(const u8* data, u64 bytes, u32 state) {
  u64 sum = state;
  for (; bytes >= 3 * kPart; bytes -= 3 * kPart, data += 3 * kPart) {
    u64 second = 0, third = 0;
    for (u64 i = 0; i < kPart; i += 8) {
      sum = add_word(sum, word_at(data + i));
      second = add_word(second, word_at(data + kPart + i));
      third = add_word(third, word_at(data + 2 * kPart + i));
    }
    sum = shifted(kShiftTwo, static_cast<u32>(sum)) ^ shifted(kShiftOne, static_cast<u32>(second)) ^ third;
  }
  for (; bytes >= 8; bytes -= 8, data += 8) sum = add_word(sum, word_at(data));
  u32 result = static_cast<u32>(sum);
  for (; bytes != 0; --bytes) result = add_byte(result, *data++);
  return result;
}

#endif

#if defined(__x86_64__)
#define DI_FOLD_TARGET __attribute__((target("avx512f,avx512dq,vpclmulqdq,sse4.2,crc32")))

constexpr u64 kFold = 256;  // bytes of four registers
constexpr u64 kLeastFold = 1u << 10;

// The factor for 8 bytes whose last byte is `bytes` bytes before the target of the addition. A carry-less product of
// reflected numbers is one bit short; the shift makes up for that.
constexpr long long fold_factor(u64 bytes) { return static_cast<long long>(u64{shift_by(bytes)} << 1); }

DI_FOLD_TARGET inline __m512i folded(__m512i sum, __m512i factors, const u8* next) {
  const __m512i low = _mm512_clmulepi64_epi128(sum, factors, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(sum, factors, 0x11);
  return _mm512_ternarylogic_epi64(low, high, _mm512_loadu_si512(next), 0x96);  // the sum of all three
}

DI_FOLD_TARGET u32 by_folding(const u8* data, u64 bytes, u32 state) {
  if (bytes < kLeastFold) return by_instruction(data, bytes, state);
  constexpr long long kLow = fold_factor(kFold + 4), kHigh = fold_factor(kFold - 4);
  const __m512i factors = _mm512_set4_epi64(kHigh, kLow, kHigh, kLow);
  const __m512i start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state)));
  __m512i first = _mm512_xor_si512(_mm512_loadu_si512(data), start);
  __m512i second = _mm512_loadu_si512(data + 64), third = _mm512_loadu_si512(data + 128);
  __m512i fourth = _mm512_loadu_si512(data + 192);
  for (data += kFold, bytes -= kFold; bytes >= kFold; data += kFold, bytes -= kFold) {
    first = folded(first, factors, data);
    second = folded(second, factors, data + 64);
    third = folded(third, factors, data + 128);
    fourth = folded(fourth, factors, data + 192);
  }
  alignas(64) u8 left[kFold];
  _mm512_store_si512(left, first);
  _mm512_store_si512(left + 64, second);
  _mm512_store_si512(left + 128, third);
  _mm512_store_si512(left + 192, fourth);
  return by_instruction(data, bytes, by_instruction(left, kFold, 0));
}
#endif

// Chosen at load, before main, so no call needs to check whether the choice was made.
const Crc32cFunction g_best = crc32c_functions().back();

}  // namespace

std::vector<Crc32cFunction> crc32c_functions() {
  std::vector<Crc32cFunction> functions{by_tables};
#if defined(__x86_64__) || defined(__aarch64__)
  if (os::Cpu().crc32c) functions.push_back(by_instruction);
#endif
#if defined(__x86_64__)
  if (os::Cpu().folding) functions.push_back(by_folding);
#endif
  return functions;
}

u32 crc32c(const void* data, u64 bytes, u32 before) { return ~g_best(static_cast<const u8*>(data), bytes, ~before); }

}  // namespace di
