#!/bin/bash
# Builds the module di_store._core under the address sanitizer, and gives it a million damaged blocks of other machines:
# run_blocks.sh BIN [pytest options].
set -euo pipefail
bin=$(cd "$1" && pwd)
shift
build=build/asan-module

mkdir -p "$build/di_store"
"$bin/cmake" -G Ninja -S . -B "$build" -DCMAKE_MAKE_PROGRAM="$bin/ninja" -DPython_EXECUTABLE="$bin/python" \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1" -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1" \
    -DDI_STORE_SANITIZE="address;undefined" -DDI_STORE_PYTHON=ON -DDI_STORE_TESTS=OFF >"$build/configure.log" ||
    { cat "$build/configure.log" >&2; exit 1; }
"$bin/cmake" --build "$build" --target _core

package=$build/package/di_store
mkdir -p "$package"
cp -r src/di_store/. "$package"
rm -f "$package"/_core*.so
cp "$build"/_core*.so "$package"
libraries=$(g++ -print-file-name=libasan.so):$(g++ -print-file-name=libubsan.so)
export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:allocator_may_return_null=1:max_allocation_size_mb=64
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
DI_STORE_TEST_SCALE=full LD_PRELOAD=$libraries PYTHONPATH=$build/package:tests \
    "$bin/python" -P -m pytest -q -p no:cacheprovider --timeout 7200 tests/objects/test_arbitrary_blocks.py "$@"
