"""What a module takes from libraries without naming a version: symbols.py FILE.so. Exit status 1 if there is something.

Each symbol of the C library has the version that brought it, so a linker that knows glibc 2.28 gives none to a later
symbol. It lets that pass, as it does those of Python, and the module then cannot be loaded where the symbol is missing.
Needs readelf, of binutils.
"""

import re
import subprocess
import sys
from pathlib import Path

PYTHON = ("Py", "_Py")


def unversioned(module: Path) -> list[str]:
    """Names that the module cannot do without, those of Python apart."""
    done = subprocess.run(["readelf", "--dyn-syms", "-W", module], capture_output=True, text=True, check=True)
    wanted = re.findall(r" GLOBAL +DEFAULT +UND (\S+)$", done.stdout, re.M)  # with a version: "name@GLIBC_2.17 (3)"
    return sorted(name for name in wanted if "@" not in name and not name.startswith(PYTHON))


if __name__ == "__main__":
    sys.exit("\n".join(unversioned(Path(sys.argv[1]))) or 0)
