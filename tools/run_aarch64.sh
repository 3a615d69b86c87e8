#!/bin/bash
# Builds native/ and tests/native with a cross compiler for aarch64 and runs them by qemu-user: run_aarch64.sh BIN [ctest
# options]. Needs Debian's g++-aarch64-linux-gnu and qemu-user 10 or later (older ones lack calls that the tests make).
# The tests start programs of their own, so the kernel must know who runs aarch64 programs: as root this registers qemu.
set -euo pipefail
bin=$(cd "$1" && pwd)
shift
build=build/aarch64
sysroot=/usr/aarch64-linux-gnu
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)

fail() { echo "$1" >&2; exit 1; }
command -v aarch64-linux-gnu-g++ >/dev/null || fail "need aarch64-linux-gnu-g++ (Debian: apt-get install g++-aarch64-linux-gnu)"
[ -n "$qemu" ] || fail "need qemu-aarch64 10 or later (Debian: apt-get install qemu-user)"
[ "$("$qemu" --version | grep -o 'version [0-9]*' | cut -d' ' -f2)" -ge 10 ] || fail "need qemu-aarch64 10 or later, this is $("$qemu" --version | head -n 1)"

register() {  # the magic: ELF, 64-bit, little-endian, program or shared object, machine 183; F: opened now
    local binfmt=/proc/sys/fs/binfmt_misc
    grep -qsE '^enabled' "$binfmt"/*aarch64* 2>/dev/null && return
    [ -e "$binfmt/register" ] || mount -t binfmt_misc binfmt_misc "$binfmt"
    printf '%s' ':qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'"$qemu:F" >"$binfmt/register"
}
register

mkdir -p build
"$bin/cmake" -G Ninja -S . -B "$build" -DCMAKE_MAKE_PROGRAM="$bin/ninja" \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
    -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DPython_EXECUTABLE="$bin/python" \
    -DDI_STORE_PYTHON=OFF -DDI_STORE_TESTS=ON -DDI_STORE_FAULTS=ON >"$build.log" || { cat "$build.log" >&2; exit 1; }
"$bin/cmake" --build "$build"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
QEMU_LD_PREFIX=$sysroot DI_STORE_DIR=$folder DI_STORE_EMULATED=1 \
    "$bin/ctest" --test-dir "$build" --no-tests=error --output-on-failure "$@"
