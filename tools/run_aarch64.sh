#!/bin/bash
# Builds native/ and tests/native with a cross compiler for aarch64 and runs them by qemu-user: run_aarch64.sh BIN [ctest
# options]. Needs root, Debian's g++-aarch64-linux-gnu and qemu-user 10 or later.
set -euo pipefail
bin=$(cd "$1" && pwd)
shift
build=build/aarch64
sysroot=/usr/aarch64-linux-gnu
command -v aarch64-linux-gnu-g++ >/dev/null || { echo "need aarch64-linux-gnu-g++ (Debian: apt-get install g++-aarch64-linux-gnu)" >&2; exit 1; }
tools/emulate_aarch64.sh  # the tests start programs of their own

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
