"""What every test gets: a folder of its own for stores, a scale, and processes that end with the test.

DI_STORE_TEST_SCALE chooses between "small" (make test) and "full" (make full, make soak). With DI_STORE_TEST_DROP
every store has a disk, and what is read lies there alone (make dropped). With DI_STORE_TEST_FAR, "tcp" or "tls", every
store is reached through an agent; with "cluster", it is the node of a cluster, and with "sharded" every table lies in
parts (make far).
"""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

SCALE = os.environ.get("DI_STORE_TEST_SCALE", "small")
if SCALE not in ("small", "full"):
    raise pytest.UsageError(f"DI_STORE_TEST_SCALE must be small or full, not {SCALE!r}")

DROPPED = "DI_STORE_TEST_DROP" in os.environ
FAR = os.environ.get("DI_STORE_TEST_FAR")

# Files that take more than about 15 s, longest first: what began last would run alone at the end, beside idle workers.
# `--junitxml` tells how long each takes.
LONGEST = (
    "recipes conformance demo_runs disk_kills shard_deadlines ray known_versions taken_over session_marks "
    "refused_connections lost_nodes mishaps supervisor inspecting_commands model_based client_deadlines store_links "
    "chain etcd disk_room store_beside sb3 odd_calls soak examples deploy moved raw_blocks failed_allocations export "
    "loads shares waits exit"
).split()
# Folders whose tests mostly wait for other processes.
WAITING = ("broadcast", "checkpoint", "client", "cluster", "crash", "server")
QUIET = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture]
hypothesis.settings.register_profile(
    "small", max_examples=25, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=QUIET
)
hypothesis.settings.register_profile(
    "full", max_examples=1_000, stateful_step_count=100, deadline=None, print_blob=True, suppress_health_check=QUIET
)
hypothesis.settings.load_profile(SCALE)


def pytest_configure(config: pytest.Config) -> None:
    """Set the folder before any test module is imported: a short path, since Unix sockets allow 107 bytes."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script has started this in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads spin while they wait for one without a processor
    if "DI_STORE_TEST_ROOT" not in os.environ:
        root = tempfile.mkdtemp(prefix="ds-")
        os.environ["DI_STORE_TEST_ROOT"] = root
        config.add_cleanup(lambda: shutil.rmtree(root, ignore_errors=True))
    if DROPPED and "DI_STORE_TEST_DISK" not in os.environ:
        disk = tempfile.mkdtemp(prefix="dd-")
        os.chmod(disk, 0o1777)  # some tests have programs of other users
        os.environ["DI_STORE_TEST_DISK"] = disk
        config.add_cleanup(lambda: shutil.rmtree(disk, ignore_errors=True))
    if FAR:
        from cluster.far import install

        install(FAR)
    stores = os.path.join(os.environ["DI_STORE_TEST_ROOT"], "stores")
    os.makedirs(stores, mode=0o700, exist_ok=True)
    os.environ["DI_STORE_DIR"] = stores
    # A raylet that gets no processor for long is not taken for dead. One that is killed refuses connections.
    os.environ["RAY_health_check_timeout_ms"] = "120000"  # noqa: SIM112 Ray spells it so
    # Ray's workers run at nice 15, which beside busy processes means that they don't run.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    os.environ["SB3_LOGDIR"] = os.path.join(os.environ["DI_STORE_TEST_ROOT"], "sb3")  # else a folder in /tmp for each


def pytest_report_header() -> str:
    """Name the scale, so that a log says what ran."""
    return f"di-store: scale {SCALE}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file that `make test` runs nothing of: these import whole frameworks, in every worker."""
    if config.getoption("markexpr") != "not extended" or collection_path.suffix != ".py":
        return None
    return "\npytestmark = pytest.mark.extended\n" in collection_path.read_text() or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of another scale, or of stores without a disk; they are counted as deselected, not skipped."""
    others = ["long"] * (SCALE != "full") + ["memory_only"] * DROPPED
    left = {item for item in items if any(item.get_closest_marker(name) for name in others)}
    if FAR:
        from cluster.conformance import apart

        left |= set(apart(config, items))
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[int, bool]:
    """Longest files first, then those of folders whose tests mostly wait for other processes."""
    name, folder = item.path.stem.removeprefix("test_"), item.path.parent.name
    return LONGEST.index(name) if name in LONGEST else len(LONGEST), folder not in WAITING


def pytest_collection_finish() -> None:
    """Leave what was imported to no garbage collection of the tests: those looked at a million objects each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def full() -> bool:
    """Whether the full counts are wanted."""
    return SCALE == "full"


@pytest.fixture(scope="session")
def count() -> Callable[[int, int], int]:
    """`count(small, full)`: the number that fits the scale."""
    return lambda small, full: full if SCALE == "full" else small


@pytest.fixture
def store_name() -> Callable[[], str]:
    """Make names for stores that no other test, process or run uses."""
    return lambda: f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def store_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder for stores that only this test and its children use."""
    folder = tempfile.mkdtemp(dir=os.environ["DI_STORE_TEST_ROOT"])
    monkeypatch.setenv("DI_STORE_DIR", folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _no_children_left() -> Iterator[None]:
    """Kill what a test started through multiprocessing and left behind, so that it can't disturb the next."""
    before = set(mp.active_children())
    yield
    for child in set(mp.active_children()) - before:
        child.kill()
        child.join(30)


@pytest.fixture(autouse=True)
def _signals_stay() -> Iterator[None]:
    """What a test starts later inherits which signals this process ignores: such a child cannot be terminated."""
    before = _ignored()
    yield
    assert _ignored() <= before


def _ignored() -> set[int]:
    return {each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is signal.SIG_IGN}
