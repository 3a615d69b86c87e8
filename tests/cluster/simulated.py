"""A group of nodes in virtual time: the decisions are those of the product, the network and the threads are not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from di_store.broadcast.announcement import Announcement
from di_store.broadcast.children import Children
from di_store.broadcast.note import near
from di_store.broadcast.other_agents import ANSWER_SECONDS, DIAL_SECONDS
from di_store.broadcast.serving import BEAT_SECONDS, KNOWN_SECONDS
from di_store.broadcast.transfer import PIECE_BYTES, Left, Transfer

TICK = 0.01
TRIP = 0.002  # from node to node


@dataclass
class Pull:
    """One connection of a child."""

    source: Node
    turn: int
    answers: float  # when the first word comes
    beat: float = 0.0
    part: float = 0.0  # bytes of the next piece that have come
    unknown: float | None = None  # since when the source has not known the version


@dataclass
class Node:
    """One node: what of it lives in its store, and what dies with its agent.

    Attributes:
        rate: bytes a second of its link, each way.
        stopped, dead: until when.
        whole: the newest version that others can see.
        wanted: the newest that it was told of; its record keeps that it has to ask.
        pieces: of the version on its way, the version that each piece was of at its source.
    """

    number: int
    rate: float
    stopped: float = 0.0
    dead: float = 0.0
    whole: int = 0
    wanted: int = 0
    chain: list[str] = field(default_factory=list)
    place: int = 0
    sent: float = 0.0
    finished: dict[int, float] = field(default_factory=dict)
    transfer: Transfer | None = None
    version: int = 0
    pieces: list[int] = field(default_factory=list)
    pull: Pull | None = None
    dialling: float | None = None
    children: Children = field(default_factory=Children)

    @property
    def address(self) -> str:
        return f"{self.number}"

    def runs(self, now: float) -> bool:
        return now >= self.stopped and now >= self.dead

    def has(self, version: int) -> int | None:
        """Bytes of a version that it can give; None: it does not know it."""
        if self.whole == version:
            return Group.size
        return None if self.transfer is None or self.version != version else self.transfer.have


class Group:
    """The publisher is node 0. `run` lets time pass."""

    size = 0

    def __init__(self, rates: Iterable[float], size: int, tick: float = TICK) -> None:
        Group.size = size
        self._tick = tick
        self.nodes = [Node(number, rate) for number, rate in enumerate(rates)]
        self.now = 0.0
        self.epoch_chain = [node.address for node in self.nodes]
        self.announcement = Announcement(())
        self.attempts: list[tuple[float, Node, Announcement, int]] = []

    def publish(self) -> int:
        """The next version."""
        first = self.nodes[0]
        first.whole += 1
        members = [node.address for node in self.nodes[1:]]
        self.announcement = Announcement(members, self.announcement)
        return first.whole

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        until = self.now + seconds
        while self.now < until:
            self.now += self._tick
            self._tell()
            for node in self.nodes[1:]:
                if node.runs(self.now):
                    self._decide(node)
            self._move()

    def kill(self, node: Node, seconds: float) -> None:
        """Its agent dies, and another one runs so much later; what its store has stays."""
        node.dead = self.now + seconds
        node.transfer, node.dialling, node.children = None, None, Children()
        self._end(node, None)
        for child in self.nodes:
            if child.pull is not None and child.pull.source is node:
                self._end(child, Left.LOST)

    def cut(self, child: Node) -> None:
        """Its connection breaks."""
        if child.pull is not None:
            self._end(child, Left.LOST)

    # -- notes --------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        version = self.nodes[0].whole
        if self.nodes[0].runs(self.now):
            for address in self.announcement.due(self.now):
                node = self.nodes[int(address)]
                seconds = TRIP if node.runs(self.now) else ANSWER_SECONDS
                self.attempts.append((self.now + seconds, node, self.announcement, version))
        for attempt in [each for each in self.attempts if each[0] <= self.now]:
            self.attempts.remove(attempt)
            _, node, announcement, number = attempt
            if not node.runs(self.now):
                announcement.failed(node.address, "no answer", self.now)
                continue
            announcement.took(node.address)
            node.wanted = max(node.wanted, number)
            node.chain, node.place = near(self.epoch_chain, node.number)

    # -- what a node's thread does ------------------------------------------------------------------------------

    def _decide(self, node: Node) -> None:
        if node.wanted <= node.whole:
            return
        if node.transfer is None or node.version != node.wanted:
            self._end(node, None)
            node.dialling = None
            node.version, node.pieces = node.wanted, []
            node.transfer = Transfer(node.chain, node.place, self.size, self.now)
        if node.transfer.source is None:
            source = node.transfer.next_source(self.now)
            if source is not None:
                node.dialling = self.now
        elif node.dialling is not None:
            self._dial(node)
        elif node.pull is not None and (why := node.transfer.tired(self.now)) is not None:
            self._end(node, why)

    def _dial(self, node: Node) -> None:
        assert node.transfer is not None
        assert node.transfer.source is not None
        assert node.dialling is not None
        source = self.nodes[int(node.transfer.source)]
        if self.now < source.dead:
            self._end(node, Left.LOST)
        elif self.now < source.stopped:
            if self.now - node.dialling >= DIAL_SECONDS:
                self._end(node, Left.LOST)
        elif self.now - node.dialling >= 2 * TRIP:
            turn = source.children.admit(node.address.encode(), self.now)
            if turn is None:
                self._end(node, Left.REFUSED)
            else:
                node.dialling, node.pull = None, Pull(source, turn, self.now + TRIP)

    def _end(self, node: Node, why: Left | None) -> None:
        pull, node.pull, node.dialling = node.pull, None, None
        if pull is not None:
            pull.source.children.ends(node.address.encode(), pull.turn)
        if why is not None and node.transfer is not None:
            node.transfer.left(why, self.now)

    # -- bytes --------------------------------------------------------------------------------------------------

    def _move(self) -> None:
        served: dict[int, list[tuple[Node, Pull]]] = {}
        for node in self.nodes:
            if node.pull is not None:
                served.setdefault(node.pull.source.number, []).append((node, node.pull))
        for source in self.nodes:
            if not source.runs(self.now) or source.number not in served:
                continue
            pulls = [(node, pull) for node, pull in served[source.number] if node.pull is pull]
            ready = [(node, pull) for node, pull in pulls if self._serves(source, node, pull)]
            left = source.rate * self._tick
            for done, (node, pull) in enumerate(sorted(ready, key=lambda each: each[0].rate)):
                given = min(left / (len(ready) - done), node.rate * self._tick)  # what a slow child leaves others take
                left -= given
                self._give(source, node, pull, given)

    def _serves(self, source: Node, node: Node, pull: Pull) -> bool:
        """What a source says without bytes; whether it has bytes for this child."""
        transfer = node.transfer
        if self.now < pull.answers or transfer is None or not node.runs(self.now):
            return False
        have = source.has(node.version)
        if have is None:
            pull.unknown = self.now if pull.unknown is None else pull.unknown
            if max(source.whole, source.wanted) > node.version:
                node.wanted = max(node.wanted, source.whole, source.wanted)  # "gone": it asks for the newest
                self._end(node, Left.STUCK)
                return False
            if self.now - pull.unknown > KNOWN_SECONDS:
                self._end(node, Left.STUCK)
                return False
            have = 0
        if have > transfer.have:
            return True
        if self.now >= pull.beat:
            pull.beat = self.now + BEAT_SECONDS
            self._hear(source, node, have)
        return False

    def _hear(self, source: Node, node: Node, have: int) -> bool:
        assert node.transfer is not None
        fallen = 0 if source.transfer is None or source.whole >= node.version else source.transfer.fallen
        why = node.transfer.heard(have, fallen, self.now)
        if why is not None:
            self._end(node, why)
        return why is None

    def _give(self, source: Node, node: Node, pull: Pull, budget: float) -> None:
        transfer = node.transfer
        assert transfer is not None
        pull.part += budget
        source.sent += budget
        while node.pull is pull:
            have = source.has(node.version)
            assert have is not None
            piece = min(PIECE_BYTES, have - transfer.have)
            if piece <= 0 or pull.part < piece:
                break
            if not self._hear(source, node, have):
                return
            pull.part -= piece
            transfer.got(piece, self.now)
            node.pieces.append(node.version)
            if transfer.done:
                self._end(node, None)
                assert set(node.pieces) == {node.version}, "torn"
                node.whole, node.transfer = node.version, None
                node.finished[node.version] = self.now
        if node.pull is pull and (have := source.has(node.version)) is not None and have <= transfer.have:
            source.sent -= pull.part  # nothing was there to send
            pull.part = 0.0
