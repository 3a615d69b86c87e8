"""The house rules: arrows, sizes and names. The tables on top are meant to be edited; the checks below are not."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tidy_scan

ROOT = Path(__file__).resolve().parent.parent

# Arrows point down: a module may import from lower rows and, where no circle arises, from its own folder and row.
# A name stands for the module or folder src/di_store/<name>. Imports inside functions and under TYPE_CHECKING count.
PYTHON_LAYERS = [
    ["_core", "_version"],
    ["base"],
    ["columns", "runtime"],
    ["policy", "session"],
    ["layout", "objects"],
    ["replay"],
    ["observe", "checkpoint", "protocol"],
    ["store", "sizing"],
    ["client", "broadcast"],
    ["server"],
    ["cluster"],
    ["compat"],
    ["__init__"],
    ["adapters", "dashboard", "demo", "workloads"],
    ["cli"],
    ["__main__"],
]

# Folders that use the package as any program does.
OUTSIDE = ("adapters", "cli", "dashboard", "demo", "workloads")
# What these may import beside `di_store` itself and each other: the holder of a served store; sizes, errors and trees;
# stores of several machines; the classes of what users choose; the stores of a machine; what tables need; what tells of
# a store.
OPEN_TO_ALL = ("server", "base", "cluster", "policy", "store", "sizing", "observe", "_version")

# Folders of native/, from the bottom. A header or source includes its own folder and those below.
NATIVE_LAYERS = [
    ["base"],
    ["os"],
    ["process"],
    ["heap"],
    ["tier"],
    ["attach", "net"],
    ["objects", "rows"],
    ["replay"],
    ["maintenance", "snapshot"],
    ["bindings"],
]
# Arrows of a source that point up all the same, each with its reason.
NATIVE_UP = {
    ("process", "heap"): "a ledger without a free entry asks the heap for one more block",
    ("replay", "maintenance"): "a writer that finds no stream free first settles those of the dead",
}

# What the contract lists of the handles that users have. These may have more methods than other classes, as each only
# passes a call on.
PUBLIC_METHODS = {
    "Store": set(
        "close resize stats check sync checkpoint put reserve get put_many get_many wait contains delete keys publish "
        "latest create_table import_table table drop_table writer mix aio name address".split()
    ),
    "Table": set(
        "writer insert extend sample update_priorities peek keys delete reset resize configure finish stats "
        "update evicted incomplete export loader ack give_back aio name schema capacity view sampler at "
        "positions".split()
    ),
}
# A handle's backends have a method for each of its calls.
BACKENDS = {
    *("TableBackend", "LocalTable", "RemoteTable", "ShardedTable"),
    *("StoreBackend", "LocalStore", "RemoteStore", "NodeStore"),
}
# Classes that are still larger than they should be: how many methods each may have, so that the number can only fall.
LARGE = {"Harness": 29}
# Classes that each kind of processor has another form of.
ALTERNATIVES = {"Cpu"}
MAX_FILE, MAX_FUNCTION, MAX_METHODS, MAX_HANDLE_METHODS, MAX_KEYWORDS = 500, 60, 25, 40, 8
MAX_RESULT_BYTES, MAX_WORKLOADS_LINES = 102_500, 1_610
MAX_BENCH_LINES = 9_600  # of which each adapter has a file of up to 150
KEYWORDS_BY_CONTRACT = {"Sequence": 10}  # what api.md gives it
# A line for each keyword in signature, docstring and call.
LINES_BY_CONTRACT = {"open": 70}

# Split, so that this file doesn't hold what it forbids.
BANNED = {
    "a path of one machine": r"/wor" + r"k/|/roo" + r"t/|/hom" + r"e/\w|/tmp/brie" + r"f|/tmp/ven" + r"v-",
    "the name of a tool that users don't have": r"\bfar" + r"m-\w",
    "a note to oneself instead of the work": r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b",
}
HIDDEN = {"__pycache__", ".ruff_cache", ".mypy_cache", ".pytest_cache", ".hypothesis", "results", "golden"}
FOLDERS = ("src", "native", "tests", "bench", "tools", "examples", "docs", "deploy", ".ci")
TEXT = {".py", ".pyi", ".cc", ".h", ".sh", ".md", ".toml", ".txt", ".yaml", ".yml", ".cmake", ".sbatch", ""}


@pytest.fixture(autouse=True, scope="module")
def _no_collector() -> Iterator[None]:
    """Without the garbage collector, which would look again and again at a million nodes of syntax trees."""
    gc.disable()
    yield
    tidy_scan.nodes_of.cache_clear()
    gc.enable()


def _files(*suffixes: str, under: tuple[str, ...] = FOLDERS) -> list[Path]:
    return [
        path
        for folder in under
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and path.suffix in suffixes and not HIDDEN & set(path.parts)
    ]


def _lines(folder: str) -> int:
    """Of all Python files below a folder."""
    return sum(len(path.read_text().splitlines()) for path in _files(".py", under=(folder,)))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _rows(layers: list[list[str]]) -> dict[str, int]:
    return {name: row for row, names in enumerate(layers) for name in names}


def _circle(arrows: dict[str, set[str]]) -> list[str]:
    """One circle of the graph, or []."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return path[path.index(node) :] + [node]
        if node in done:
            return []
        for target in sorted(arrows.get(node, ())):
            if found := walk(target, path + [node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(arrows) if (found := walk(node, []))), [])


def _up(arrows: dict[str, set[str]], layers: list[list[str]]) -> list[str]:
    rows = _rows(layers)
    unknown = sorted((set(arrows) | {t for ts in arrows.values() for t in ts}) - set(rows))
    return [f"{name}: not in the table of layers" for name in unknown] + [
        f"{name} -> {target} points up"
        for name, targets in arrows.items()
        for target in sorted(targets)
        if rows.get(name, 0) < rows.get(target, 0)
    ]


def _arrow_faults(arrows: dict[str, set[str]], layers: list[list[str]]) -> list[str]:
    circle = _circle(arrows)
    return _up(arrows, layers) + ([f"circle: {' -> '.join(circle)}"] if circle else [])


def test_python_packages_import_only_downwards() -> None:
    """Folders of the package import only downwards, and its modules make no circle."""
    folders: dict[str, set[str]] = {}
    modules: dict[str, set[str]] = {}
    package = ROOT / "src/di_store"
    known = {
        ".".join(path.relative_to(package).with_suffix("").parts): path
        for path in _files(".py", under=("src/di_store",))
    }
    for name, path in known.items():
        imported = tidy_scan.package_imports(path, name.count(".") + 1)
        folder = name.partition(".")[0]
        folders.setdefault(folder, set()).update({each.partition(".")[0] for each in imported} - {folder})
        modules[name] = {each for each in imported if each in known} - {name}
    assert folders, "no module found"
    assert not (faults := _arrow_faults(folders, PYTHON_LAYERS)), "\n".join(faults)
    assert not (circle := _circle(modules)), " -> ".join(circle)


def test_only_the_package_knows_the_core() -> None:
    """The command line and the programs beside it use what others can use: they import nothing with an underscore."""
    faults = [
        f"{_name(path)}: {name}"
        for path in _files(".py", under=tuple(f"src/di_store/{folder}" for folder in OUTSIDE))
        for name in tidy_scan.private_imports(path)
    ]
    assert not faults, "\n".join(faults)


def test_private_names_stay_in_their_package() -> None:
    """No folder of the package uses a name with an underscore of another folder: no import, no attribute."""
    package = ROOT / "src/di_store"
    folders: dict[str, list[Path]] = {}
    for path in _files(".py", under=("src/di_store",)):
        parts = path.relative_to(package).parts
        folders.setdefault(parts[0] if len(parts) > 1 else "", []).append(path)
    faults = []
    for folder, paths in folders.items():
        own = set().union(*(tidy_scan.private_definitions(path) for path in paths))
        for path in paths:
            faults += [
                f"{_name(path)}:{line}: {name}"
                for line, name in tidy_scan.private_uses(path)
                if name.rpartition(".")[2] not in own
            ]
            faults += [
                f"{_name(path)}: {name}"
                for name in tidy_scan.private_imports(path)
                if not name.startswith(("di_store._core", "di_store._version", f"di_store.{folder}."))
            ]
    assert not faults, "\n".join(faults)


def test_programs_use_only_the_public_api() -> None:
    """The command line, the demo and the loads reach into no part of the package that handles are made of."""
    package = ROOT / "src/di_store"
    rooms = {path.stem for path in package.iterdir()} - {*OPEN_TO_ALL, *OUTSIDE}
    faults = [
        f"{_name(path)}: {name}"
        for path in _files(".py", under=tuple(f"src/di_store/{folder}" for folder in OUTSIDE))
        for name in sorted(tidy_scan.package_imports(path, len(path.relative_to(package).parts)))
        if name.partition(".")[0] in rooms
    ]
    assert not faults, "\n".join(faults)


def _native_folder(path: Path) -> str:
    return path.relative_to(ROOT / "native").parts[0]


def _includes(suffix: str) -> dict[str, set[str]]:
    arrows: dict[str, set[str]] = {}
    for path in _files(suffix, under=("native",)):
        folder = _native_folder(path)
        included = re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M)
        arrows.setdefault(folder, set()).update({name.partition("/")[0] for name in included} - {folder})
    assert arrows, f"no native {suffix} found"
    return arrows


def test_native_folders_include_only_downwards() -> None:
    """Folders include only downwards; sources too, but for the arrows that are listed with a reason."""
    sources = _includes(".cc")
    unused = [pair for pair in NATIVE_UP if pair[1] not in sources.get(pair[0], set())]
    for name, target in NATIVE_UP:
        sources.get(name, set()).discard(target)
    faults = _arrow_faults(_includes(".h"), NATIVE_LAYERS) + _up(sources, NATIVE_LAYERS)
    assert not faults, "\n".join(faults)
    headers = {
        str(path.relative_to(ROOT / "native")): set(re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M))
        for path in _files(".h", under=("native",))
    }
    assert not (circle := _circle(headers)), " -> ".join(circle)
    assert not unused, f"no longer needed in NATIVE_UP: {unused}"


def test_files_include_the_headers_they_use() -> None:
    """Also of the headers that every build parses once and gives to all files (CMakeLists.txt)."""
    texts = {
        str(path.relative_to(ROOT / "native")): path.read_text() for path in _files(".h", ".cc", under=("native",))
    }

    def seen_by(name: str, passed: set[str]) -> set[str]:
        passed.add(name)
        found = set(re.findall(r"^#include <(\w+)>", texts[name], re.M))
        for other in re.findall(r'^#include "([^"]+)"', texts[name], re.M):
            found |= seen_by(other, passed) if other not in passed else set()
        return found

    names = "span function map mutex optional set string unordered_map vector"
    of = {name: name for name in names.split()} | {
        "function": "functional",
        "unique_ptr": "memory",
        "sort": "algorithm",
    }
    wanted = re.compile(rf"std::({'|'.join(of)})\b")
    faults = [
        f"{name}: {header}"
        for name, text in texts.items()
        for header in sorted({of[found] for found in wanted.findall(text)} - seen_by(name, set()))
    ]
    assert not faults, faults


def test_no_cached_property_is_used() -> None:
    """No functools.cached_property: until Python 3.11 it holds a lock, which a forked child may inherit taken."""
    word = "cached" + "_property"
    faults = [
        _name(path)
        for path in _files(".py", under=("src",))
        if re.search(rf"(import|functools\.)[^#\n]*\b{word}\b", path.read_text())
    ]
    assert not faults, faults


def test_only_bindings_know_python() -> None:
    """The core is free of Python: only bindings/ may include its headers."""
    faults = [
        _name(path)
        for path in _files(".cc", ".h", under=("native",))
        if _native_folder(path) != "bindings"
        and re.search(r"#\s*include\s*<(Python\.h|nanobind|numpy)", path.read_text())
    ]
    assert not faults, faults


def test_the_core_imports_no_di_store_module() -> None:
    """The package hands over what the core calls: see `_core.set_python`."""
    faults = [_name(path) for path in _files(".cc", ".h", under=("native",)) if "PyImport_" in path.read_text()]
    assert not faults, faults


def test_only_os_calls_the_system() -> None:
    """One seam to the system: no other file of the core includes its headers."""
    header = r"#\s*include\s*<(sys/|linux/|unistd\.h|fcntl\.h|signal\.h|dirent\.h|pthread\.h|csignal)"
    faults = [
        f"{_name(path)}: {found.group()}"
        for path in _files(".cc", ".h", under=("native",))
        if _native_folder(path) != "os" and (found := re.search(header, path.read_text()))
    ]
    assert not faults, "\n".join(faults)


def test_source_files_are_short() -> None:
    """No source file is longer than 500 lines."""
    sizes = {_name(path): len(path.read_text().splitlines()) for path in _files(".py", ".pyi", ".cc", ".h", ".sh")}
    faults = {name: size for name, size in sizes.items() if size > MAX_FILE and not name.endswith("_core.pyi")}
    assert sizes
    assert not faults, faults


def test_benchmarks_are_small() -> None:
    """The benchmarks beside the package do not grow back."""
    assert 0 < _lines("bench") <= MAX_BENCH_LINES


def test_workloads_are_small() -> None:
    """`di-store bench` is a small part of the package, and the package without it twice as long as all benchmarks."""
    workloads = _lines("src/di_store/workloads")
    assert 0 < workloads <= MAX_WORKLOADS_LINES
    assert _lines("src") - workloads >= 2 * (workloads + _lines("bench"))


def test_results_are_small_and_shown() -> None:
    """All result files of the repository are small together, and some page names each of them."""
    git = subprocess.run(["git", "ls-files", "bench/results"], cwd=ROOT, capture_output=True, text=True, check=False)
    tracked = {ROOT / name for name in git.stdout.splitlines()}  # none in a copy without git; others are runs of users
    results = [path for path in (ROOT / "bench/results").iterdir() if path in tracked or not tracked]
    assert results, "no result found"
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]
    shown = "".join(page.read_text() for page in pages)
    assert not (unnamed := [path.name for path in results if path.name not in shown]), unnamed
    assert sum(path.stat().st_size for path in results) <= MAX_RESULT_BYTES


def test_functions_are_short() -> None:
    """No function is longer than 60 lines."""
    functions = [
        (_name(path), name, lines)
        for path in _files(".py", ".cc", ".h")
        for name, lines in (tidy_scan.python_functions if path.suffix == ".py" else tidy_scan.native_functions)(path)
    ]
    assert any(name.endswith(".cc") for name, _, _ in functions), "no native function found"
    faults = [
        f"{path}: {name} has {lines} lines"
        for path, name, lines in functions
        if lines > LINES_BY_CONTRACT.get(name, MAX_FUNCTION)
    ]
    assert not faults, "\n".join(faults)


def test_classes_are_small() -> None:
    """No class has more than 25 methods, all counted (handles 40); Store and Table offer what the contract says."""
    faults, largest = [], dict.fromkeys(LARGE, 0)
    for path in _files(".py", ".cc", ".h"):
        scan = tidy_scan.python_classes if path.suffix == ".py" else tidy_scan.native_classes
        for name, methods in scan(path):
            handles = path.is_relative_to(ROOT / "src") and "adapters" not in path.parts  # these have others' names
            if handles and name in PUBLIC_METHODS:
                more = {method for method in methods if not method.startswith("_")} - PUBLIC_METHODS[name]
                faults += [f"{name}.{method} is not in the contract" for method in more]
            if name in LARGE:
                largest[name] = max(largest[name], len(methods))
            elif len(methods) > (MAX_HANDLE_METHODS if name in PUBLIC_METHODS or name in BACKENDS else MAX_METHODS):
                faults.append(f"{_name(path)}: {name} has {len(methods)} methods")
    assert not faults, "\n".join(faults)
    assert largest == LARGE, "a class has grown, or its ceiling can come down"


def test_core_classes_have_names_of_their_own() -> None:
    """Also one that lies in a class or a function: a name that stands for two things is read twice."""
    places: dict[str, list[str]] = {}
    for path in _files(".cc", ".h", under=("native",)):
        for name in tidy_scan.native_class_names(path):
            places.setdefault(name, []).append(_name(path))
    assert len(places) > 100
    faults = {name: at for name, at in places.items() if len(at) > 1 and name not in ALTERNATIVES}
    assert not faults, faults


def test_calls_have_few_keywords() -> None:
    """No constructor or public function has more than 8 keywords; an adapter's, with `store` and `table`, 10."""
    faults = [
        f"{_name(path)}: {name} has {number} keywords"
        for path in _files(".py", under=("src",))
        for name, number in tidy_scan.python_keywords(path)
        if number > KEYWORDS_BY_CONTRACT.get(name.rpartition(".")[2], MAX_KEYWORDS + 2 * ("adapters" in path.parts))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("what", BANNED)
def test_no_banned_word_is_used(what: str) -> None:
    """Nothing names one machine, a tool of one workplace, or work left undone."""
    top = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in TEXT]
    paths = _files(*TEXT) + [path for path in top if path.name != ".git"]  # a file in a linked work tree: not ours
    faults = [
        f"{_name(path)}:{number}: {line.strip()[:100]}"
        for path in paths
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if re.search(BANNED[what], line)
    ]
    assert len(paths) > 20
    assert not faults, f"{what}:\n" + "\n".join(faults)


def test_tests_wait_for_conditions() -> None:
    """No sleep as synchronisation and no mock of what can run, anywhere under tests."""
    faults = [
        f"{_name(path)}:{line}: {what}"
        for path in _files(".py", under=("tests",))
        for line, what in tidy_scan.sleeps_and_mocks(path)
    ]
    assert not faults, "\n".join(faults)


def test_asserts_only_narrow_types() -> None:
    """What a program checks or reads, it does under ``python -O`` too."""
    paths = _files(".py", under=("src", "bench", "tools"))
    faults = [f"{_name(path)}:{line}: {what}" for path in paths for line, what in tidy_scan.asserts_that_check(path)]
    assert len(paths) > 20
    assert not faults, "\n".join(faults)


def test_package_is_typed() -> None:
    """The package ships its types, and the stub names what the module holds and nothing else."""
    import di_store._core as core

    package = ROOT / "src/di_store"
    assert (package / "py.typed").exists()
    stub = tidy_scan.stub_names(package / "_core.pyi")
    real = {name for name in dir(core) if not name.startswith("_")}
    assert set(stub) == real, f"only in stub {set(stub) - real}, only in module {real - set(stub)}"
    for name, members in stub.items():
        if members is None:
            continue
        own = {key for key in vars(getattr(core, name)) if not key.startswith("_")}
        assert members == own, f"{name}: only in stub {members - own}, only in module {own - members}"


def test_the_stub_of_the_core_is_generated(tmp_path: Path) -> None:
    """`make stubs` leaves it as it is: the signatures stand in native/bindings."""
    import di_store._core as core

    assert core.HAS_FAULTS, "the stub is that of a build with fault points: make build"
    fresh = tmp_path / "core.pyi"
    arguments = ["-q", "-m", "di_store._core", "-p", str(ROOT / "tools/core_stub.pat"), "-o", str(fresh)]
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", *arguments], check=True)
    kept = (ROOT / "src/di_store/_core.pyi").read_text()
    assert _statements(kept) == _statements(fresh.read_text()), "run `make stubs`"


def _statements(stub: str) -> list[str]:
    """What a stub says, without the order and the grouping of its imports."""
    return [ast.unparse(node) for node in ast.parse(stub).body if not isinstance(node, (ast.Import, ast.ImportFrom))]


def test_the_import_check_finds_upward_imports() -> None:
    """The check itself finds an arrow that points up, a name without a row, and a circle."""
    faults = _arrow_faults({"os": {"heap"}, "rows": {"objects"}, "objects": {"rows"}, "odd": set()}, NATIVE_LAYERS)
    assert [fault.partition(":")[0] for fault in faults] == ["odd", "os -> heap points up", "circle"]
