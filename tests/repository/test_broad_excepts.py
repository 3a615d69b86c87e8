"""Every handler that catches all errors says why."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src/di_store"
ALL = {"Exception", "BaseException"}


def is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(each, ast.Name) and each.id in ALL for each in named)


def unexplained(source: str) -> list[int]:
    """Lines of broad handlers without a comment on their line, the one above or the one below."""
    handlers = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ExceptHandler) and is_broad(node)]
    if not handlers:
        return []
    comments = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type:", "# noqa", "# pragma"))
    }
    return [each.lineno for each in handlers if not comments & {each.lineno - 1, each.lineno, each.lineno + 1}]


def test_every_broad_handler_has_a_reason() -> None:
    faults = [
        f"{path.relative_to(PACKAGE.parent.parent)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in unexplained(path.read_text())
    ]
    assert not faults, "\n".join(faults)


def test_the_check_finds_broad_handlers() -> None:
    body = "try:\n    f()\n{}\n    g()\n"
    for head in ("except Exception:", "except (OSError, BaseException) as error:", "except:"):
        assert unexplained(body.format(head)) == [3]
        assert unexplained(body.format(head + "  # type: ignore")) == [3]
        assert unexplained(body.format(head + "  # whatever the user's code raises")) == []
        assert unexplained(body.format(head + "\n    # whatever the user's code raises")) == []
    assert unexplained(body.format("except OSError:")) == []
