#!/bin/bash
# Gets what is needed besides Python's packages, where this machine lacks it: as root by apt-get, else unpacked into
# .venv/programs, whose folder bin the Makefile puts on the PATH. This is the one list of it.
#   programs.sh build [PYTHON]   what builds need: fails with one line if some of it can't be had
#   programs.sh test [PYTHON]    that, and the programs that tests start: tests of those that can't be had are skipped
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=$1 python=${2:-python3} folder=$PWD/.venv/programs
PATH=$folder/bin:$PATH
mkdir -p .venv
exec 9>.venv/programs.lock
flock 9  # targets of one make

has_make() { make --version; }
has_python() { "$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))'; }
has_headers() {
    local version
    "$python" -c 'import ensurepip, sysconfig; open(sysconfig.get_path("include") + "/Python.h")' && return
    version=$("$python" -c 'import sysconfig; print(sysconfig.get_python_version())')
    [ -e "$folder/usr/include/python$version/Python.h" ]
}
has_compiler() {
    local version
    version=$("${CXX:-g++}" -dumpversion)
    [ -n "${CXX:-}" ] || [ "${version%%.*}" -ge 12 ]
}
has_openssl() { openssl version; }
has_etcd() { etcd --version; }
has_prometheus() { prometheus --version && promtool --version; }
has_chromium() { chromium --version; }

# Prints the packages of Debian and Ubuntu that have what is missing of these.
missing() {
    local name
    for name in "$@"; do
        (set -e; "has_$name") >/dev/null 2>&1 && continue
        case $name in
            python | headers) echo "python3 python3-dev python3-venv" ;;
            compiler) echo "g++" ;;
            etcd) echo "etcd-server" ;;
            *) echo "$name" ;;
        esac
    done | sort -u | xargs
}

# Without a network all of this ends in seconds.
export RES_OPTIONS="timeout:1 attempts:1" DEBIAN_FRONTEND=noninteractive
apt() {
    apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=2 \
        -o Acquire::https::Timeout=2 "$@"
}

# Installs packages, or unpacks them with all that they depend on. Prometheus is never installed: it would run as a
# service of the machine from then on.
get() (
    command -v apt-get || exit 1
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh"' EXIT
    cd "$fresh"
    if [ "$(id -u)" = 0 ] && [ "$*" != prometheus ]; then
        apt update
        apt download $PROBE && apt install -y --no-install-recommends "$@"
    else
        mkdir -p lists/partial
        unpack "$@" || unpack -o Dir::State::lists="$fresh/lists" -o Dir::Cache="$fresh" "$@"
    fi
)
PROBE=libgcc-s1  # small: where it can't be had there is no network, and nothing else is tried

# In an empty folder, by the machine's lists of packages, or with the options by lists of our own.
unpack() {
    local options=() names
    while [ "$1" = -o ]; do
        options+=("$1" "$2")
        shift 2
    done
    [ ${#options[@]} = 0 ] || apt "${options[@]}" update
    apt "${options[@]}" download $PROBE || return 1
    names=$(apt "${options[@]}" -s install --no-install-recommends "$@" | sed -n 's/^Inst \([^ ]*\).*/\1/p') || return 1
    # A compiler wants the C library beside its headers.
    # shellcheck disable=SC2086 # names are words
    apt "${options[@]}" download $names libc6 libstdc++6 || return 1
    find . -name '*.deb' -exec dpkg -x {} "$folder" \;
}

# Makes what was unpacked work in its folder.
arrange() {
    local path name
    for name in lib lib64; do
        [ -e "$folder/$name" ] || ln -s "usr/$name" "$folder/$name"
    done
    mkdir -p "$folder/bin" "$folder/libraries"
    for path in "$folder"/{usr/,}lib/*-linux-gnu/lib*.so*; do  # not those of the machine: its loader wants its own
        [ ! -e "$path" ] || [ -e "${path#"$folder"}" ] || ln -sf "$path" "$folder/libraries/"
    done
    for path in "$folder"/usr/include/*-linux-gnu; do  # Debian's Python.h looks for its pyconfig.h there
        for name in "$folder"/usr/include/python3.*; do
            [ ! -e "$name" ] || ln -sfn "$path" "$name/$(basename "$path")"
        done
    done
    for name in ar as ld nm objcopy ranlib strip etcd openssl prometheus promtool; do
        wrap "$name" "$name"
    done
    for path in "$folder"/usr/bin/{g++,gcc,*-linux-gnu-g++,*-linux-gnu-gcc}; do
        wrap "$(basename "$path")" "$(basename "$path")" "--sysroot=$folder"
    done
    wrap chromium ../lib/chromium/chromium  # Debian's usr/bin/chromium looks for it outside of the folder
    wrap c++ g++ "--sysroot=$folder"
    wrap cc gcc "--sysroot=$folder"
}

# wrap NAME PROGRAM [OPTION]: .venv/programs/bin/NAME starts the program, if it was unpacked.
wrap() {
    [ -e "$folder/usr/bin/$2" ] || return 0
    cat >"$folder/bin/$1" <<SCRIPT
#!/bin/sh
export PATH="$folder/usr/bin:\$PATH" LD_LIBRARY_PATH="$folder/libraries" OPENSSL_CONF="$folder/etc/ssl/openssl.cnf"
exec "$folder/usr/bin/$2" ${3:+"$3"} "\$@"
SCRIPT
    chmod +x "$folder/bin/$1"
}

# Gets what is missing of these; fails if some of it still is.
ensure() {
    local packages log
    packages=$(missing "$@")
    [ -n "$packages" ] || return 0
    echo "getting $packages"
    log=$(mktemp)
    # shellcheck disable=SC2086 # packages are words
    if get $packages >"$log" 2>&1 && [ -d "$folder/usr" ]; then arrange; fi
    rm -f "$log"
    [ -z "$(missing "$@")" ]
}

build=(make python headers compiler)
if ! ensure "${build[@]}"; then
    echo "to build Di-store, install Python 3.11 or later with headers, and g++ 12 or later: apt-get install" \
        "$(missing "${build[@]}")" >&2
    exit 1
fi
[ "$wanted" = build ] || for name in openssl etcd prometheus chromium; do
    ensure "$name" || echo "tests that need $name will be skipped; to run them: apt-get install $(missing "$name")" >&2
done
