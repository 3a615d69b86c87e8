"""The frameworks behind adapters, which are imported only by programs that use them."""

from __future__ import annotations

import importlib
import importlib.metadata
import re


def require(adapter: str, modules: str, versions: str, *, package: str = "") -> None:
    """Check that the framework of an adapter is installed, in a version that the adapter was made for.

    Args:
        adapter: name of the adapter, and of the extra that installs its framework.
        modules: names of the modules that the adapter imports, the framework's own first.
        versions: ``>=oldest,<first that is not supported``.
        package: the package that has the version; "": the framework's module has it.

    Raises:
        ImportError: a module is missing, or its version is not supported.
    """
    name = f"di_store.adapters.{adapter}"
    try:
        framework, *_ = map(importlib.import_module, modules.split())
    except ImportError as error:
        raise ImportError(f"{name} needs {modules.split()[0]} ({error}): pip install di-store[{adapter}]") from error
    installed = importlib.metadata.version(package) if package else framework.__version__
    oldest, newest = versions.split(",")
    if not _numbers(oldest) <= _numbers(installed) < _numbers(newest):
        what = package or framework.__name__
        raise ImportError(
            f"{name} works with {what} {versions}, and {installed} is installed: pip install di-store[{adapter}]"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
