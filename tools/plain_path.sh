#!/usr/bin/env bash
# After an editable install: replaces the import hook by a path file, since the hook would hide a build on PYTHONPATH.
set -eu
bin=$1
source=$2
site=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
rm -f "$site"/_editable_*di_store.*
echo "$source" > "$site/di-store.pth"
cd / # away from the sources
"$bin/python" -c 'import importlib.util as u, sys; assert u.find_spec("di_store").origin.startswith(sys.argv[1])' "$source"
