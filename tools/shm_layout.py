"""Compares the numbers of docs/shm_format.md with native/base/layout.h, or writes them.

`tools/shm_layout.py` compares; if the page is out of date, it prints the differences and exits with status 1. With
`--write` it fills in the page's numbers, and makes the golden file if this layout version has none.

The page names the fields; the compiler gives their offsets and sizes. The rows of a table must cover its struct without
a gap, so a field that is missing on the page is found too. Needs a C++20 compiler ($CXX, else c++).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "shm_format.md"
GOLDEN = ROOT / "tests" / "golden"
PADDING = "–"
_MARK = re.compile(r"^<!-- (layout|constants)(?:: (\w+))? -->$")


@dataclass
class Row:
    """One row of a table of the page: its line number from 0, and its cells."""

    line: int
    cells: list[str]


@dataclass
class Table:
    """One marked table of the page; ``struct``: name of the struct, "" for a table of constants."""

    struct: str
    rows: list[Row]


def tables(text: str) -> list[Table]:
    """The marked tables of the page, without their heading rows."""
    lines = text.split("\n")
    found: list[Table] = []
    for number, line in enumerate(lines):
        mark = _MARK.match(line)
        if not mark:
            continue
        rows = []
        for at in range(number + 1, len(lines)):
            if not lines[at].startswith("|"):
                break
            rows.append(Row(at, [cell.strip() for cell in lines[at].strip().strip("|").split(" | ")]))
        found.append(Table(mark[2] or "", rows[2:]))
    return found


def field_of(cell: str) -> str:
    """The name of the field in a cell."""
    return re.sub(r"[`\s]", "", cell).partition("[")[0]


def compiled(found: list[Table]) -> dict[str, int]:
    """Sizes, offsets and constants by name (``Struct``, ``Struct.field``, ``Struct.field.bytes``, ``kName``)."""
    body = []
    for table in found:
        if not table.struct:
            body += [f'say("{field_of(r.cells[0])}", {field_of(r.cells[0])});' for r in table.rows]
            continue
        body.append(f'say("{table.struct}", sizeof({table.struct}));')
        for field in (field_of(row.cells[2]) for row in table.rows):
            if field != PADDING:
                name = f"{table.struct}.{field}"
                body.append(f'say("{name}", offsetof({table.struct}, {field}));')
                body.append(f'say("{name}.bytes", sizeof({table.struct}::{field}));')
    source = (
        '#include <cstdio>\n#include "base/layout.h"\nusing namespace di;\n'
        'void say(const char* name, unsigned long long value) { std::printf("%s %llu\\n", name, value); }\n'
        "int main() {\n" + "\n".join(body) + "\n}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path, program = Path(folder) / "probe.cc", Path(folder) / "probe"
        path.write_text(source)
        compiler = os.environ.get("CXX", "c++")
        command = [compiler, "-std=c++20", "-w", "-I", str(ROOT / "native"), str(path), "-o", str(program)]
        subprocess.run(command, check=True)
        out = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, _, value in (line.partition(" ") for line in out.splitlines())}


def filled(text: str, numbers: dict[str, int], found: list[Table]) -> tuple[str, list[str]]:
    """The page with the compiler's numbers, and a line for each part of a struct that its table leaves out."""
    lines = text.split("\n")
    faults: list[str] = []
    for table in found:
        end = 0
        for position, row in enumerate(table.rows):
            if not table.struct:
                row.cells[1] = _constant(row.cells[1], numbers[field_of(row.cells[0])])
            else:
                field = field_of(row.cells[2])
                offset = end if field == PADDING else numbers[f"{table.struct}.{field}"]
                if offset != end:
                    faults.append(f"{table.struct}: the page leaves out bytes {end} to {offset}, before {field}")
                if field == PADDING:
                    after = table.rows[position + 1 :]
                    stop = numbers[f"{table.struct}.{field_of(after[0].cells[2])}"] if after else numbers[table.struct]
                    size = stop - offset
                else:
                    size = numbers[f"{table.struct}.{field}.bytes"]
                end = offset + size
                row.cells[:2] = [str(offset), str(size)]
            lines[row.line] = "| " + " | ".join(row.cells) + " |"
        if table.struct and end != numbers[table.struct]:
            faults.append(f"{table.struct}: the page ends at byte {end}, the struct at {numbers[table.struct]}")
    text = "\n".join(lines)
    for name, size in numbers.items():
        text = re.sub(rf"(<!-- bytes: {name} -->)[\d,]+", rf"\g<1>{size:,}", text)
    return text, faults


def _constant(cell: str, value: int) -> str:
    return f"0x{value:x}" if cell.startswith("0x") else f"{value:,}"


def golden(numbers: dict[str, int]) -> tuple[Path, str]:
    """Path and text of the golden file, which keeps the layout of this version from changing."""
    names = sorted(name for name in numbers if not name.startswith("k"))
    path = GOLDEN / f"shm_layout_{numbers['kLayoutVersion']}.txt"
    return path, "".join(f"{name} {numbers[name]}\n" for name in names)


def faults_of(page: str) -> list[str]:
    """Differences between the compiler's numbers and the page or the golden file, one line each."""
    found = tables(page)
    numbers = compiled(found)
    text, faults = filled(page, numbers, found)
    if text != page:
        old, new = page.split("\n"), text.split("\n")
        faults += [f"line {i + 1}: {b.strip()}" for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    path, wanted = golden(numbers)
    if not path.exists() or path.read_text() != wanted:
        faults.append(f"{path.name} differs: raise kLayoutVersion, then run tools/shm_layout.py --write")
    return faults


def main() -> int:
    """Compare or write; returns the exit status."""
    page = PAGE.read_text()
    if "--write" in sys.argv[1:]:
        found = tables(page)
        numbers = compiled(found)
        text, faults = filled(page, numbers, found)
        PAGE.write_text(text)
        path, wanted = golden(numbers)
        if not path.exists():
            path.write_text(wanted)
        elif path.read_text() != wanted:
            faults.append(f"{path.name} is kept: raise kLayoutVersion, or delete it if no release has this version")
    else:
        faults = faults_of(page)
    print("\n".join(faults) or "docs/shm_format.md is up to date")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
