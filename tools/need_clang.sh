#!/bin/bash
# Prints the path of a clang++ 16 or later with sanitizer runtimes. If there is none, installs Debian's (as root), or
# fails: a check that could not run must not look like one that passed.
set -euo pipefail

probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'int main() { return 0; }' >"$probe/probe.cc"

usable() {  # the newest clang++ that links and runs under every sanitizer we use
    local name
    for name in "${CLANGXX:-}" clang++-{22,21,20,19,18,17,16} clang++; do
        if [ -n "$name" ] && command -v "$name" >/dev/null && new_enough "$name" && runs "$name"; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

new_enough() {
    local version
    version=$("$1" -dumpversion)
    [ "${version%%.*}" -ge 16 ]
}

runs() {
    local kind
    for kind in address,undefined thread; do
        "$1" -std=c++20 -fsanitize=$kind "$probe/probe.cc" -o "$probe/probe" 2>>"$probe/log" && "$probe/probe" || return 1
    done
}

usable && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    for version in 19 16; do
        apt-get install -y -qq --no-install-recommends clang-$version libclang-rt-$version-dev llvm-$version >&2 || continue
        usable && exit 0
    done
fi
cat "$probe/log" >&2 2>/dev/null || true
echo "need clang++ 16 or later with sanitizer runtimes (Debian: apt-get install clang-19 libclang-rt-19-dev)" >&2
exit 1
