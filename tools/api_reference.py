"""Makes docs/api.md from the docstrings of all names that di_store exports. Parses the sources, does not import them.

tools/api_reference.py             prints the page
tools/api_reference.py --write     writes it
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "di_store"
PAGE = ROOT / "docs" / "api.md"

HEAD = """# API reference

<!-- Made by tools/api_reference.py from the docstrings: edit those. -->

Every call that can block takes `timeout` in seconds. `None` means no limit; every 30 s the log then says what the call
waits for. Sizes are bytes, or text such as `"4GiB"` and `"25%"`. Shapes are written as `[n, …]`. [views.md](views.md)
shows with programs how rows become examples.
"""
GROUPS = {
    "Stores": ["open", "attach", "connect", "list_stores", "restore", "needed_memory", "StoreInfo", "Store"],
    "Objects and weights": ["Ref", "Draft", "Published"],
    "Large trees in files": ["save", "load"],
    "The original DI-store's interface": ["Client"],
    "Tables": [
        "Table",
        "Writer",
        "Items",
        "Batch",
        "Lease",
        "Ragged",
        "Loader",
        "Mixture",
        "Exported",
        "IncompleteGroup",
        "GoneKey",
    ],
    "Columns": ["Spec"],
    "Views": ["Step", "Opaque", "Transition", "Sequence", "Episode", "Group"],
    "Samplers and removers": ["Uniform", "Fifo", "Lifo", "MinHeap", "MaxHeap", "Prioritized", "Once"],
    "Compression": ["Compress"],
    "Limiters": ["MinSize", "SamplesPerInsert", "Band", "Queue", "Stack", "Pace"],
}
MADE_BY_OTHERS = {
    "Store",
    "Draft",
    "Table",
    "Writer",
    "Items",
    "Batch",
    "Ragged",
    "Loader",
    "Mixture",
    "Published",
    "StoreInfo",
    "Exported",
    "IncompleteGroup",
    "GoneKey",
}
SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields")
WIDTH = 120

Node = ast.FunctionDef | ast.ClassDef


def exported() -> dict[str, Path]:
    """Name and file of everything that `__init__` exports."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    return {
        alias.asname: PACKAGE / f"{(node.module or '').partition('.')[2].replace('.', '/')}.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("di_store.")
        for alias in node.names
        if alias.asname is not None  # else it is used there, and not exported
    }


def definition(path: Path, name: str) -> Node:
    """The class or function of that name."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return node
    raise SystemExit(f"{path.name} defines no {name}")


def arguments(node: ast.FunctionDef, method: bool) -> str:
    """The signature as text, without the annotations of arguments: their text says the types."""
    spec = node.args
    names = [arg.arg for arg in spec.posonlyargs + spec.args]
    defaults = [ast.unparse(value) for value in spec.defaults]
    parts = names[: len(names) - len(defaults)]
    parts += [f"{name}={value}" for name, value in zip(names[len(parts) :], defaults, strict=True)]
    if method and parts[:1] in (["self"], ["cls"]):
        parts = parts[1:]
    if spec.kwonlyargs:
        parts.append("*")
        for arg, value in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            parts.append(arg.arg if value is None else f"{arg.arg}={ast.unparse(value)}")
    if spec.kwarg is not None:
        parts.append(f"**{spec.kwarg.arg}")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    text = f"({', '.join(parts)}){returns}".replace("'", '"')
    return re.sub(r"\b(NOT_GIVEN|_UNCHANGED)\b", "…", text)


def fields(node: ast.ClassDef) -> str:
    """The arguments of a dataclass's constructor, as text."""
    parts = []
    for item in node.body:
        if (
            isinstance(item, ast.AnnAssign)
            and isinstance(item.target, ast.Name)
            and "ClassVar" not in ast.unparse(item)
        ):
            value = _default(item.value)
            if value is not None and item.target.id != "future":
                parts.append(item.target.id + (f"={value}" if value else ""))
    return f"({', '.join(parts)})".replace("'", '"')


def _default(value: ast.expr | None) -> str | None:
    """The default as text; "": there is none."""
    if value is None:
        return ""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
        found = {word.arg: word.value for word in value.keywords}
        return ast.unparse(found["default"]) if "default" in found else ""
    return ast.unparse(value)


def wrap(text: str, first: str = "", rest: str = "") -> str:
    """Text wrapped to lines of the page; `first` and `rest`: indents of the first line and of the others."""
    joined = re.sub(r"``([^`]+)``", r"`\1`", " ".join(text.split()))
    return textwrap.fill(
        joined, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def described(doc: str) -> list[str]:
    """A docstring as Markdown: paragraphs, and a list for each section."""
    out: list[str] = []
    section = ""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(doc)):
        lines = block.split("\n")
        if lines[0].rstrip(":") in SECTIONS and lines[0].endswith(":"):
            section = lines[0].rstrip(":")
            out += [f"{section}:", ""] + _entries(textwrap.dedent("\n".join(lines[1:])), section) + [""]
        elif any(line.startswith(("* ", "- ")) for line in lines):
            out += lines + [""]
        else:
            out += [wrap(block), ""]
    return out


def _entries(text: str, section: str) -> list[str]:
    entries: list[str] = []
    if section == "Raises":  # its text is wrapped: an entry begins at each error's name followed by a colon
        joined = " ".join(text.split())
        text = re.sub(r"(?<=[.;]) (?=(?:[A-Z][A-Za-z]+, )*[A-Z][A-Za-z]+: )", "\n", joined)
    for line in text.split("\n"):
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        else:
            entries.append(line)
    named = re.compile(r"([\w, *]+): (.*)", re.S)
    out = []
    for entry in entries:
        found = named.fullmatch(entry) if section != "Returns" else None
        text = f"`{found[1]}`: {found[2]}" if found and len(found[1]) < 60 else entry
        out.append(wrap(text, "- ", "  "))
    return out


def class_page(node: ast.ClassDef, name: str) -> list[str]:
    """The part of the page about one class: its constructor, its docstring, its methods."""
    decorators = " ".join(ast.unparse(item) for item in node.decorator_list)
    made = "" if name in MADE_BY_OTHERS else fields(node) if "dataclass" in decorators else _constructor(node)
    out = [f"### `{name}{made}`", "", *described(ast.get_docstring(node) or "")]
    for item in node.body:
        if not isinstance(item, ast.FunctionDef) or item.name.startswith("_"):
            continue
        doc = ast.get_docstring(item)
        marks = " ".join(ast.unparse(mark) for mark in item.decorator_list)
        if doc is None or "setter" in marks or (name in VALUES and item.name in INTERNAL):
            continue
        owner = name if "classmethod" in marks or "staticmethod" in marks else name.lower()
        call = "" if "property" in marks else arguments(item, method=True)
        out += [f"#### `{owner}.{item.name}{call}`", "", *described(doc)]
    return out


VALUES = {*GROUPS["Views"], *GROUPS["Limiters"], "Writer"}
INTERNAL = {"outputs", "rows_added", "rows_spanned", "steps_spanned", "bounds"}


def _constructor(node: ast.ClassDef) -> str:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__" and node.name != "Ref":
            return arguments(item, method=True).partition(" -> ")[0]
    return ""


def errors_page(path: Path, names: list[str]) -> list[str]:
    """The table of errors: meaning and remedy of each."""
    out = [
        "## Errors",
        "",
        "`ValueError` and `TypeError` stand for bad arguments; all others are a `StoreError`. Every text",
    ]
    out += ["ends with what helps.", "", "| error | means | helps |", "|---|---|---|"]
    nodes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and node.name in names]
    for node in nodes:
        remedy = ""
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and ast.unparse(item.target) == "default_remedy" and item.value:
                remedy = str(ast.literal_eval(item.value))
        doc = (ast.get_docstring(node) or "").split("\n\n")[0]
        out.append(f"| `{node.name}` | {' '.join(doc.split())} | {remedy.replace('|', '')} |")
    return [*out, "", "`Timeout` is a `TimeoutError` too; it has `reason` and `culprit`.", ""]


def page() -> str:
    """The whole page."""
    where = exported()
    errors = [name for name, path in where.items() if path.name == "errors.py"]
    if missing := set(where) - set(errors) - {name for names in GROUPS.values() for name in names}:
        raise SystemExit(f"no group for {sorted(missing)}")
    out = [HEAD]
    for group, names in GROUPS.items():
        out += [f"## {group}", ""]
        for name in names:
            node = definition(where[name], name)
            if isinstance(node, ast.FunctionDef):
                out += [f"### `di_store.{name}{arguments(node, method=False)}`", ""]
                out += described(ast.get_docstring(node) or "")
            else:
                out += class_page(node, name)
    out += errors_page(PACKAGE / "base" / "errors.py", errors)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).rstrip() + "\n"


def main() -> int:
    """Print the page or write it; returns the exit status."""
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page())
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
