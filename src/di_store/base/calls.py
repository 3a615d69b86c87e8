"""Views, samplers and limiters in the form of calls, like ``MinSize(n=32)``, for files that people edit."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from di_store.base.errors import shown


def made(text: str, known: Mapping[str, Any]) -> Any:
    """The object that the call stands for. Arguments are literals; names that are not in `known` are refused.

    Raises:
        ValueError: the text is no such call, or the class refuses the arguments. TypeError: the class has no such
        argument.
    """
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError
        arguments = [ast.literal_eval(argument) for argument in call.args]
        options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError(f"{shown(text)}: write it as in Python, such as MinSize(1000), with plain values") from None
    if call.func.id not in known:
        raise ValueError(f"{shown(text)}: there is no {call.func.id}; known here: {', '.join(sorted(known))}")
    return known[call.func.id](*arguments, **options)
