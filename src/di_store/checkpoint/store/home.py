"""The node of a cluster that the durable tables of a folder belong to: a file beside the tables, copied with them."""

from __future__ import annotations

import msgspec

from di_store.checkpoint.store.manifest import damaged
from di_store.checkpoint.tree.folder import Folder

NAME = "node.json"


class Home(msgspec.Struct, frozen=True):
    """A node, and the directory entries that it keeps.

    Attributes:
        uuids: uuid of its store, and of earlier stores whose tables it took over, newest first.
        entries: directory entries of its tables, by key.
        makers: identities by table. They distinguish a table from others of the same name, wherever it is restored.
        pending: whether the directory does not yet say that these tables are in this store.
    """

    uuids: tuple[str, ...] = ()
    entries: dict[str, bytes] = msgspec.field(default_factory=dict, name="words")
    makers: dict[str, str] = msgspec.field(default_factory=dict)
    pending: bool = False


def read_home(folder: Folder) -> Home:
    """The home of the tables in a folder. It is empty if the tables never belonged to a node.

    Raises:
        CorruptData: the file is damaged.
    """
    text = folder.small(NAME)
    if text is None:
        return Home()
    try:
        return msgspec.json.decode(text, type=Home)
    except msgspec.MsgspecError:
        raise damaged(folder.at(NAME), "does not say which node these tables belong to") from None


def write_home(folder: Folder, home: Home) -> None:
    """Replace the file, if it differs."""
    text = msgspec.json.encode(home)
    if folder.small(NAME) != text:
        folder.write(NAME, text)
