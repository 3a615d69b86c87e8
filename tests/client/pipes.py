"""The pipe of a remote writer, and a schema of steps, for tests of what happens to writers."""

from __future__ import annotations

import di_store
from di_store.client.pipe import WriterPipe
from di_store.client.writer import RemoteWriter

STEP = {"obs": di_store.Spec((), "i8"), "reward": di_store.Spec((), "f4")}
STEP |= {"terminated": di_store.Spec((), "?"), "truncated": di_store.Spec((), "?")}


def pipe_of(writer: di_store.Writer) -> WriterPipe:
    assert isinstance(writer._backend, RemoteWriter)
    return writer._backend._pipe
