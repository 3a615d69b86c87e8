#!/usr/bin/env bash
# The module with fault points, built and placed beside its sources. One at a time: callers hold build/dev.lock.
set -eu
bin=$1
jobs=$2
"$bin/cmake" -G Ninja "-DCMAKE_MAKE_PROGRAM=$bin/ninja" -S . -B build/dev -DDI_STORE_FAULTS=ON \
  "-DPython_EXECUTABLE=$bin/python" > build/dev.log || { cat build/dev.log; exit 1; }
"$bin/cmake" --build build/dev -j "$jobs"
tools/place.sh build/dev src/di_store
