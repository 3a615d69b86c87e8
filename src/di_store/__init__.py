"""Di-store: one store in shared memory for all data that a reinforcement-learning job moves, on one machine."""

from typing import TYPE_CHECKING, Any

try:
    from di_store import _core as _core
except ImportError as error:
    from di_store.base.unusable import unusable

    raise unusable(error) from None

from di_store.base.errors import AccessDenied as AccessDenied
from di_store.base.errors import CapacityError as CapacityError
from di_store.base.errors import CorruptData as CorruptData
from di_store.base.errors import EndOfData as EndOfData
from di_store.base.errors import LayoutMismatch as LayoutMismatch
from di_store.base.errors import NodeUnavailable as NodeUnavailable
from di_store.base.errors import ObjectExists as ObjectExists
from di_store.base.errors import ObjectNotFound as ObjectNotFound
from di_store.base.errors import SchemaMismatch as SchemaMismatch
from di_store.base.errors import StoreClosed as StoreClosed
from di_store.base.errors import StoreError as StoreError
from di_store.base.errors import StoreFull as StoreFull
from di_store.base.errors import StoreNotFound as StoreNotFound
from di_store.base.errors import TableExists as TableExists
from di_store.base.errors import TableNotFound as TableNotFound
from di_store.base.errors import Timeout as Timeout
from di_store.base.errors import WriterClosed as WriterClosed
from di_store.checkpoint.tree.loading import load as load
from di_store.checkpoint.tree.saving import save as save
from di_store.columns.ragged import Ragged as Ragged
from di_store.columns.schema import Spec as Spec
from di_store.objects.draft import Draft as Draft
from di_store.objects.refs import Ref as Ref
from di_store.objects.weights import Published as Published
from di_store.policy.compression import Compress as Compress
from di_store.policy.limiters import Band as Band
from di_store.policy.limiters import MinSize as MinSize
from di_store.policy.limiters import Pace as Pace
from di_store.policy.limiters import Queue as Queue
from di_store.policy.limiters import SamplesPerInsert as SamplesPerInsert
from di_store.policy.limiters import Stack as Stack
from di_store.policy.samplers import Fifo as Fifo
from di_store.policy.samplers import Lifo as Lifo
from di_store.policy.samplers import MaxHeap as MaxHeap
from di_store.policy.samplers import MinHeap as MinHeap
from di_store.policy.samplers import Once as Once
from di_store.policy.samplers import Prioritized as Prioritized
from di_store.policy.samplers import Uniform as Uniform
from di_store.policy.views import Episode as Episode
from di_store.policy.views import Group as Group
from di_store.policy.views import Opaque as Opaque
from di_store.policy.views import Sequence as Sequence
from di_store.policy.views import Step as Step
from di_store.policy.views import Transition as Transition
from di_store.replay.batch import Batch as Batch
from di_store.replay.batch import Items as Items
from di_store.replay.exporting import Exported as Exported
from di_store.replay.incomplete import IncompleteGroup as IncompleteGroup
from di_store.replay.keys import GoneKey as GoneKey
from di_store.replay.lease import Lease as Lease
from di_store.replay.loader import Loader as Loader
from di_store.replay.mixture import Mixture as Mixture
from di_store.replay.table import Table as Table
from di_store.replay.writer import Writer as Writer
from di_store.sizing.needed_memory import needed_memory as needed_memory
from di_store.store.handle import Store as Store
from di_store.store.opening import StoreInfo as StoreInfo
from di_store.store.opening import attach as attach
from di_store.store.opening import list_stores as list_stores
from di_store.store.opening import open as open
from di_store.store.restoring import restore as restore

if TYPE_CHECKING:
    from di_store.client.store import connect as connect
    from di_store.compat import Client as Client


def __getattr__(name: str) -> Any:
    if name == "Client":  # imported by those who use it
        from di_store.compat import Client

        return Client
    if name == "connect":  # with sockets and TLS, for those who need them
        from di_store.client.store import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


for _each in list(vars().values()):
    if isinstance(_each, type) and issubclass(_each, StoreError):
        _each.__module__ = __name__  # a traceback says what `except` can name

__version__ = "0.1.0"
