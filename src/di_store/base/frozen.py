"""``@dataclass(frozen=True)`` that is made quickly."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen):
        """The decorator of `dataclasses`, with methods that all classes share.

        The original compiles six functions for each class, and so the import of the package would take 5 ms longer.
        """

        def decorate(cls):
            for name in _METHODS:
                setattr(cls, name, vars(_Frozen)[name])
            return dataclasses.dataclass(repr=False, eq=False)(cls)

        return decorate


class _Frozen:
    """The methods."""

    def __repr__(self: Any) -> str:
        values = (f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self))
        return f"{type(self).__qualname__}({', '.join(values)})"

    def __eq__(self: Any, other: Any) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return [getattr(self, each.name) for each in dataclasses.fields(self)] == [
            getattr(other, each.name) for each in dataclasses.fields(self)
        ]

    def __hash__(self: Any) -> int:
        return hash(tuple(getattr(self, each.name) for each in dataclasses.fields(self) if each.hash is not False))

    def __setattr__(self: Any, name: str, value: object) -> None:
        if name in vars(self) or name not in self.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


_METHODS = ("__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__")
