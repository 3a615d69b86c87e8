"""Values of calls and answers, in the form of the codec of objects. Decoding runs no code of the other side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from di_store.base import errors, warned
from di_store.base.dtypes import Array
from di_store.base.errors import CapacityError, CorruptData, StoreError, Timeout, shown
from di_store.objects import codec
from di_store.protocol.connection import MAX_CALL_BYTES, Message
from di_store.protocol.frame import MAX_META_BYTES, Buffer, view
from di_store.protocol.handshake import decoded

_ALIGNMENT = 64
_ZEROS = bytes(_ALIGNMENT)
_MOST_WARNINGS = 8
_JOINED_BYTES = 4 << 10  # up to here a copy takes less time than one more buffer


class Call(msgspec.Struct, array_like=True):
    """One call.

    Attributes:
        method: name in the agent's list of methods.
        target: name of the table; "": the store.
        once: whether a repetition of this request must not run again.
        plain: the arguments, if all are numbers and texts.
        header_bytes: bytes of the arguments' header, at the front of the body; 0: the arguments are in `plain`.
        table: identity of the table among tables of the name `target`; "": the present table of this name.
        may_repeat: if `once`: all requests that must not run again and that the client may still repeat.
        dropped: numbers of mixtures, draws and other handles that the client has dropped.
    """

    method: str
    target: str
    once: bool
    plain: dict[str, Any] | None = None
    header_bytes: int = 0
    table: str = ""
    may_repeat: list[int] = []
    dropped: list[int] = []

    def arguments(self, body: Array) -> Any:
        """The arguments by name, from either place."""
        return self.plain or {} if not self.header_bytes else unpacked(self.header_bytes, body)


class Answer(msgspec.Struct, array_like=True):
    """The result of a call.

    Attributes:
        header_bytes: bytes of the value's header, at the front of the body; 0: the value is in `plain`, or the body is
            raw.
        warnings: texts of the warnings of the call.
        plain: a number or text.
    """

    header_bytes: int
    warnings: list[str]
    plain: Any = None


class Failure(msgspec.Struct, array_like=True):
    """An exception: the name of its class, its text, and further attributes of a store's error."""

    kind: str
    text: str
    message: str
    remedy: str
    reason: str
    culprit: str | None
    passed: bool
    warnings: list[str]


class Waiting(msgspec.Struct, array_like=True):
    """The reason why a call waits."""

    reason: str


def packed(value: Any) -> tuple[int, list[Buffer]]:
    """A value as the bytes of its header, and the body that begins with the header; TypeError if it needs a pickle."""
    return laid_out(codec.encode(value, pickles=False))


def laid_out(encoded: codec.Encoded) -> tuple[int, list[Buffer]]:
    """`packed` of an encoded value."""
    size = len(encoded.header)
    buffers: list[Buffer] = [encoded.header]
    if encoded.payload_bytes:
        buffers += [_ZEROS[: -size % _ALIGNMENT], *payload_of(encoded)]
    return size, buffers


def payload_of(encoded: codec.Encoded) -> list[Buffer]:
    """The payload as consecutive buffers, including the gaps between its arrays."""
    buffers: list[Buffer] = []
    end = 0
    for buffer, offset, length in zip(encoded.buffers, encoded.offsets, encoded.sizes, strict=True):
        if length:
            buffers += [_ZEROS[: offset - end], buffer]
            end = offset + length
    return [*buffers, bytes(encoded.payload_bytes - end)]


_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


def call_of(
    method: str,
    target: str,
    arguments: dict[str, Any] | None,
    *,
    once: bool,
    table: str = "",
    may_repeat: Sequence[int] = (),
    dropped: Sequence[int] = (),
) -> tuple[bytes, list[Buffer]]:
    """Meta and body of a `CALL`; `arguments` by name, the others as in `Call`."""
    more = table, list(may_repeat), list(dropped)
    if not arguments or _PLAIN.issuperset(map(type, arguments.values())):
        try:
            return msgspec.msgpack.encode(Call(method, target, once, arguments, 0, *more)), []
        except (OverflowError, UnicodeEncodeError):
            pass  # a number or text that only the codec takes
    try:
        size, body = packed(arguments)
    except TypeError:
        raise _refused(arguments) from None
    total = sum(len(view(each)) for each in body)
    if total > MAX_CALL_BYTES:
        raise CapacityError(
            f"{method}: a call of {total} bytes",
            remedy=f"a call takes at most {MAX_CALL_BYTES} bytes (1 GiB): split it",
        )
    return msgspec.msgpack.encode(Call(method, target, once, None, size, *more)), body


def _refused(arguments: dict[str, Any] | None) -> TypeError:
    for name, value in (arguments or {}).items():
        try:
            packed(value)
        except TypeError:
            return TypeError(f"{name}={shown(value)}: a {type(value).__name__} cannot be sent to another machine")
    return TypeError("these arguments cannot be sent to another machine")


def answer_of(value: Any, told: list[str]) -> tuple[bytes, list[Buffer]]:
    """Meta and body of an `ANSWER`."""
    if type(value) in _PLAIN:
        try:
            return msgspec.msgpack.encode(Answer(0, told[:_MOST_WARNINGS], value)), []
        except (OverflowError, UnicodeEncodeError):
            pass
    size, body = packed(value)
    return answer_meta(size, told), body


def unpacked(header_bytes: int, body: Array, copy: bool | None = None) -> Any:
    """The value that `packed` packed. Refuses values that would run code.

    Raises: CorruptData, AccessDenied: the data are no such value.
    """
    if not 0 < header_bytes <= len(body):
        raise CorruptData(f"received a value whose header takes {header_bytes} of {len(body)} bytes", remedy="")
    start = min(-(-header_bytes // _ALIGNMENT) * _ALIGNMENT, len(body))
    return codec.decode(body[:header_bytes].tobytes(), body[start:], copy, foreign=True)


# --- errors -----------------------------------------------------------------------------------------------------------

_ERRORS: dict[str, type[Exception]] = {
    name: getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)
} | {
    each.__name__: each
    for each in (errors.DrawsLost, errors.OldEpoch, ValueError, TypeError, IndexError, KeyError, MemoryError, OSError)
}


def failure_of(error: BaseException, told: list[str]) -> bytes:
    """An exception as meta of a frame; `told`: texts of earlier warnings of the call."""
    kind = next((each.__name__ for each in type(error).__mro__ if each.__name__ in _ERRORS), "StoreError")
    store = isinstance(error, StoreError)
    found = Failure(
        kind=kind,
        text=_cut(str(error)),
        message=_cut(error.message if isinstance(error, StoreError) else str(error)),
        remedy=_cut(error.remedy) if isinstance(error, StoreError) else "",
        reason=_cut(error.reason) if isinstance(error, Timeout) else "",
        culprit=error.culprit if isinstance(error, Timeout) else None,
        passed=isinstance(error, Timeout) and error.passed,
        warnings=texts(told),
    )
    if not store and kind == "StoreError":
        found.text = found.message = _cut(f"{type(error).__name__} on the node: {error}")
    return msgspec.msgpack.encode(found)


def error_of(meta: bytes, node: str) -> Exception:
    """The exception of an `ERROR` frame; errors of the store name the node that raised it."""
    error, told = failed(meta, node)
    warn(told)
    return error


def failed(meta: bytes, node: str) -> tuple[Exception, list[str]]:
    """As `error_of`, together with the call's warnings, which are not shown yet."""
    found = decoded(Failure, meta)
    cls = _ERRORS.get(found.kind, StoreError)
    if not issubclass(cls, StoreError):
        return cls(found.text), found.warnings
    text = f"{found.text} [node {node}]"
    error = cls.__new__(cls, text)
    error.args = (text,)
    error.message, error.remedy = found.message, found.remedy
    if isinstance(error, Timeout):
        error.reason, error.passed = found.reason, found.passed
        error.culprit = found.culprit and f"{found.culprit} on node {node}"
    return error, found.warnings


def texts(told: list[str]) -> list[str]:
    """Warnings in the form in which they are sent: few, and short."""
    return [_cut(each) for each in told[:_MOST_WARNINGS]]


def warn(told: list[str]) -> None:
    """Show the warnings of a call on another node, at the line of the user's program."""
    for text in told[:_MOST_WARNINGS]:
        warned.warn(text)


def _cut(text: str) -> str:
    """A text made fit for meta, whatever characters it has."""
    return text[: MAX_META_BYTES // 64].encode("utf-8", "backslashreplace").decode()


# --- batches and other sets of arrays ---------------------------------------------------------------------------------


def value_of(message: Message, copy: bool | None = True) -> Any:
    """The value of an `ANSWER`."""
    value, told = answered(message, copy)
    if told:
        warn(told)
    return value


def answered(message: Message, copy: bool | None = True) -> tuple[Any, list[str]]:
    """As `value_of`, together with the call's warnings, which are not shown yet."""
    answer = decoded(Answer, message.meta)
    value = unpacked(answer.header_bytes, message.body, copy) if answer.header_bytes else answer.plain
    return value, answer.warnings


def answer_meta(header_bytes: int, told: list[str]) -> bytes:
    """Meta of an `ANSWER`."""
    return msgspec.msgpack.encode(Answer(header_bytes, texts(told)))


def padded(arrays: list[Array], alignment: int = _ALIGNMENT) -> list[Buffer]:
    """The arrays as the buffers of a body, each at a multiple of `alignment`.

    Small arrays are copied into one buffer.
    """
    buffers: list[Buffer] = []
    small: list[bytes] = []
    for each in arrays:
        if not each.nbytes:
            continue
        if each.nbytes <= _JOINED_BYTES or not each.ndim:
            small.append(each.tobytes())
        else:
            if joined := b"".join(small):
                buffers.append(joined)
            small.clear()
            buffers.append(np.ascontiguousarray(each).reshape(-1).view(np.uint8))
        small.append(_ZEROS[: -each.nbytes % alignment])
    if last := b"".join(small):
        buffers.append(last)
    return buffers
