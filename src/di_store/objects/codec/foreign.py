"""Classes of values that another machine sent: found without importing, used without running any code that they name.

The bytes may name any class that this process has loaded, and give its fields any values. So a class is accepted only
if making, keeping and dropping an instance runs none of its code: a named tuple or dataclass without a metaclass of its
own, without ``__del__``, and without descriptors that would be called in place of a plain assignment.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import sys
from collections.abc import Iterable
from types import MemberDescriptorType, ModuleType
from typing import Any

from di_store.base.errors import AccessDenied, CorruptData, shown
from di_store.objects.codec.form import parts_of_path

_REMEDY = (
    "if all machines are trusted: `di-store serve --allow-pickle` on the node that serves it, and "
    "connect(allow_pickle=True) here"
)
_LONGEST = 120
_ABSENT = object()


def pickle_refused() -> AccessDenied:
    """The error for a pickle in a foreign value."""
    return AccessDenied(
        "the object came from another machine and holds a pickle, which could run any code", remedy=_REMEDY
    )


def foreign_class(path: str) -> type:
    """The class of that path, if its module is loaded. Imports nothing, and runs no code of module or class.

    Raises:
        AccessDenied: its module is not loaded, or using the class would run its code.
        TypeError: the module has no such class.
        CorruptData: the path does not name a class.
    """
    try:
        name, qualname = parts_of_path(path)
    except ValueError:
        raise CorruptData(f"the object names a class {shown(path)}") from None
    module = sys.modules.get(name)
    if not issubclass(type(module), ModuleType):  # not isinstance, which asks an object for its __class__
        raise AccessDenied(
            f"the object came from another machine and holds a {_dotted(path)}, whose module is not loaded here",
            remedy=f"import {_dotted(name)} before the object is read, or, {_REMEDY}",
        )
    space: Any = object.__getattribute__(module, "__dict__")  # a lazy module would load itself
    found: Any = _ABSENT
    for part in qualname.split("."):
        found = space.get(part, _ABSENT)
        if found is _ABSENT:
            raise TypeError(f"the object holds a {_dotted(path)}, and {_dotted(name)} has no such class here")
        if not issubclass(type(found), type):
            raise CorruptData(f"the object names {shown(path)}, which is not a class")
        if type(found) not in (type, abc.ABCMeta):
            raise _refused(path, "its metaclass")
        space = vars(found)
    if _static(found, "__del__") is not _ABSENT:
        raise _refused(path, "its __del__")
    return found  # type: ignore[no-any-return]


def named_fields(cls: type) -> tuple[str, ...] | None:
    """Names of a named tuple's fields; None for other classes."""
    fields = _static(cls, "_fields")
    sound = issubclass(cls, tuple) and type(fields) is tuple and all(type(name) is str for name in fields)
    return fields if sound else None


@functools.lru_cache(maxsize=1024)
def dataclass_fields(cls: type) -> frozenset[str] | None:
    """Names of a dataclass's fields; None for other classes.

    Raises:
        AccessDenied: a descriptor sets a field, and its code would run.
    """
    fields = _static(cls, "__dataclass_fields__")
    if type(fields) is not dict or _static(cls, "__new__") is not object.__new__:
        return None
    if not all(type(field) is dataclasses.Field for field in fields.values()):
        return None
    names = frozenset(field.name for field in dataclasses.fields(cls))
    for name in names:
        there = _static(cls, name)
        plain = there is _ABSENT or type(there) is MemberDescriptorType
        if not plain and _static(type(there), "__set__") is not _ABSENT:
            raise _refused(f"{cls.__module__}.{cls.__qualname__}", f"the descriptor of its field {name!r}")
    return names


def check_keys(keys: Iterable[Any], classes: set[type]) -> None:
    """Check that no key is an instance of `classes`, alone or in tuples. A dict would call the hash of such a key.

    Raises:
        AccessDenied: a key is such an instance.
    """
    rest = list(keys)
    while rest:
        key = rest.pop()
        if type(key) in classes and any(
            _static(type(key), name) not in (getattr(tuple, name), getattr(object, name))
            for name in ("__hash__", "__eq__")
        ):
            raise _refused(f"{type(key).__module__}.{type(key).__qualname__}", "its __hash__ or __eq__")
        if issubclass(type(key), tuple):
            rest.extend(tuple.__iter__(key))


def _dotted(path: str) -> str:
    """A path for an error text: one line, of at most some 120 characters."""
    text = path.replace(":", ".")
    return text if text.isprintable() and len(text) <= _LONGEST else shown(text)


def _refused(name: str, what: str) -> AccessDenied:
    return AccessDenied(
        f"the object came from another machine and holds a {_dotted(name)}, and {what} could run code here",
        remedy=_REMEDY,
    )


def _static(cls: type, name: str) -> Any:
    """An attribute of a class, looked up without calling descriptors; `_ABSENT`: no such attribute."""
    for base in type.__dict__["__mro__"].__get__(cls):
        space = type.__dict__["__dict__"].__get__(base)
        if name in space:
            return space[name]
    return _ABSENT
