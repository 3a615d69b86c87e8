"""What a served store says of its cluster: processes on its machine learn from it where the other nodes are."""

from __future__ import annotations

import msgspec

from di_store.objects.weights import Weights
from di_store.remote.address import Address
from di_store.session import Session

NAME = "di-store/cluster"
"""The weights under which it lies in the store."""
KINDS = ("ray", "etcd")
"""Of directories that ``--join`` can name."""


class Membership(msgspec.Struct, frozen=True):
    """A node's place in its cluster.

    Attributes:
        kind: of the directory: "static", or one of `KINDS`.
        peers: where the directory is: the addresses of all nodes, or what the kind makes of it.
        address: of this node's own agent.
        tls: path of the authority that signed for the agents; None: no TLS, or the system's.
        allow_pickle: whether the nodes load what others pickled.
        engine: whether the agent was started with an engine: it copies large objects for the processes of its machine.
    """

    kind: str
    peers: tuple[str, ...]
    address: str
    tls: str | bool | None = None
    allow_pickle: bool = False
    engine: bool = False

    @property
    def cluster(self) -> str:
        """Its cluster, as `di-store serve` was given it."""
        where = ",".join(Address.parse(each).node if self.kind == "static" else each for each in self.peers)
        return f"--peers {where}" if self.kind == "static" else f"--join {self.kind}://{where}"

    def is_of(self, other: Membership) -> bool:
        """Whether both are in one cluster."""
        return (self.kind, self.peers) == (other.kind, other.peers)


def membership_of(session: Session) -> Membership | None:
    """What the store says of its cluster; None: it is in none."""
    found = Weights(session).latest(NAME, None, None, 0)
    if found is None or not found.value:
        return None
    return msgspec.msgpack.decode(found.value, type=Membership)
