"""Di-store: one store for everything a reinforcement-learning job moves, in shared memory on one machine."""

from di_store.batch import Batch as Batch
from di_store.batch import Items as Items
from di_store.batch import Ragged as Ragged
from di_store.errors import AccessDenied as AccessDenied
from di_store.errors import CapacityError as CapacityError
from di_store.errors import CorruptData as CorruptData
from di_store.errors import EndOfData as EndOfData
from di_store.errors import LayoutMismatch as LayoutMismatch
from di_store.errors import NodeUnavailable as NodeUnavailable
from di_store.errors import ObjectExists as ObjectExists
from di_store.errors import ObjectNotFound as ObjectNotFound
from di_store.errors import SchemaMismatch as SchemaMismatch
from di_store.errors import StoreClosed as StoreClosed
from di_store.errors import StoreError as StoreError
from di_store.errors import StoreFull as StoreFull
from di_store.errors import StoreNotFound as StoreNotFound
from di_store.errors import TableExists as TableExists
from di_store.errors import TableNotFound as TableNotFound
from di_store.errors import Timeout as Timeout
from di_store.errors import WriterClosed as WriterClosed
from di_store.limiters import MinSize as MinSize
from di_store.limiters import Queue as Queue
from di_store.limiters import SamplesPerInsert as SamplesPerInsert
from di_store.limiters import Stack as Stack
from di_store.loader import Loader as Loader
from di_store.mixture import Mixture as Mixture
from di_store.objects import Ref as Ref
from di_store.opening import StoreInfo as StoreInfo
from di_store.opening import attach as attach
from di_store.opening import list_stores as list_stores
from di_store.opening import open as open  # noqa: A004 - as the contract names it
from di_store.samplers import Fifo as Fifo
from di_store.samplers import Lifo as Lifo
from di_store.samplers import MaxHeap as MaxHeap
from di_store.samplers import MinHeap as MinHeap
from di_store.samplers import Once as Once
from di_store.samplers import Prioritized as Prioritized
from di_store.samplers import Uniform as Uniform
from di_store.schema import Spec as Spec
from di_store.store import Store as Store
from di_store.table import Table as Table
from di_store.views import Episode as Episode
from di_store.views import Opaque as Opaque
from di_store.views import Sequence as Sequence
from di_store.views import Step as Step
from di_store.views import Transition as Transition
from di_store.weights import Published as Published
from di_store.writer import Writer as Writer

__version__ = "0.1.0"
