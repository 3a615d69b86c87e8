"""Writes a picture of the demo's live screen: `tools/demo_screen.py OUT.svg [option of di-store demo]…`.

Runs the demo in a new terminal, takes the last frame that it showed while it was training, and renders it.
"""

from __future__ import annotations

import io
import os
import pty
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

COLUMNS, LINES = 100, 40
ERASE_LINE = "\x1b[2K"
TRAINING = "training; Ctrl-C ends it"


def painted(options: list[str]) -> str:
    """Everything that the demo writes to its terminal."""
    child, terminal = pty.fork()
    if child == 0:
        size = {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
        os.execvpe(sys.executable, [sys.executable, "-m", "di_store", "demo", *options], {**os.environ, **size})
    found = b""
    while True:
        try:
            found += os.read(terminal, 65536)
        except OSError:
            break  # the demo has ended, which closes the other end of the terminal
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(f"the demo ended with status {status}:\n{found.decode(errors='replace')[-2000:]}")
    return found.decode(errors="replace").replace("\r", "")


def last_frame(text: str) -> str:
    """The last frame of the training demo. Before each frame, the screen erases the lines of the previous one."""
    frames = [frame for frame in text.split(ERASE_LINE) if TRAINING in frame]
    if not frames:
        raise SystemExit(f"no frame with {TRAINING!r}:\n{text[-2000:]}")
    return frames[-1].strip("\n")


def picture(frame: str) -> str:
    """The frame as SVG. It uses the viewer's fonts, so it does not load other files."""
    lines = Text.from_ansi(frame)
    width = max(line.cell_len for line in lines.split())
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(lines)
    plain = re.sub(r"@font-face {{.*?}}\s*", "", CONSOLE_SVG_FORMAT, flags=re.S)
    return console.export_svg(title="make demo", code_format=plain, unique_id="demo")


def main() -> None:
    """Run the demo and write the picture."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    Path(sys.argv[1]).write_text(picture(last_frame(painted(sys.argv[2:]))))


if __name__ == "__main__":
    main()
