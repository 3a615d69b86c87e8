#!/bin/bash
# Runs a command of this tree (its last commit) in a Debian or Ubuntu as delivered, as a new user. Wants root and debootstrap.
#   tools/clean_root.sh make test ARGS="tests/server/test_tls.py tests/cluster/test_etcd.py"
# Environment: SUITE, MIRROR and ARCH, as debootstrap takes them (another ARCH than this machine's runs by qemu-user:
# tools/emulate_aarch64.sh); PACKAGES, which are there before, with commas; WHO=root: not as a user; CLEAN: a folder for
# the system, kept for a next time; SHOWN: folders of this machine that are shown there. Variables PIP_... are passed on,
# as are those named in PASSED.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=${SUITE:-trixie} who=${WHO:-tester}
root=${CLEAN:-$(mktemp -d /tmp/clean-XXXXXX)}
[[ ${MIRROR:-} != *ubuntu* ]] || parts=main,universe  # what Ubuntu's images have
if [ ! -e "$root/etc/os-release" ]; then
    debootstrap --variant=minbase ${ARCH:+"--arch=$ARCH"} ${parts:+"--components=$parts"} --include="${PACKAGES-make,python3}" "$suite" "$root" ${MIRROR:+"$MIRROR"} >&2
fi
chroot "$root" id "$who" >/dev/null 2>&1 || chroot "$root" useradd -m "$who"

home=$(chroot "$root" sh -c "echo ~$who")
rm -rf "${root:?}$home/di-store"
mkdir -p "$root$home/di-store"
git archive HEAD | tar -x -C "$root$home/di-store"
chroot "$root" chown -R "$who" "$home/di-store"

mapfile -t passed < <(env | grep -E "^(PIP_[A-Z_]+${PASSED:+|${PASSED// /|}})=")
export root
status=0
unshare --mount --pid --fork --kill-child bash -euc '
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    for folder in ${SHOWN:-}; do
        mkdir -p "$root$folder"
        mount --bind "$folder" "$root$folder"
    done
    exec "$@"' clean \
    chroot --userspec="$who" "$root" env -i HOME="$home" USER="$who" PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
    LANG=C.UTF-8 "${passed[@]}" sh -c 'cd ~/di-store && exec "$@"' sh "$@" </dev/null || status=$?
[ -n "${CLEAN:-}" ] || rm -rf "$root"
exit $status
