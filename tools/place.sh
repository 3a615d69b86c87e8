#!/bin/sh
# Puts the built module next to the sources: place.sh BUILD PACKAGE. Replaces it by rename, so that processes that have
# the old file mapped can go on. Does nothing if the module has not changed.
set -eu
for module in "$1"/_core*.so; do
    target=$2/$(basename "$module")
    cmp -s "$module" "$target" && continue
    cp "$module" "$target.new"
    mv -f "$target.new" "$target"
done
