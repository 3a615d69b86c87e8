"""Typed statistics of a store, for programs that show them: the command line, dashboards, exporters.

`Store.stats()` and `Table.stats()` return all figures (`StoreStats`, `TableStats`). `report` selects the figures that
people look at, `reports` makes those of all stores of this machine. `Rates` adds changes per second between two
reports, and `explain` turns states into sentences. `why.Samples` says why a job is slow. `serve_metrics` is for
Prometheus, `log_to` for TensorBoard, Weights & Biases and others.
"""

from typing import TYPE_CHECKING, Any

from di_store.columns.column import range_text as range_text
from di_store.columns.column import shape_text as shape_text
from di_store.observe.explain import limiter_text as limiter_text
from di_store.observe.explain import process_state as process_state
from di_store.observe.explain import wait_text as wait_text
from di_store.observe.machine import reports as reports
from di_store.observe.processes import PinReport as PinReport
from di_store.observe.processes import ProcessReport as ProcessReport
from di_store.observe.processes import processes as processes
from di_store.observe.rates import Rates as Rates
from di_store.observe.report import ClientReport as ClientReport
from di_store.observe.report import MemoryReport as MemoryReport
from di_store.observe.report import StoreReport as StoreReport
from di_store.observe.report import TableReport as TableReport
from di_store.observe.report import WaiterReport as WaiterReport
from di_store.observe.report import report as report
from di_store.observe.report import unreadable as unreadable
from di_store.observe.stats import ClientStats as ClientStats
from di_store.observe.stats import DiskStats as DiskStats
from di_store.observe.stats import StoreStats as StoreStats
from di_store.observe.stats import WaiterStats as WaiterStats
from di_store.observe.stats import store_stats as store_stats
from di_store.replay.browse import ItemFacts as ItemFacts
from di_store.replay.browse import Output as Output
from di_store.replay.browse import ages_of as ages_of
from di_store.replay.browse import columns_of as columns_of
from di_store.replay.browse import episode_keys as episode_keys
from di_store.replay.browse import evenly as evenly
from di_store.replay.browse import facts_in as facts_in
from di_store.replay.browse import facts_of as facts_of
from di_store.replay.browse import oldest as oldest
from di_store.replay.browse import outputs_of as outputs_of
from di_store.replay.browse import spread_by_age as spread_by_age
from di_store.replay.browse import spread_keys as spread_keys
from di_store.replay.browse import variable_bytes as variable_bytes
from di_store.replay.stats import LimiterStats as LimiterStats
from di_store.replay.stats import TableStats as TableStats

if TYPE_CHECKING:
    from di_store.observe.metrics_server import MetricsServer as MetricsServer
    from di_store.observe.metrics_server import serve_metrics as serve_metrics
    from di_store.observe.scalars import ScalarLog as ScalarLog
    from di_store.observe.scalars import log_to as log_to


def __getattr__(name: str) -> Any:  # with HTTP and threads, for those who need them
    if name in ("MetricsServer", "serve_metrics"):
        from di_store.observe import metrics_server

        return getattr(metrics_server, name)
    if name in ("ScalarLog", "log_to"):
        from di_store.observe import scalars

        return getattr(scalars, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
