"""Refs: the handles of objects, and the ids that they name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from di_store.base import config
from di_store.base.config import as_float
from di_store.base.errors import shown

_ID_BYTES = 20
_FOREVER_SECONDS = 100 * 365 * 86_400.0
"""A ttl above 100 years counts as none. The nanoseconds of any shorter one fit 64 bits."""


class Ref:
    """The handle of an object: its id. Refs hash, compare and pickle by id. Dropping a ref frees nothing."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        if type(raw) is not bytes or len(raw) != _ID_BYTES:
            raise TypeError(f"Ref({shown(raw)}): store.put() makes refs, Ref.parse() reads their text")
        self.raw = raw

    @property
    def id(self) -> str:
        """40 hex characters."""
        return self.raw.hex()

    @classmethod
    def parse(cls, text: str) -> Ref:
        """The ref with this id.

        Raises:
            ValueError: not 40 hex characters. TypeError: not text.
        """
        return cls(parse_id(text))

    def __bytes__(self) -> bytes:
        return self.raw

    def __str__(self) -> str:
        return self.raw.hex()

    def __repr__(self) -> str:
        return f"Ref({self.raw.hex()})"

    def __hash__(self) -> int:
        return hash(self.raw)

    def __eq__(self, other: object) -> bool:
        return self.raw == other.raw if isinstance(other, Ref) else NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        return Ref, (self.raw,)


new_ref: Callable[[type[Ref]], Ref] = object.__new__
"""Makes a ref whose `raw` the caller sets. Skips the checks of `Ref`, for speed."""


def parse_id(text: Any) -> bytes:
    """The 20 bytes of an id.

    Raises:
        ValueError: not 40 hex characters. TypeError: not text.
    """
    if not isinstance(text, str):
        raise TypeError(f"id={shown(text)} is a {type(text).__name__}: give 40 hex characters")
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != _ID_BYTES or len(text) != 2 * _ID_BYTES:
        raise ValueError(f"id={shown(text)}: an id is 40 hex characters")
    return raw


def id_of(ref: Any) -> bytes:
    """The id that a ref, or its text, names; TypeError for anything else."""
    if isinstance(ref, Ref):
        return ref.raw
    if isinstance(ref, str):
        return parse_id(ref)
    many = "; several at once go to get_many()" if isinstance(ref, (list, tuple, set)) else ""
    raise TypeError(f"{shown(ref)} is a {type(ref).__name__}: give a Ref, as store.put() returns it{many}")


def ids_of(refs: Any) -> list[bytes]:
    """The ids of one ref or of several."""
    if type(refs) is not list:
        refs = [refs] if isinstance(refs, (Ref, str)) else listed(refs)
    return [ref.raw if type(ref) is Ref else id_of(ref) for ref in refs]


def joined_ids(raws: list[bytes]) -> bytes:
    """Many ids as one text of bytes, as calls carry them."""
    return b"".join(raws)


def split_ids(joined: Any) -> list[bytes]:
    """The ids that `joined_ids` joined.

    Raises:
        TypeError: these are no whole ids.
    """
    if not isinstance(joined, bytes) or len(joined) % _ID_BYTES:
        raise TypeError(f"ids={shown(joined)}: give ids of {_ID_BYTES} bytes each, one after the other")
    return [joined[at : at + _ID_BYTES] for at in range(0, len(joined), _ID_BYTES)]


def listed(refs: Any) -> list[Any]:
    """Several refs as a list.

    Raises:
        TypeError: a single ref as text, or not iterable.
    """
    return config.listed("refs", refs, "a list of refs")


def checked_new(id: Any, ttl: Any) -> tuple[bytes | None, float]:
    """``id=`` of a new object, None for a new id, and the seconds of ``ttl=``."""
    return None if id is None else parse_id(id), check_ttl(ttl)


def check_ttl(ttl: Any) -> float:
    """Seconds until the object is deleted; 0 for never."""
    if ttl is None:
        return 0.0
    seconds = as_float("ttl", ttl, "seconds, or None for an object that stays")
    if not seconds > 0:
        raise ValueError(f"ttl={shown(ttl)}: give seconds > 0, or None for an object that stays")
    return 0.0 if seconds > _FOREVER_SECONDS else seconds


def checked_ids(ids: Any, n: int) -> list[bytes | None]:
    """``ids=`` of n new objects; None: each gets a new id.

    Raises:
        ValueError, TypeError: there are not n different ids.
    """
    if ids is None:
        return [None] * n
    raws = [parse_id(each) for each in config.listed("ids", ids, "a list of ids, 40 hex characters each")]
    if len(raws) != n:
        raise ValueError(f"put_many: {len(raws)} ids for {n} values")
    if twice := [(raw, times) for raw, times in Counter(raws).items() if times > 1]:
        raise ValueError(f"put_many: id {twice[0][0].hex()} is given {twice[0][1]} times")
    return list(raws)


def waited_for(refs: Any, num_returns: Any) -> tuple[list[Ref], int]:
    """The refs of `Store.wait`, and the number that must exist.

    Raises: ValueError, TypeError: there are too few refs, or a ref is given twice.
    """
    pending = [ref if isinstance(ref, Ref) else Ref(id_of(ref)) for ref in listed(refs)]
    wanted = config.count("num_returns", num_returns, minimum=1)
    if wanted > len(pending):
        raise ValueError(f"num_returns={wanted}, but there are {len(pending)} refs to wait for")
    if len(set(pending)) != len(pending):
        raise ValueError("wait() was given a ref twice")
    return pending, wanted
