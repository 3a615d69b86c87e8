"""The cluster of a served store. It is noted in the store, where local processes read the addresses of other nodes."""

from __future__ import annotations

import msgspec

from di_store.client.address import Address
from di_store.objects.weights import Weights
from di_store.session import Session

NAME = "di-store/cluster"
"""The name of the weights as which it lies in the store."""
KINDS = ("ray", "etcd")
"""Kinds of directories that ``--join`` can name."""


class Membership(msgspec.Struct, frozen=True):
    """A node's place in its cluster.

    Attributes:
        kind: kind of the directory: "static", or one of `KINDS`.
        peers: the place of the directory: the addresses of all nodes, or the text that the kind needs.
        address: address of this node's own agent.
        tls: path of the certificate authority of the agents; None: no TLS, or the system's authorities.
        allow_pickle: whether the nodes load values that others pickled.
        engine: whether the agent was started with an engine; then it copies large objects for the processes of its
            machine.
    """

    kind: str
    peers: tuple[str, ...]
    address: str
    tls: str | bool | None = None
    allow_pickle: bool = False
    engine: bool = False

    @property
    def cluster(self) -> str:
        """The cluster's name, as given to `di-store serve`."""
        where = ",".join(Address.parse(each).node if self.kind == "static" else each for each in self.peers)
        return f"--peers {where}" if self.kind == "static" else f"--join {self.kind}://{where}"

    def is_of(self, other: Membership) -> bool:
        """Whether both are in one cluster."""
        return (self.kind, self.peers) == (other.kind, other.peers)


def membership_of(session: Session) -> Membership | None:
    """The membership that is noted in the store; None: the store is in no cluster."""
    found = Weights(session).latest(NAME, None, None, 0)
    if found is None or not found.value:
        return None
    return msgspec.msgpack.decode(found.value, type=Membership)
