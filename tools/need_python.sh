#!/bin/sh
# Checks that the given Python can make environments and build modules. If not, installs Debian's packages (as root).
set -eu
python=${1:-python3}

usable() {
    "$python" - <<'PY' 2>/dev/null
import ensurepip, pathlib, sys, sysconfig, venv
sys.exit(not (sys.version_info >= (3, 11) and pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()))
PY
}

usable && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-dev python3-venv >/dev/null
fi
usable && exit 0
echo "$python must be Python 3.11 or later with venv and headers (Debian: apt-get install python3-dev python3-venv)" >&2
exit 1
