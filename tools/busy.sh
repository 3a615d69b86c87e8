#!/bin/bash
# Runs a command several times beside eight busy loops: busy.sh RUNS COMMAND... Ends with the first failure.
set -euo pipefail
runs=$1
shift
loops=()
trap 'kill "${loops[@]}" 2>/dev/null' EXIT
for _ in {1..8}; do
    sh -c 'while kill -0 "$PPID"; do i=100000; while [ $((i -= 1)) -gt 0 ]; do :; done; done' 2>/dev/null &  # ends with its parent
    loops+=($!)
done
for ((run = 1; run <= runs; run++)); do
    echo "== run $run of $runs beside eight busy loops"
    begin=$SECONDS
    "$@"
    echo "== run $run took $((SECONDS - begin)) s"
done
