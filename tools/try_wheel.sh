#!/bin/bash
# Installs a wheel in a bare environment of its own and runs the README's first program there, then the command:
# try_wheel.sh PYTHON WHEEL
set -euo pipefail
python=$(cd "$(dirname "$(command -v "$1")")" && pwd)/$(basename "$1")
wheel=$(realpath "$2")
readme=$(realpath "$(dirname "$0")/../README.md")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$python" -m venv "$folder/env"
pip() { "$folder/env/bin/python" -m pip install -q --disable-pip-version-check "$@"; }
pip "$wheel"
cd "$folder"  # so that the wheel's package is imported, not that of the sources
! env/bin/di-store status 2>said
grep -qF "pip install 'di-store[cli]'" said && [ "$(wc -l <said)" = 1 ] || { cat said >&2; exit 1; }
pip gymnasium
awk '/^```python/ { inside = 1; next } /^```/ && inside { exit } inside' "$readme" >program.py
timeout 300 env/bin/python program.py
pip "$wheel[cli]"
env/bin/di-store status >/dev/null
echo "$(env/bin/di-store --version) of $(basename "$wheel") runs the README's program"
