"""The error of `import di_store` where the native module cannot be loaded. Imports nothing that needs that module."""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
from pathlib import Path


def unusable(error: ImportError) -> ImportError:
    """Why the native module cannot be loaded here, and what helps, in a sentence."""
    return ImportError(_why(str(error)), name="di_store")


def _why(error: str) -> str:
    if sys.platform != "linux":
        return f"Di-store runs on Linux, and this is {sys.platform}: use a Linux machine, a container or WSL"
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    built = sorted(path.name.removeprefix("_core") for path in Path(__file__).parent.parent.glob("_core.*.so"))
    again = f"install it with this interpreter: {sys.executable} -m pip install --force-reinstall di-store"
    if platform.python_implementation() != "CPython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            f"Di-store needs CPython with its global lock, and {sys.executable} is another Python: use python3.14 in "
            "place of python3.14t, for example"
        )
    if "musl" in suffix:
        return "Di-store needs glibc as its C library, and this is musl: use Debian or Ubuntu, not Alpine"
    if not built:
        return f"Di-store's native module is missing: {again}"
    if suffix not in built:
        return f"Di-store was installed for an interpreter with {', '.join(built)}, and this one has {suffix}: {again}"
    if needed := re.search(r"version [`'](GLIBC(?:XX)?_[0-9.]+)", error):
        return (
            f"Di-store was built for {needed[1]} or later, and this system has {' '.join(platform.libc_ver())}: use a "
            "later distribution or image, or a wheel of PyPI, which needs glibc 2.28"
        )
    return f"Di-store's native module cannot be loaded ({error}): {again}"
