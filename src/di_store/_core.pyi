"""
The native core: shared memory and everything in it that two processes touch at once.

What is passed here is checked by the callers in Python; the classes above are the ones to use. Timeouts are seconds,
negative: none. Errors are those of `di_store.base.errors`.
"""

import enum
import types
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy
import numpy.typing
from numpy.typing import NDArray
from typing_extensions import Unpack

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

class Code(enum.Enum):
    INVALID = 0

    TYPE = 1

    STORE_NOT_FOUND = 2

    STORE_CLOSED = 3

    STORE_FULL = 4

    CAPACITY = 5

    LAYOUT_MISMATCH = 6

    CORRUPT_DATA = 7

    ROWS_LOST = 8

    OBJECT_NOT_FOUND = 9

    OBJECT_EXISTS = 10

    TABLE_NOT_FOUND = 11

    TABLE_EXISTS = 12

    SCHEMA_MISMATCH = 13

    WRITER_CLOSED = 14

    END_OF_DATA = 15

    ACCESS_DENIED = 16

    TIMEOUT = 17

    STORE_ERROR = 18

    COLUMN_MISSING = 19

    COLUMN_DIFFERS = 20

class Failure:
    """What an error of the core says, for `errors.of_core`."""

    @property
    def code(self) -> Code: ...
    @property
    def text(self) -> str: ...
    @property
    def told(self) -> bool: ...
    @property
    def culprit(self) -> str: ...
    @property
    def holder(self) -> int | None: ...
    @property
    def column(self) -> str: ...
    @property
    def lane(self) -> int | None: ...

def set_python(
    make_error: Callable[[Failure], Exception],
    encode: Callable[[Any], Any],
    decode: Callable[..., Any],
    log_wait: Callable[[float, float, str], None],
    /,
) -> None: ...
def before_fork() -> None: ...
def after_fork_parent() -> None: ...
def after_fork_child() -> None: ...
def memory_total() -> int: ...
def least_budget(claimed: int) -> int:
    """The least memory= of which so many bytes can be claimed."""

def least_disk(total: int, in_memory: int) -> int:
    """
    The least disk_capacity= for so many bytes, of which memory takes some.
    """

def in_tiers(bytes: int, open_bytes: int, chunk_block: int, chunk_head: int, expect: float) -> int:
    """What a reserve takes of memory and disk together."""

def memory_headroom() -> int: ...
def proc_pid() -> int: ...

class Holder:
    """A process that holds a store."""

    @property
    def pid(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def uuid(self) -> str: ...
    @property
    def committed(self) -> int: ...
    @property
    def removed(self) -> bool: ...

class HiddenHolder:
    """A process that may hold a store, and that may not be looked at."""

    @property
    def pid(self) -> int: ...
    @property
    def uid(self) -> int | None: ...

def list_holders() -> list[Holder]: ...
def hidden_holders() -> list[HiddenHolder]: ...
def store_folder() -> str: ...

HAS_FAULTS: bool

def fault_points() -> list[str]: ...
def arm_fault(spec: str, /) -> None: ...
def fail_allocation(number: int, /) -> None: ...
def shift_clock(seconds: float, /) -> None: ...
def allocations() -> int: ...

class Mode(enum.Enum):
    """How a store is opened."""

    OPEN = 0

    NEW = 1

    ATTACH = 2

    FRESH = 3

class ColumnPlace(enum.Enum):
    RECORD = 0

    COLUMN = 1

    HEAP = 2

    LATE = 3

class ViewKind(enum.Enum):
    STEP = 0

    OPAQUE = 1

    TRANSITION = 2

    SEQUENCE = 3

    EPISODE = 4

class Tail(enum.Enum):
    PAD = 0

    DROP = 1

    SHIFT = 2

class Op(enum.Enum):
    """
    What an output of a view is made of; `native/rows/views.h` tells of each.
    """

    ROW = 0

    NEXT = 1

    LAST = 2

    STACK = 3

    NEXT_STACK = 4

    WINDOW = 5

    FIRST = 6

    FUTURE = 7

    REWARD = 8

    DISCOUNT = 9

    STEPS = 10

    MASK = 11

    LENGTHS = 12

    IS_FIRST = 13

    FUTURE_STEPS = 14

class Number(enum.Enum):
    """Types of numbers that the core computes with; bool is U1."""

    F4 = 0

    F8 = 1

    I1 = 2

    I2 = 3

    I4 = 4

    I8 = 5

    U1 = 6

    U2 = 7

    U4 = 8

    U8 = 9

class SamplerKind(enum.Enum):
    UNIFORM = 0

    FIFO = 1

    LIFO = 2

    MIN_HEAP = 3

    MAX_HEAP = 4

    PRIORITIZED = 5

    ONCE = 6

class LeaseEnd(enum.Enum):
    """How a lease ends; `native/replay/lease_ends.h`."""

    ACKNOWLEDGED = 0

    DROPPED = 1

    RETURNED = 2

class GoneFor(enum.Enum):
    """Why an item left its table; `native/replay/gone_keys.h`."""

    EVICTED = 0

    USED_UP = 1

    DROPPED = 2

    STALE = 3

    DELETED = 4

    RESET = 5

    LOST = 6

    OVERDUE = 7

class Autoreset(enum.Enum):
    OFF = 0

    NEXT_STEP = 1

    SAME_STEP = 2

class BlockedBy(enum.Enum):
    """What a writer's call waits for."""

    NOTHING = 0

    LIMITER = 1

    TABLE_ROOM = 2

    STORE_ROOM = 3

    LOCK = 4

class Wait:
    def __init__(self, arg: Arena, /) -> None: ...
    def end(self) -> None: ...

class Awaited:
    """
    A number in the store that changes when what a call waits for may have come.
    """

    @property
    def seq(self) -> int: ...
    @property
    def address(self) -> int:
        """Names the number."""

    @property
    def for_one(self) -> bool:
        """Whether what has come is for one call alone."""

    def __call__(self, wait: Wait, seen: int, seconds: float, /) -> None:
        """Sleep until the number differs from `seen`."""

class Sleeper:
    """The sleep of a thread on many numbers."""

    def __init__(self) -> None: ...
    @property
    def calls(self) -> int:
        """How often `wake` was called."""

    def wake(self) -> None: ...
    def sleep(self, awaited: list[Awaited], seen: list[int], calls: int, wait: Wait, seconds: float, /) -> None:
        """Sleep until a number differs from what was seen of it."""

class Arena:
    @staticmethod
    def open(
        name: str,
        mode: Mode,
        budget: int,
        seed: int,
        timeout: float,
        disk: str = "",
        disk_capacity: int = 0,
        write_budget: int = 0,
    ) -> Arena: ...
    @staticmethod
    def attach(name: str, holders: list[Holder], timeout: float) -> Arena:
        """
        Attaches to a store that these processes hold, as list_holders() has just found them.
        """

    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def slot(self) -> int: ...
    @property
    def created(self) -> bool: ...
    @property
    def hidden(self) -> bool: ...
    def announce(self) -> None: ...
    def abandon(self) -> None: ...
    @property
    def damaged_objects(self) -> int: ...
    @property
    def foreign_logs(self) -> int: ...
    @property
    def fd_number(self) -> int: ...
    @property
    def uuid(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def budget(self) -> int: ...
    @property
    def fit(self) -> bool: ...
    @property
    def range_bytes(self) -> int: ...
    def stats(self) -> dict[str, Any]: ...
    def resize(self, budget: int, timeout: float, /) -> None: ...
    def grow(self, more: int, timeout: float, /) -> None: ...
    def available(self, wanted: int, timeout: float, /) -> int: ...
    def descriptor_bytes(self, chunks: int, timeout: float, /) -> int: ...
    def left_in_tiers(self) -> int: ...
    def enter(self) -> None: ...
    def reap(self) -> int: ...
    def chore(self) -> bool: ...
    @property
    def tiered(self) -> bool: ...
    @property
    def disk(self) -> str: ...
    def check(self, repair: bool, timeout: float, /) -> list[str]: ...
    def check_disk(self, repair: bool, timeout: float, /) -> list[str]: ...
    def drop_lost(self, marked: bool, timeout: float, /) -> LostRows: ...
    def note_lost_file(self, file: int, what: str, /) -> None: ...
    def remove(self) -> None: ...
    def note_loaded(self, ahead: int, stalled_seconds: float, /) -> None: ...
    def set_role(self, role: int, /) -> None: ...
    @property
    def sync_every_ms(self) -> int: ...
    @sync_every_ms.setter
    def sync_every_ms(self, arg: int, /) -> None: ...
    def resize_disk(self, capacity: int, timeout: float, /) -> None: ...
    def set_write_budget(self, bytes_a_day: int, /) -> None: ...
    def last_uid(self, timeout: float, /) -> int: ...
    def write_to_disk(self, tables: Sequence[str] | None, last: int, timeout: float) -> int: ...
    def sealed_seq(self) -> int: ...
    def room_seq(self) -> int: ...
    @property
    def wait_sealed(self) -> Awaited: ...
    @property
    def wait_weights(self) -> Awaited: ...
    @property
    def wait_room(self) -> Awaited: ...
    @property
    def wait_table(self) -> Awaited: ...
    def put_durable(self, value: Any, id: bytes | None, ttl: float) -> bytes: ...
    def keep(self, written: list[Unsealed], /) -> None: ...
    def publish_durable(self, name: str, value: Any, keep: int) -> int: ...
    def sync_objects(self, timeout: float, /) -> None: ...
    def reserve(
        self, header: bytes, payload: int, id: bytes | None, ttl: float, foreign: bool = False, named: bool = True
    ) -> Reserved: ...
    @property
    def home(self) -> bytes: ...
    def raw(self, id: bytes) -> numpy.typing.NDArray[numpy.uint8]: ...
    def raw_weights(self, name: str, version: int) -> numpy.typing.NDArray[numpy.uint8]: ...
    def put(self, value: Any, id: bytes | None, ttl: float) -> bytes: ...
    def write(self, value: Any, id: bytes | None) -> Unsealed: ...
    def get(self, id: bytes, copy: bool | None) -> Any: ...
    def contains(self, id: bytes, timeout: float) -> bool: ...
    def delete(self, ids: list[bytes], timeout: float, /) -> int: ...
    def keys(self, after: bytes | None, n: int, timeout: float) -> list[bytes]: ...
    def publish(self, name: str, value: Any, keep: int, at: int = 0) -> int: ...
    def newest(self, name: str, /) -> int: ...
    def oldest(self, name: str, /) -> int: ...
    def latest(self, name: str, version: int, copy: bool | None) -> Any: ...
    def pins(self) -> list[tuple[int, bytes, bool, int, int]]: ...
    def weights(self) -> list[tuple[str, int, int, list[tuple[int, bytes, int | None]]]]: ...
    def tables(self) -> list[str]: ...
    def table(self, name: str, /) -> Table | None: ...
    def drop_table(self, name: str, timeout: float, /) -> None: ...
    def layout_count(self) -> int: ...
    def publish_layout(self, layout: dict[str, Any], timeout: float, /) -> int: ...
    def session_marks(self, session: bytes, timeout: float = 60.0) -> dict[str, tuple[int, int, bool]]: ...
    def claim_session(self, session: bytes, timeout: float) -> int: ...
    def keep_session(self, session: bytes) -> None: ...
    def end_session(self, session: bytes, timeout: float) -> int: ...

class LostRows:
    @property
    def items(self) -> int: ...
    @property
    def what(self) -> list[str]: ...

class Unsealed:
    @property
    def id(self) -> bytes: ...
    def seal(self) -> None: ...

class Reserved:
    @property
    def id(self) -> bytes: ...
    def seal(self) -> None: ...
    def seal_durable(self) -> None: ...
    def publish(self, name: str, keep: int, at: int = 0) -> int: ...
    def publish_durable(self, name: str, keep: int) -> int: ...
    def payload(self) -> numpy.typing.NDArray[numpy.uint8]: ...

def read_block(block: numpy.typing.NDArray[numpy.uint8], copy: bool | None, foreign: bool | None = None) -> Any: ...

KEY_SHARD_AT: int = 56

KEY_SHARDS: int = 256

ITEM_FINISHED: int = 4

ITEM_NO_NEXT: int = 1

BEING_IMPORTED: int = 4611686018427387904

class Table:
    @staticmethod
    def create(arena: Arena, shape: dict[str, Any], timeout: float, /) -> Table: ...
    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def beta(self) -> float | None: ...
    @property
    def evicted_for_room(self) -> int: ...
    @property
    def steps_left_out(self) -> int: ...
    @property
    def finished(self) -> bool: ...
    @property
    def group_due_seconds(self) -> float:
        """Until the next deadline of a group may be over."""

    @property
    def taken_over(self) -> bool: ...
    def may_draw(self, n: int, distinct: bool, /) -> bool: ...
    @property
    def paced_out(self) -> bool: ...
    @property
    def live(self) -> bool: ...
    def config(self) -> str: ...
    def schema(self) -> str: ...
    def size(self) -> int: ...
    def stats(self) -> dict[str, Any]: ...
    def writers(self) -> int: ...
    def keep_gone_keys(self, timeout: float, /) -> int: ...
    def gone_keys(
        self, start: int, timeout: float, /
    ) -> tuple[numpy.typing.NDArray[numpy.uint64], numpy.typing.NDArray[numpy.uint8], int] | None: ...
    def keys(
        self, start: int, n: int, timeout: float, spread: bool = False, leased: bool = False
    ) -> numpy.typing.NDArray[numpy.uint64]: ...
    def places(
        self, keys: numpy.typing.NDArray[Any], timeout: float, /
    ) -> tuple[
        numpy.typing.NDArray[numpy.int64],
        numpy.typing.NDArray[numpy.int64],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint32],
    ]: ...
    def incomplete(
        self, timeout: float, /
    ) -> tuple[
        numpy.typing.NDArray[numpy.uint64],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint8],
        numpy.typing.NDArray[numpy.float64],
        numpy.typing.NDArray[numpy.uint64],
    ]: ...
    def waiting(self, timeout: float, /) -> numpy.typing.NDArray[numpy.uint64]: ...
    def remove(self, keys: numpy.typing.NDArray[Any], timeout: float, /) -> int: ...
    def update(
        self, keys: numpy.typing.NDArray[Any], priorities: numpy.typing.NDArray[Any], timeout: float, /
    ) -> int: ...
    def check_priorities(self, priorities: numpy.typing.NDArray[Any], /) -> None: ...
    def reset(self, timeout: float, /) -> None: ...
    def finish(self, timeout: float, /) -> None: ...
    def give_up(self, timeout: float, /) -> None: ...
    def settle(self) -> None: ...
    def check(self) -> list[str]: ...
    def end_leases(self, keys: numpy.typing.NDArray[Any], number: int, how: LeaseEnd, timeout: float, /) -> int: ...
    def extend_leases(self, keys: numpy.typing.NDArray[Any], number: int, seconds: float, timeout: float, /) -> int: ...
    def claim_session(self, session: bytes, timeout: float, /) -> tuple[int, int]: ...
    def owns_session(self, mark: int, owner: int, /) -> bool: ...
    def leases(self, timeout: float, /) -> tuple[int, float | None, dict[str, int]]: ...
    def at(
        self, positions: numpy.typing.NDArray[Any], timeout: float, /
    ) -> numpy.typing.NDArray[numpy.uint64] | None: ...
    def positions(
        self, keys: numpy.typing.NDArray[Any], timeout: float, /
    ) -> numpy.typing.NDArray[numpy.int64] | None: ...
    def masses(self, timeout: float, /) -> tuple[float, float]: ...
    def declare_schema(
        self, text: str, reserve: tuple[int, int, int, int], item_bytes: int, timeout: float, /
    ) -> bool: ...
    def resize(
        self,
        capacity: int,
        slots: int,
        reserve: tuple[int, int, int, int],
        seen: tuple[int, int, int],
        timeout: float,
        /,
    ) -> bool: ...
    def claims(self, slots: int, timeout: float, /) -> tuple[int, int, int]: ...
    def restore(
        self, counts: tuple[int, int, int, float, int], keys: numpy.typing.NDArray[numpy.uint64], timeout: float, /
    ) -> None: ...
    def configure(
        self,
        limiter: tuple[float, float, float, int, bool, str | None] | None,
        alpha: float | None,
        beta: float | types.EllipsisType | None,
        max_staleness: int | None,
        timeout: float,
        opens: bool = False,
    ) -> None: ...
    def require_filled(self) -> None: ...
    def items_seq(self) -> int: ...
    def room_seq(self) -> int: ...
    def learners(self) -> int | None: ...
    def concerned(self) -> list[int]: ...
    @property
    def wait_items(self) -> Awaited: ...
    @property
    def wait_limiter(self) -> Awaited: ...
    @property
    def wait_room(self) -> Awaited: ...
    def wait_lock(self, holder: int | None) -> Awaited: ...

class Draws:
    @property
    def count(self) -> int: ...
    @property
    def lease(self) -> int: ...
    @property
    def lost(self) -> bool: ...
    @property
    def why(self) -> str: ...
    @property
    def paced_out(self) -> bool: ...
    @property
    def holder(self) -> int | None: ...
    @property
    def missing(self) -> list[int]: ...
    def choose(
        self, keys: numpy.typing.NDArray[numpy.uint64], probabilities: numpy.typing.NDArray[numpy.float64] | None
    ) -> None: ...
    def keep(self, count: int, /) -> None: ...

class Gathering:
    @property
    def is_whole(self) -> bool: ...
    @property
    def bytes(self) -> int: ...
    def read_ahead(self) -> bool: ...
    def copy_portion(self) -> bool: ...
    def parts(self) -> Parts: ...

class Undelivered:
    @property
    def count(self) -> int: ...
    @property
    def holder(self) -> int: ...
    @property
    def who(self) -> str: ...

class Measured:
    @property
    def items(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class RowList:
    def __init__(self, table: Table, view: dict[str, Any], late: list[str], /) -> None: ...

def check_view(view: dict[str, Any]) -> None:
    """Raises ValueError: its items are too large."""

class BatchBuffers:
    def __init__(self) -> None: ...
    def take(self, bytes: int, /) -> numpy.typing.NDArray[numpy.uint8]: ...

class Reader:
    def __init__(self, table: Table, plan: dict[str, Any], /) -> None: ...
    def sample(self, n: int, beta: float | None, which: list[int] | None, distinct: bool = False) -> Parts | Draws: ...
    def begin(
        self, distinct: bool = False, lease: float | None = None, session: tuple[int, int] | None = None
    ) -> Draws: ...
    def lease(self, n: int, beta: float | None, distinct: bool, seconds: float) -> tuple[Parts, int] | None: ...
    def take(
        self,
        keys: numpy.typing.NDArray[numpy.uint64],
        probabilities: numpy.typing.NDArray[numpy.float64] | None,
        beta: float | None,
    ) -> Parts | None: ...
    def column(self, draws: Draws, first: int, which: list[int] | None) -> Parts: ...
    def draw(self, draws: Draws, n: int, strata: bool = True) -> int: ...
    def finish(
        self, draws: Draws, beta: float | None, which: list[int] | None, out: dict[str, Any] | None, deliver: bool
    ) -> Parts: ...
    def gather(
        self, draws: Draws, beta: float | None, which: list[int] | None, out: dict[str, Any] | None
    ) -> Gathering: ...
    def deliver(self, draws: Draws, /) -> None: ...
    def deliver_some(self, draws: Draws, places: Sequence[int], /) -> None: ...
    def give_back(self, draws: Draws, /) -> None: ...
    def undelivered(self, draws: Draws, /) -> Undelivered | None: ...
    def peek(self, keys: numpy.typing.NDArray[Any], beta: float | None, which: list[int] | None) -> PeekedParts: ...
    def peek_oldest(self, start: int, count: int, which: list[int] | None, timeout: float) -> PeekedParts: ...
    def rows(
        self, list: RowList, keys: numpy.typing.NDArray[Any], count: int, observed: list[int], timeout: float
    ) -> tuple[
        tuple[numpy.typing.NDArray[Any], ...],
        numpy.typing.NDArray[numpy.bool_],
        numpy.typing.NDArray[numpy.uint32],
        Parts,
        Parts,
    ]: ...
    def measure(self, keys: numpy.typing.NDArray[Any], timeout: float, /) -> Measured: ...

class LateWriter:
    def __init__(self, table: Table, plan: dict[str, Any], /) -> None: ...
    def write_now(self, keys: Any, values: Any, row: Any, timeout: Any, /) -> int | None: ...
    def write(
        self,
        keys: numpy.typing.NDArray[Any],
        values: list[tuple[int, numpy.typing.NDArray[Any]]],
        first: int,
        count: int,
        lease: int | None,
        timeout: float,
    ) -> int: ...

MOST_SLOTS: int = 268435454

MAX_COLUMNS: int = 256

MOST_LATE: int = 16

ITEM_BYTES: int = 48

DESCRIPTOR_BYTES: int = 64

FIRST_DESCRIPTORS: int = 1024

LEDGER_ENTRY_BYTES: int = 16

def chunk_bytes(record_bytes: int, wide_bytes: int, wide: int, late_bytes: int, rows: int, heap_bytes: int) -> int: ...
def plan_chunk(
    record_bytes: int,
    wide_bytes: int,
    wide: int,
    late_bytes: int,
    target_bytes: int,
    least_rows: int,
    heap_bytes_per_row: int,
    tables: int,
) -> tuple[int, int]:
    """Rows of a chunk, and the bytes of its block."""

def chunk_head(
    record_bytes: int,
    wide_bytes: int,
    wide: int,
    late_bytes: int,
    rows: int,
    heap_bytes: int,
    tables: int,
    pack_rows: int,
) -> int:
    """Bytes of a chunk's head, which a disk tier leaves in memory."""

class Attendance:
    def __init__(self, table: Table, timeout: float, /) -> None: ...
    def end(self) -> None: ...

class Blocked:
    @property
    def why(self) -> BlockedBy: ...
    @property
    def table(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def holder(self) -> int | None: ...
    @property
    def passed(self) -> bool: ...
    @property
    def text(self) -> str: ...

class RowForm:
    """Where the values of calls of one form lie; stride: bytes of each call."""

    def __init__(
        self, step: Sequence[tuple[int, int]], next: Sequence[tuple[int, int]], stride: int, lanes: int
    ) -> None: ...

class RowsMade:
    """What rows that followed each other have made."""

    @property
    def calls(self) -> int: ...
    @property
    def counts(self) -> list[list[int]]: ...
    @property
    def keys(self) -> numpy.typing.NDArray[numpy.uint64]: ...
    @property
    def lanes(self) -> numpy.typing.NDArray[numpy.int32]: ...
    @property
    def starts(self) -> numpy.typing.NDArray[numpy.int64]: ...
    @property
    def blocked(self) -> Blocked | None: ...
    def check(self) -> None:
        """Raises what the call after them raised."""

class Writer:
    def __init__(self, arena: Arena, plan: dict[str, Any], timeout: float, /) -> None: ...
    def append(self, step: Any, next: Any, final: Any, lane: Any, priority: Any) -> list[Made] | Blocked: ...
    def extend(
        self, steps: Any, next: Any, final: Any, lane: Any, priority: Any, count: int
    ) -> list[Made] | Blocked: ...
    def append_rows(
        self,
        form: RowForm,
        body: numpy.typing.NDArray[numpy.uint8],
        at: int,
        count: int,
        seq: int,
        lane: Any,
        priority: Any,
        order: list[int],
    ) -> RowsMade: ...
    def end_episode(self, final: Any, lane: Any, discard: bool) -> list[Made] | Blocked: ...
    def insert(
        self, rows: Any, items: list[tuple[int, int, int]], total: int, priority: Any, bare: bool = False
    ) -> list[Made] | Blocked: ...
    def insert_now(self, value: Any, priority: Any, timeout: Any) -> numpy.typing.NDArray[numpy.uint64] | None: ...
    def restore_rows(
        self,
        rows: Any,
        episodes: numpy.typing.NDArray[numpy.int64],
        steps: numpy.typing.NDArray[numpy.int64],
        finals: numpy.typing.NDArray[numpy.bool_],
        late: numpy.typing.NDArray[numpy.uint32],
        observed: list[int],
    ) -> numpy.typing.NDArray[numpy.int64] | Blocked: ...
    def restore_items(self, items: tuple[numpy.typing.NDArray[Any], ...], next: int) -> list[Made] | Blocked: ...
    def finish(self) -> list[Made] | Blocked: ...
    def begin_call(self, seq: int) -> None: ...
    def resume(self) -> list[Made] | Blocked: ...
    def close(self) -> None: ...
    def set_version(self, table: int, version: int, /) -> None: ...
    @property
    def busy(self) -> bool: ...
    @busy.setter
    def busy(self, arg: bool, /) -> None: ...

class RowPacker:
    """Copies the values of steps of one form; stride: bytes of a call."""

    def __init__(self, leaves: list[tuple[str, numpy.dtype[Any], tuple[int, ...], int, bool]], stride: int) -> None: ...
    def write(self, step: Any, block: numpy.typing.NDArray[numpy.uint8], at: int) -> bool | None:
        """
        Whether the step ends its episode. None: its values have to be looked at.
        """

class Stopped(enum.Enum):
    """Why a RowService has stopped."""

    OTHER = 0

    LOOK = 1

    ROWS = 2

    TORN = 3

class Served:
    """What a RowService has done."""

    @property
    def why(self) -> Stopped: ...
    @property
    def done(self) -> int: ...
    @property
    def calls(self) -> int: ...
    @property
    def acknowledged(self) -> int: ...
    @property
    def kept(self) -> list[tuple[int, bytes, list[bytes]]]: ...
    @property
    def meta(self) -> bytes: ...
    @property
    def body(self) -> numpy.typing.NDArray[numpy.uint8]: ...
    def take_made(self) -> RowsMade | None: ...

class RowService:
    """Makes the rows of a remote writer as they come from its socket."""

    def __init__(self, writer: Writer, order: Sequence[int]) -> None: ...
    def learn(self, writer: Writer, text: bytes, form: RowForm, lane: Any) -> None:
        """
        Make calls of this form from now on; text: of meta, from `method` to `discard`.
        """

    def serve(self, incoming: Incoming, socket: int, most_bytes: int, done: int, epoch: int) -> Served:
        """Read and make rows, until something else comes."""

class Turn:
    def take(self, newcomer: bool, /) -> Hold | None: ...
    def hold(self) -> int: ...
    def pass_on(self, hold: int, /) -> None: ...
    def take_again(self, hold: int, /) -> bool: ...
    def sleep(self, hold: int, /) -> None: ...
    def wake(self, hold: int, /) -> None: ...
    def hang(self, bell: Any, /) -> bool: ...

class Hold:
    def __enter__(self) -> bool: ...
    def __exit__(self, *error: object) -> None: ...

def crc32c(data: Any, before: int = 0) -> int:
    """
    Of the bytes of a C-contiguous buffer, after bytes whose checksum is `before`.
    """

class PieceFile:
    """
    A payload that several threads write or read in pieces; extents: uint64[n, 3] of address, offset, bytes.
    """

    def __init__(
        self,
        path: str,
        begin: int,
        payload_bytes: int,
        piece_bytes: int,
        extents: numpy.typing.NDArray[numpy.uint64],
        owners: object,
        writes: bool,
    ) -> None: ...
    def write(self, number: int) -> int: ...
    def finish(self, head: bytes) -> None: ...
    def read(self, number: int, crc: int) -> None: ...
    def wanted(self) -> numpy.typing.NDArray[numpy.uint64]: ...

FRAME_MAX_META_BYTES: int = 1048576

FRAME_PIECE_BYTES: int = 1048576

class Outgoing:
    """A message that is sent; body: buffers that follow each other."""

    def __init__(self, kind: int, request: int, flags: int, meta: bytes, body: Sequence[Any]) -> None: ...
    def send(self, fd: int) -> bool:
        """Whether all is sent; False: the socket has waited in vain."""

    def front(self) -> memoryview:
        """What goes next, until `took`."""

    def took(self, bytes: int) -> None: ...
    @property
    def done(self) -> bool: ...
    @property
    def sent(self) -> int:
        """Bytes."""

class Incoming:
    """The messages of a connection; kinds: bit k for frames of kind k."""

    def __init__(self, kinds: int, memory: Callable[[int], numpy.typing.NDArray[numpy.uint8]]) -> None: ...
    def message(
        self, fd: int | None, most_bytes: int, until: float | None
    ) -> tuple[int, int, int, bytes, numpy.typing.NDArray[numpy.uint8]] | None:
        """
        Kind, request, flags, meta, body. None: the socket has waited in vain, or `room` has to be filled.
        """

    def piece(self, fd: int | None, into: numpy.typing.NDArray[numpy.uint8], until: float | None) -> int | None:
        """Bytes of the next frame, a piece. None: as `message`."""

    def room(self) -> memoryview: ...
    def filled(self, bytes: int) -> None: ...
    @property
    def has_bytes(self) -> bool: ...
    @property
    def moved(self) -> float:
        """When bytes came last, by `time.monotonic()`."""

class Snapshot:
    """A store at one instant: held until close()."""

    def __init__(self, arena: Arena, names: Sequence[str] | None, timeout: float) -> None: ...
    def head_crcs(self, numbers: numpy.typing.NDArray[Any]) -> numpy.typing.NDArray[numpy.uint32]: ...
    def find_copies(self, timeout: float) -> None: ...
    def release(self, numbers: numpy.typing.NDArray[Any], timeout: float) -> None: ...
    def close(self, timeout: float) -> None: ...
    def tables(self) -> list[dict[str, Any]]: ...
    def chunks(self) -> dict[str, numpy.typing.NDArray[Any]]: ...
    def objects(self) -> numpy.typing.NDArray[numpy.uint64]: ...
    def weights(self) -> list[tuple[str, int, int, list[tuple[int, bytes]]]]: ...
    def layout(self, index: int) -> bytes: ...
    @property
    def next_stream(self) -> int: ...
    @property
    def next_uid(self) -> int: ...

class ChunkFile:
    """A file of a checkpoint that is being written."""

    def __init__(self, folder: str, uuid: bytes, number: int, bytes: int) -> None: ...

    OWN_BYTES: Final[int] = ...
    """(arg: object, /) -> int"""

    @staticmethod
    def bytes_of_chunk(snapshot: Snapshot, number: int, body: bool) -> int: ...
    @staticmethod
    def bytes_of_objects(snapshot: Snapshot, first: int, count: int) -> int: ...
    def add_chunk(self, snapshot: Snapshot, number: int, body: bool) -> int | None:
        """Page of its record; None: it does not fit any more."""

    def add_objects(self, snapshot: Snapshot, first: int, count: int) -> int | None: ...
    def end(self) -> None: ...

class SavedFile:
    """A file of a checkpoint that is read."""

    def __init__(self, path: str, uuid: bytes) -> None: ...

class Restore:
    """Fills a new store from a checkpoint."""

    def __init__(self, arena: Arena, next_stream: int, next_uid: int, timeout: float) -> None: ...
    def fill(self, table: int, image: dict[str, Any], timeout: float) -> None: ...
    def add_weights(self, name: str, newest: int, oldest: int, timeout: float) -> int: ...
    def add_objects(
        self, file: SavedFile, page: int, versions: dict[bytes, tuple[int, int]], timeout: float
    ) -> None: ...
    def add_layout(self, layout: bytes, timeout: float) -> int: ...
    def add_table(self, table: Table, index: int, generation: int, pack_rows: int, packed_anew: bool) -> None: ...
    def link_files(
        self,
        files: Sequence[tuple[SavedFile, Sequence[int]]],
        loaded: Sequence[tuple[SavedFile, Sequence[int]]],
        own: bool,
        timeout: float,
    ) -> None: ...
    def add_chunk(
        self,
        file: SavedFile,
        page: int,
        stored: SavedFile | None,
        body_page: int,
        layout: int,
        rows: int,
        tables: Sequence[int],
        timeout: float,
    ) -> int: ...
    def link(self, chunk: int, next: int) -> None: ...
    def end_chunks(self, timeout: float) -> None: ...

def create_no_link(path: str, flags: int) -> int:
    """
    An opener for open(): makes the file if need be, and refuses symbolic links.
    """

def sync_folder(path: str) -> None:
    """Names that came and went there survive a power cut."""

def disk_room(folder: str) -> int:
    """
    Bytes that a store's files may take there: what is free, and what files of the folder take.
    """
