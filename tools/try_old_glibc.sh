#!/bin/bash
# Runs the README's program with wheels on the oldest C library that they may meet: Ubuntu 18.04 as delivered, whose glibc is
# 2.27. Its own Python is too old, so that of a later Ubuntu is built there: try_old_glibc.sh PYTHON=SUITE[:WHEEL]...
#   tools/try_old_glibc.sh 3.10=jammy:build/wheels/dist/*cp310*x86_64.whl 3.14=resolute
# Without WHEEL one is built there first, and comes into build/wheels/dist. Wants root, debootstrap, and a mirror of Ubuntu.
# Environment: CLEAN, a folder for the system and the Pythons, kept for a next time; ARCHES, of what is built, as wheels.sh;
# SHOWN and PIP_... as clean_root.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
export CLEAN=${CLEAN:-$(mktemp -d /tmp/old-XXXXXX)} SUITE=bionic MIRROR=${MIRROR:-http://archive.ubuntu.com/ubuntu} WHO=root
export PACKAGES=ca-certificates,g++,make,dpkg-dev,xz-utils,zlib1g-dev,libssl-dev,libffi-dev

build='
    set -euo pipefail
    version=$1 suite=$2 mirror=$3
    cd /opt
    if ! /opt/$version/bin/python3 -c "import ssl" 2>/dev/null; then
        echo "deb $mirror bionic-updates main" >/etc/apt/sources.list.d/updates.list
        apt-get -qq update
        apt-get -qq install -y ubuntu-keyring libssl-dev >/dev/null  # with the key of later releases; 1.1.1, as Python wants
        printf "deb-src $mirror %s main\n" $suite $suite-updates >/etc/apt/sources.list.d/python.list
        apt-get -qq update
        apt-get -qq source --download-only --tar-only python$version
        mkdir -p src-$version
        tar -xf python${version}_*.orig.tar.* -C src-$version --strip-components 1
        cd src-$version
        ./configure -q --prefix=/opt/$version >/dev/null
        make -sj"$(nproc)" >make.log 2>&1 || { tail make.log; exit 1; }
        make -s install >install.log 2>&1
        /opt/$version/bin/python3 -c "import ssl"
    fi
    ldd --version | sed -n 1p'
for each in "$@"; do
    version=${each%%=*} rest=${each#*=}
    suite=${rest%%:*} wheel=${rest#"$suite"} python=/opt/$version/bin/python3
    wheel=$(echo ${wheel#:})  # it may be a pattern
    tools/clean_root.sh bash -c "$build" build "$version" "$suite" "$MIRROR"
    if [ -n "$wheel" ]; then
        cp "$wheel" "$CLEAN/opt/"
        tools/clean_root.sh tools/try_wheel.sh "$python" "/opt/$(basename "$wheel")"
    else
        tools/clean_root.sh env PATH="${python%/*}:/usr/bin:/bin" PYTHONS="$python" ARCHES="${ARCHES:-$(uname -m)}" \
            sh -c "tools/wheels.sh && cp build/wheels/dist/*.whl /opt"
        mkdir -p build/wheels/dist
        cp "$CLEAN/opt/"*.whl build/wheels/dist/
    fi
done
