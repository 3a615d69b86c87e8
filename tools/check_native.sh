#!/bin/bash
# Checks the format of native/ with clang-format, and clang's warnings of native/bindings, thread safety included, with a
# syntax-only pass. `make native` compiles all else with clang, and ends at a warning.
# check_native.sh CLANG++ PYTHON
set -euo pipefail
clang=$1
python=$2

mapfile -t files < <(find native tests/native -name '*.cc' -o -name '*.h' | sort)
[ ${#files[@]} -gt 0 ] || { echo "no native file found" >&2; exit 1; }
"$(dirname "$python")/clang-format" --dry-run --Werror "${files[@]}"

mapfile -t system < <("$python" - <<'PY'
import nanobind, numpy, sysconfig
for path in (nanobind.include_dir(), numpy.get_include(), sysconfig.get_path("include")):
    print(f"-isystem{path}")
PY
)
flags=(-std=c++20 -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wthread-safety -Werror -DDI_FAULTS=1
       -Inative -isystem third_party "${system[@]}")
# What they all include is parsed once. bindings.cc has a macro in front of it.
common=$(mktemp -d)
trap 'rm -rf "$common"' EXIT
"$clang" "${flags[@]}" -x c++-header native/bindings/bindings.h -o "$common/bindings.pch"
printf '%s\n' "${files[@]}" | grep '^native/bindings/.*\.cc$' | grep -v '/bindings\.cc$' |
    xargs -P "$(nproc)" -n 1 "$clang" "${flags[@]}" -fsyntax-only -include-pch "$common/bindings.pch"
"$clang" "${flags[@]}" -fsyntax-only native/bindings/bindings.cc
echo "native: format and bindings clean"
