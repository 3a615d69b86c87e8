#!/bin/bash
# Runs the README's program with wheels for aarch64, by qemu-user, each in a Debian as delivered whose own Python is the
# wheel's: try_aarch64.sh build/wheels/dist/*-cp31[134]-*_aarch64.whl
# Wants root, debootstrap and qemu-user 10 or later.
# Environment: CLEAN, a folder for the systems, kept for a next time; SHOWN and PIP_... as clean_root.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/emulate_aarch64.sh
systems=${CLEAN:-$(mktemp -d /tmp/aarch64-XXXXXX)}
[ -n "${CLEAN:-}" ] || trap 'rm -rf "$systems"' EXIT
export ARCH=arm64 WHO=root PACKAGES=ca-certificates,python3-venv
for wheel in "$@"; do
    case $wheel in
        *-cp311-*) export SUITE=bookworm ;;
        *-cp313-*) export SUITE=trixie ;;
        *-cp314-*) export SUITE=testing ;;
        *) echo "no Debian has the Python of $wheel" >&2; exit 1 ;;
    esac
    export CLEAN=$systems/$SUITE
    tools/clean_root.sh true
    cp "$wheel" "$CLEAN/opt/"
    tools/clean_root.sh tools/try_wheel.sh python3 "/opt/$(basename "$wheel")"
done
