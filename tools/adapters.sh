#!/usr/bin/env bash
# Runs the tests of each adapter with the versions in requirements/<name>.txt: adapters.sh PYTHON [NAME...]
# Each adapter gets an environment of its own, build/adapters/<name>, made anew only if the versions change, and one
# line of output. It takes this tree's sources and native module, so PYTHON must be the one that the module is built for.
set -euo pipefail
shopt -s nullglob
python=$1
shift
folder=build/adapters
mkdir -p "$folder"

names=("$@")
if [ $# = 0 ]; then
    for file in requirements/*.txt; do names+=("$(basename "$file" .txt)"); done
fi

# constraints.txt without the packages that the file $1 pins.
constraints() {
    awk '{ name = tolower($0); sub(/[^a-z0-9._-].*/, "", name); gsub(/[._-]+/, "-", name) }
         /^[[:space:]]*(#|$)/ { next }
         FNR == NR { pinned[name]; next }
         !(name in pinned)' "$1" constraints.txt
}

# The environment of the adapter $1; its marker is the text of all requirements.
environment() {
    local pins=requirements/$1.txt made=$folder/$1
    constraints "$pins" > "$made.constraints"
    "$python" tools/requires.py runtime > "$made.runtime"
    local wanted
    wanted=$("$python" -c 'import sys; print(sys.version)' && cat "$pins" "$made.constraints" "$made.runtime")
    if [ "$(cat "$made/requirements" 2>/dev/null)" != "$wanted" ]; then
        "$python" -m venv --clear "$made"
        local pip=("$made/bin/python" -m pip install -q --disable-pip-version-check -c "$made.constraints")
        local complete=()  # a file whose comment asks for --no-deps names all that is needed, at odds with each other
        if grep -q '^#.*--no-deps' "$pins"; then complete=(--no-deps); fi
        "${pip[@]}" "${complete[@]}" -r "$pins"
        "${pip[@]}" -r "$made.runtime" pytest pytest-timeout hypothesis
        printf '%s\n' "$wanted" > "$made/requirements"
    fi
    tools/plain_path.sh "$(realpath -s "$made/bin")" "$PWD/src"
}

failed=0
for name in "${names[@]}"; do
    log=$folder/$name.log
    if [ ! -f "requirements/$name.txt" ]; then
        echo "requirements/$name.txt is missing; it holds the versions that the adapter is tested with" >&2
        exit 2
    fi
    # In a shell of its own: in a function that `if` calls, errors would not end it.
    status=0
    (environment "$name") > "$log" 2>&1 & wait $! || status=$?
    if [ $status != 0 ]; then
        failed=1
        printf '%-16s failed: no environment, see %s\n' "$name" "$log"
        continue
    fi
    DI_STORE_TEST_SCALE=${DI_STORE_TEST_SCALE:-small} \
        "$folder/$name/bin/python" -m pytest -q tests/adapters/test_"$name"{,_*}.py > "$log" 2>&1 || status=$?
    result=$(tail -n 1 "$log" | tr -d '=')
    if [ $status = 0 ]; then
        printf '%-16s passed: %s\n' "$name" "$result"
    else
        failed=1
        printf '%-16s failed: %s, see %s\n' "$name" "$result" "$log"
    fi
done
exit $failed
