#!/usr/bin/env bash
# Builds the native module with fault points and puts it beside the Python sources. Callers must hold build/dev.lock,
# so that two builds do not run at once.
set -eu
bin=$1
jobs=$2
"$bin/cmake" -G Ninja "-DCMAKE_MAKE_PROGRAM=$bin/ninja" -S . -B build/dev -DDI_STORE_FAULTS=ON \
  "-DPython_EXECUTABLE=$bin/python" > build/dev.log || { cat build/dev.log; exit 1; }
"$bin/cmake" --build build/dev -j "$jobs"
tools/place.sh build/dev src/di_store
