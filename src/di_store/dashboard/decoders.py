"""`--decode TABLE.COLUMN=MODULE:FUNCTION`: functions of the user that turn a column's values into text."""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any

Decode = Callable[[Any], object]


def decoders(options: Iterable[str]) -> dict[str, Decode]:
    """The named functions, by "TABLE.COLUMN". Modules are also looked for in the working folder.

    Raises:
        ValueError: the option has another form, or there is no such function.
    """
    return dict(map(_decoder, options))


def _decoder(option: str) -> tuple[str, Decode]:
    column, _, place = option.rpartition("=")
    module, _, name = place.partition(":")
    if not (module and name) or not all(column.partition(".")[::2]):
        raise ValueError(
            f"--decode {option}: write TABLE.COLUMN=MODULE:FUNCTION, such as prompts.tokens=my_tokens:text"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = operator.attrgetter(name)(importlib.import_module(module))
    except Exception as error:  # the user's module may raise anything
        raise ValueError(f"--decode {option}: {type(error).__name__}: {error}") from None
    if not callable(found):
        raise ValueError(f"--decode {option}: {name} of {module} is a {type(found).__name__}, not a function")
    return column, found
