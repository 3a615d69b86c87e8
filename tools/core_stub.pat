# What nanobind.stubgen cannot find out about di_store._core: types of plain tuples, and classes made without nanobind.
^di_store\._core\.__prefix__$:
    \from typing import TypeAlias
    \from numpy.typing import NDArray
    \import numpy
    \from typing_extensions import Unpack
    Made: TypeAlias = tuple[NDArray[numpy.uint64], NDArray[numpy.int32], NDArray[numpy.int64]]
    """Items that a call completed in one table: keys, lanes, starts; what `Items` is made of."""

    Parts: TypeAlias = tuple[
        dict[str, Any],
        NDArray[numpy.uint64],
        NDArray[numpy.float64],
        NDArray[numpy.float64],
        NDArray[numpy.float32],
        NDArray[numpy.int32],
        NDArray[numpy.int64],
        NDArray[numpy.int64],
        NDArray[numpy.int64],
        int,
    ]
    """What `Batch` is made of, in the order of its constructor's arguments."""

    PeekedParts: TypeAlias = tuple[Unpack[Parts], NDArray[numpy.bool_]]

^di_store\._core\.Turn$:
    class Turn:
        def take(self, newcomer: bool, /) -> Hold | None: ...
        def hold(self) -> int: ...
        def pass_on(self, hold: int, /) -> None: ...
        def take_again(self, hold: int, /) -> bool: ...
        def sleep(self, hold: int, /) -> None: ...
        def wake(self, hold: int, /) -> None: ...
        def hang(self, bell: Any, /) -> bool: ...

^di_store\._core\.Hold$:
    class Hold:
        def __enter__(self) -> bool: ...
        def __exit__(self, *error: object) -> None: ...

^di_store\._core\.HAS_FAULTS$:
    HAS_FAULTS: bool
