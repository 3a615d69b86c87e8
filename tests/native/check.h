// CHECK(condition): prints where it failed and ends the program with status 1. Works in every build.
#pragma once

#include <cstdio>
#include <cstdlib>

// Whether qemu-user runs this program (tools/run_aarch64.sh says so): it does not pass on every call to the kernel, and
// it is slow.
inline bool is_emulated() { return std::getenv("DI_STORE_EMULATED") != nullptr; }

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (0)
