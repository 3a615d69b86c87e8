#!/bin/bash
# Lets the kernel run aarch64 programs, and what they start, by qemu-user: once a boot, as root. Needs qemu-user 10 or
# later (older ones lack calls that the tests make).
set -euo pipefail
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
binfmt=/proc/sys/fs/binfmt_misc

fail() { echo "$1" >&2; exit 1; }
[ -n "$qemu" ] || fail "need qemu-aarch64 10 or later (Debian: apt-get install qemu-user)"
[ "$("$qemu" --version | grep -o 'version [0-9]*' | cut -d' ' -f2)" -ge 10 ] || fail "need qemu-aarch64 10 or later, this is $("$qemu" --version | head -n 1)"

grep -qsE '^enabled' "$binfmt"/*aarch64* 2>/dev/null && exit
[ -e "$binfmt/register" ] || mount -t binfmt_misc binfmt_misc "$binfmt"
# The magic: ELF, 64-bit, little-endian, program or shared object, machine 183; F: opened now.
printf '%s' ':qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'"$qemu:F" >"$binfmt/register"
