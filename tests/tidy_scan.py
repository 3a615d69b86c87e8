"""Readers of source text for test_tidy: Python by its own parser, C++ by braces (enough for our style, no more)."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

FunctionDef = (ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module: many tests read them."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def package_imports(path: Path, depth: int) -> set[str]:
    """Dotted names in di_store that a module imports; `depth` is 1 for src/di_store/x.py, 2 for a folder below.

    Imports inside functions and for type checkers count as all others.
    """
    names: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names |= {name.name.partition(".")[2] for name in node.names if name.name.startswith("di_store.")}
        elif isinstance(node, ast.ImportFrom):
            names |= _from_imports(node, depth)
    return names


def private_imports(path: Path) -> list[str]:
    """Names with an underscore in front that a module imports of di_store, or of a module of it that is so named."""
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module or ''}.{name.name}" for name in node.names]
            if node.level:
                names = [f"di_store.{name}" for name in names]
        else:
            continue
        for name in names:
            if re.match(r"di_store\b", name) and re.search(r"\._(?!_)", name):
                found.append(name)
    return found


STANDARD = {"_replace", "_asdict", "_fields", "_getframe", "_exit"}
"""Names with an underscore that the standard library offers to all."""


def private_uses(path: Path) -> list[tuple[int, str]]:
    """Lines with an attribute that begins with one underscore, of another object than `self` or `cls`."""
    found = []
    for node in nodes_of(path):
        if not isinstance(node, ast.Attribute) or node.attr in STANDARD or not re.match(r"_[^_]", node.attr):
            continue
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
            found.append((node.lineno, ast.unparse(node)))
    return sorted(found)


def private_definitions(path: Path) -> set[str]:
    """Names with one underscore in front that a module defines: functions, fields of `self`, variables."""
    names = set()
    for node in nodes_of(path):
        if isinstance(node, (*FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return {name for name in names if re.match(r"_[^_]", name)}


def _from_imports(node: ast.ImportFrom, depth: int) -> set[str]:
    module = node.module or ""
    if node.level == depth:
        inside = module
    elif node.level == 0 and module.split(".")[0] == "di_store":
        inside = module.partition(".")[2]
    else:
        return set()
    names = {name.name for name in node.names if name.name.islower()}
    return {inside, *(f"{inside}.{name}" for name in names)} if inside else names


def python_functions(path: Path) -> list[tuple[str, int]]:
    """Name and number of lines of every function, decorators and docstring included."""
    return [
        (node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in nodes_of(path)
        if isinstance(node, FunctionDef)
    ]


def python_spans(text: str) -> dict[str, list[tuple[int, int]]]:
    """Where functions and classes lie in the text, by dotted name, decorators included."""
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    spans: dict[str, list[tuple[int, int]]] = {}

    def visit(node: ast.AST, around: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            names = around
            if isinstance(child, (*FunctionDef, ast.ClassDef)):
                names = (*around, child.name)
                first = min([child.lineno, *(item.lineno for item in child.decorator_list)])
                end = begins[child.end_lineno or child.lineno]
                spans.setdefault(".".join(names), []).append((begins[first - 1], end))
            visit(child, names)

    visit(ast.parse(text), ())
    return spans


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    return " ".join(ast.unparse(item) for item in node.decorator_list)


def python_classes(path: Path) -> list[tuple[str, set[str]]]:
    """Name and methods of every class: private ones, properties and those of the language too."""
    return [
        (node.name, {item.name for item in node.body if isinstance(item, FunctionDef)})
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
    ]


def python_keywords(path: Path) -> list[tuple[str, int]]:
    """Name and number of keywords (arguments with a default or keyword-only) of public functions and constructors."""
    found = []
    for node in nodes_of(path):
        if isinstance(node, FunctionDef) and (not node.name.startswith("_") or node.name == "__init__"):
            found.append((node.name, len(node.args.defaults) + len(node.args.kwonlyargs)))
        elif isinstance(node, ast.ClassDef) and "dataclass" in _decorators(node):
            fields = [item for item in node.body if isinstance(item, ast.AnnAssign) and item.value is not None]
            found.append((node.name, len(fields)))
    return found


def sleeps_and_mocks(path: Path) -> list[tuple[int, str]]:
    """Lines that sleep through the time module, or import a mock."""
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
            found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and re.search(r"\bmock\b", ast.unparse(node)):
            found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "time.sleep" + "(" in node.value:
            found.append((node.lineno, "time.sleep in a program"))
    return found


def stub_names(path: Path) -> dict[str, set[str] | None]:
    """Public names of a stub; for classes their public members, else None."""
    names: dict[str, set[str] | None] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = {name for item in node.body for name in _stub_targets(item)}
        else:
            names.update(dict.fromkeys(_stub_targets(node)))
    return {name: members for name, members in names.items() if not name.startswith("_")}


def _stub_targets(node: ast.stmt) -> set[str]:
    if isinstance(node, (*FunctionDef, ast.ClassDef)):
        names = {node.name}
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        names = {node.target.id} if "TypeAlias" not in ast.unparse(node.annotation) else set()
    elif isinstance(node, ast.Assign):
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
    else:
        names = set()
    return {name for name in names if not name.startswith("_")}


# -- C++ -------------------------------------------------------------------------------------------------------------


BRACES = re.compile(r"[{}]")
ENDS = re.compile(r"[;{}]")
CLASS = r"(?<!enum )\b(?:class|struct|union)\b(?:\s+alignas\([^)]*\)|\s+[A-Z_]+\([^)]*\)|\s+DI_[A-Z_]+\b)*\s+([\w:]+)"
ACCESS = re.compile(r"\s*(?:(?:public|private|protected)\s*:(?!:)\s*)*")


def _blank(text: str) -> str:
    """The text with comments, literals and preprocessor lines blanked, lines kept."""
    pattern = r"""//[^\n]*|/\*.*?\*/|R"(?P<d>[^(]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'"""
    text = re.sub(pattern, lambda found: re.sub(r"[^\n]", " ", found.group()), text, flags=re.S)
    directive = r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*"
    return re.sub(directive, lambda found: re.sub(r"[^\n]", " ", found.group()), text, flags=re.M)


def _close(text: str, opening: int) -> int:
    """Where the brace opened at `opening` is closed."""
    depth = 0
    for found in BRACES.finditer(text, opening):
        depth += 1 if found.group() == "{" else -1
        if depth == 0:
            return found.start()
    raise ValueError(f"brace at {opening} is never closed")


def _kind(header: str) -> str:
    """What a brace after `header` opens: scope, class, function, member (of a constructor's list) or data."""
    header = header.strip()
    header = re.sub(r"^template\s*<.*?>\s*(?=class|struct|[a-z])", "", header, flags=re.S)
    if re.match(r"(inline\s+)?namespace\b|extern\s*$", header):
        return "scope"
    if re.match(r"(class|struct|union)\b", header) and not re.search(r"\)\s*(const|noexcept|override)*\s*$", header):
        return "class"
    if header.startswith("enum") or "(" not in header or re.search(r"(?<![=!<>])=(?!=)\s*[^()]*(\[.*)?$", header, re.S):
        return "data"
    if re.search(r"\)\s*(noexcept\s*)?:[^:].*[\w>]$", header, re.S) and not re.search(r"[)}]\s*$", header):
        return "member"
    return "function"


def _regions(text: str, start: int, end: int) -> Iterator[tuple[str, str, int, int, int]]:
    """(kind, header, begin, opening, close) of what opens a brace between start and end, scopes and classes entered."""
    begin = at = start
    while mark := ENDS.search(text, at, end):
        at = mark.start()
        if mark.group() != "{":
            begin = at + 1
        else:
            begin += len(ACCESS.match(text[begin:at]).group())  # type: ignore[union-attr]  # it matches anything
            header, close = text[begin:at].strip(), _close(text, at)
            kind = _kind(header)
            if kind != "member":
                yield kind, header, begin, at, close
                if kind in ("scope", "class"):
                    yield from _regions(text, at + 1, close)
                if kind in ("scope", "function"):
                    begin = close + 1
            at = close
        at += 1


def _function_name(header: str) -> str:
    header = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", header)
    name = re.search(r"([\w:~]+|operator\W+)\s*\(", header)
    return name.group(1) if name else header


def _class_name(header: str) -> str:
    """Of a class or struct; "" if it has none."""
    name = re.search(CLASS, re.sub(r"^template\s*<.*?>\s*(?=class|struct)", "", header, flags=re.S))
    return name.group(1) if name else ""


def native_functions(path: Path) -> list[tuple[str, int]]:
    """Name and number of lines of every function with a body."""
    text = _blank(path.read_text())
    return [
        (_function_name(header), text.count("\n", begin, close) + 1)
        for kind, header, begin, _, close in _regions(text, 0, len(text))
        if kind == "function"
    ]


def native_class_names(path: Path) -> list[str]:
    """The last part of the name of every class, struct and union that is defined, also in a class or a function."""
    body = r"(?:\s+final)?(?:\s*:\s[^;{}()]*)?\s*\{"
    return [name.rpartition("::")[2] for name in re.findall(CLASS + body, _blank(path.read_text()))]


def native_spans(text: str) -> dict[str, list[tuple[int, int]]]:
    """Where functions with a body and classes lie in the text, by name without namespaces; several for overloads."""
    text = _blank(text)
    spans: dict[str, list[tuple[int, int]]] = {}
    around: list[tuple[int, str]] = []
    for kind, header, begin, _, close in _regions(text, 0, len(text)):
        while around and around[-1][0] < begin:
            around.pop()
        if kind == "class":
            around.append((close, _class_name(header)))
            name = "::".join(title for _, title in around)
        elif kind == "function":
            name = "::".join([*(title for _, title in around), _function_name(header)])
        else:
            continue
        spans.setdefault(name, []).append((begin, close + 1))
    return spans


def native_classes(path: Path) -> list[tuple[str, set[str]]]:
    """Name and methods of every class and struct: private ones and accessors too, no constructors and operators."""
    text = _blank(path.read_text())
    found = []
    for kind, header, _, opening, close in _regions(text, 0, len(text)):
        if kind != "class":
            continue
        if title := _class_name(header):
            found.append((title, _methods(_surface(text[opening + 1 : close]), title.rpartition("::")[2])))
    return found


def _surface(body: str) -> str:
    """A class body without what lies between inner braces."""
    pieces, at = [], 0
    while (opening := body.find("{", at)) >= 0:
        pieces.append(body[at:opening] + "{;")
        at = _close(body, opening) + 1
    return "".join([*pieces, body[at:]])


def _methods(body: str, name: str) -> set[str]:
    methods = set()
    for piece in re.split(r"[;{]|\b(?:public|private|protected)\s*:(?!:)", body):
        if piece.lstrip().startswith(",") or re.search(r"\b(using|friend|static_assert|operator)\b", piece):
            continue
        piece = re.sub(
            r"\b(alignas|DI_[A-Z_]+|noexcept|decltype|explicit)\s*\([^()]*\)", "", re.sub(r"<[^<>]*>", "", piece)
        )
        found = re.search(r"([~\w]+)\s*\(", piece)
        if found and found.group(1).lstrip("~") != name and "=" not in piece[: found.start()]:
            methods.add(found.group(1))
    return methods


def asserts_that_check(path: Path) -> list[tuple[int, str]]:
    """Asserts that do more than narrow a type. ``python -O`` removes them, with the calls in them."""
    return [
        (node.lineno, ast.unparse(node))
        for node in nodes_of(path)
        if isinstance(node, ast.Assert) and not _narrows(node.test)
    ]


def _narrows(test: ast.expr) -> bool:
    if isinstance(test, ast.Call):
        return ast.unparse(test.func) == "isinstance" and isinstance(test.args[0], (ast.Name, ast.Attribute))
    if not isinstance(test, ast.Compare) or not isinstance(test.left, (ast.Name, ast.Attribute)):
        return False
    return isinstance(test.ops[0], ast.IsNot) and ast.unparse(test.comparators[0]) == "None"
