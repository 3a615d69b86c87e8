#!/bin/bash
# Installs a wheel in a bare environment of its own and runs the README's first program there: try_wheel.sh PYTHON WHEEL
set -euo pipefail
python=$1
wheel=$(realpath "$2")
readme=$(realpath "$(dirname "$0")/../README.md")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$python" -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q --disable-pip-version-check "$wheel" gymnasium
awk '/^```python/ { inside = 1; next } /^```/ && inside { exit } inside' "$readme" >"$folder/program.py"
cd "$folder"  # so that the wheel's package is imported, not that of the sources
timeout 300 env/bin/python program.py
echo "$(env/bin/di-store --version) of $(basename "$wheel") runs the README's program"
