#!/bin/bash
# Builds native/ and programs of tests/native under a sanitizer and runs them:
# run_native.sh NAME SANITIZERS TARGET BIN [ctest options]. TARGET: all, or stress for the stress programs alone. With all,
# a warning of the compiler is an error.
set -euo pipefail
name=$1
sanitizers=$2
target=$3
bin=$(cd "$4" && pwd)
shift 4
clang=$(tools/need_clang.sh)
build=build/$name

mkdir -p "$build"
"$bin/cmake" -G Ninja -S . -B "$build" -DCMAKE_MAKE_PROGRAM="$bin/ninja" -DCMAKE_CXX_COMPILER="$clang" \
    -DCMAKE_C_COMPILER="${clang/clang++/clang}" -DPython_EXECUTABLE="$bin/python" \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1" -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1" \
    -DCMAKE_CXX_FLAGS="$([ "$target" = all ] && echo -Werror)" \
    -DDI_STORE_SANITIZE="$sanitizers" \
    -DDI_STORE_PYTHON=OFF -DDI_STORE_TESTS=ON -DDI_STORE_FAULTS=ON >"$build/configure.log" ||
    { cat "$build/configure.log" >&2; exit 1; }
"$bin/cmake" --build "$build" --target "$target"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
symbolizer=$(find /usr/bin /usr/lib/llvm-*/bin -name 'llvm-symbolizer*' 2>/dev/null | sort | tail -n 1)
[ -z "$symbolizer" ] || export ASAN_SYMBOLIZER_PATH=$symbolizer
export DI_STORE_DIR=$folder
options="halt_on_error=1${symbolizer:+:external_symbolizer_path=$symbolizer}"
export ASAN_OPTIONS=$options UBSAN_OPTIONS=$options:print_stacktrace=1 TSAN_OPTIONS=$options:second_deadlock_stack=1
"$bin/ctest" --test-dir "$build" -j "$(nproc)" --no-tests=error --output-on-failure "$@"
