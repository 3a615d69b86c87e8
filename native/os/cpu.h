// What the processor can do, beyond what every x86-64 or 64-bit Arm has.
//
// This asks cpuid and not __builtin_cpu_supports, because the latter needs the compiler's run-time library. That of zig
// brings its own memcpy into the module, which took up to 15 % more time than glibc's.
#pragma once

#if defined(__x86_64__)

#include <cpuid.h>

#include "base/types.h"

namespace di::os {

struct Cpu {
  bool avx2 = false;
  bool avx512 = false;   // F and DQ
  bool crc32c = false;   // the instruction of SSE 4.2
  bool folding = false;  // carry-less products of whole AVX-512 registers; then `crc32c` too

  Cpu() {
    u32 a = 0, b = 0, c = 0, d = 0;
    constexpr u32 kOsXsave = 1u << 27, kAvx2 = 1u << 5, kAvx512 = 1u << 16 | 1u << 17, kSse42 = 1u << 20,
                  kClmul = 1u << 10;
    constexpr u32 kYmm = 0x6, kZmm = 0xe6;  // of XCR0: the registers that the kernel saves
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return;
    crc32c = (c & kSse42) != 0;
    if ((c & kOsXsave) == 0) return;
    u32 saved = 0, high = 0;
    asm("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return;
    avx2 = (b & kAvx2) != 0 && (saved & kYmm) == kYmm;
    avx512 = (b & kAvx512) == kAvx512 && (saved & kZmm) == kZmm;
    folding = avx512 && crc32c && (c & kClmul) != 0;
  }
};

}  // namespace di::os

#elif defined(__aarch64__)

#include <sys/auxv.h>

namespace di::os {

struct Cpu {
  bool crc32c = (getauxval(AT_HWCAP) & 1u << 7) != 0;  // HWCAP_CRC32: optional in ARMv8.0
};

}  // namespace di::os

#endif
