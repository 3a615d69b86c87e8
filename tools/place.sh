#!/bin/sh
# Puts the built module next to the sources: place.sh BUILD PACKAGE. By rename, so that processes that have the old one
# mapped keep it; not at all when nothing changed.
set -eu
for module in "$1"/_core*.so; do
    target=$2/$(basename "$module")
    cmp -s "$module" "$target" && continue
    cp "$module" "$target.new"
    mv -f "$target.new" "$target"
done
