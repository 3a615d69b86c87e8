"""The node of a cluster that the durable tables of a folder belong to: a file beside the tables, copied with them."""

from __future__ import annotations

import msgspec

from di_store.checkpoint.folder import Folder
from di_store.snapshot.form import damaged

NAME = "node.json"


class Home(msgspec.Struct, frozen=True):
    """A node, and what it keeps of the directory.

    Attributes:
        uuids: of its store, and of those before whose tables it took over, newest first.
        words: of its tables in the directory, by key.
        makers: by table, what tells it from others of its name, wherever it is restored.
        pending: the directory does not say yet that these tables are in this store.
    """

    uuids: tuple[str, ...] = ()
    words: dict[str, bytes] = msgspec.field(default_factory=dict)
    makers: dict[str, str] = msgspec.field(default_factory=dict)
    pending: bool = False


def read_home(folder: Folder) -> Home:
    """Of the tables in a folder; an empty one: they were never those of a node.

    Raises:
        CorruptData: the file is damaged.
    """
    text = folder.small(NAME)
    if text is None:
        return Home()
    try:
        return msgspec.json.decode(text, type=Home)
    except msgspec.MsgspecError:
        raise damaged(folder.at(NAME), "does not say of which node these tables are") from None


def write_home(folder: Folder, home: Home) -> None:
    """Replace it, if it differs."""
    text = msgspec.json.encode(home)
    if folder.small(NAME) != text:
        folder.write(NAME, text)
