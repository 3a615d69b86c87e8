#!/bin/bash
# Builds a source distribution as a machine without a network does, and tries the wheel: try_sdist.sh PYTHON SDIST
# The packages that the build and the package require are there before, in a folder, as a mirror has them.
set -euo pipefail
python=$(cd "$(dirname "$(command -v "$1")")" && pwd)/$(basename "$1")
sdist=$(realpath "$2")
tools=$(realpath "$(dirname "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$python" -m venv "$folder/env"
pip=("$folder/env/bin/python" -m pip --disable-pip-version-check)
python3 "$tools/requires.py" build >"$folder/requires.txt"
"${pip[@]}" download -q -d "$folder/mirror" cmake ninja -r "$folder/requires.txt"
cd "$folder"
alone=(unshare --net)
[ "$(id -u)" = 0 ] || alone+=(--map-root-user)
begin=$SECONDS
"${alone[@]}" "${pip[@]}" wheel -q --no-deps --no-index --find-links mirror -w . "$sdist"
echo "$(basename "$sdist") builds without a network in $((SECONDS - begin)) s"
"$tools/try_wheel.sh" "$python" di_store-*.whl
