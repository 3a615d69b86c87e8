"""The figures of the READMEs and of docs/loads.md are those of the results that they name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench import loads_page, page
from di_store.workloads.catalogue import GROUPS

ROOT = Path(page.ROOT)


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_the_figures_are_those_of_the_result(readme: str) -> None:
    text = (ROOT / readme).read_text()
    named = re.search(r"`bench/results/(bench-[0-9-]+\.json)`", text)
    assert named is not None
    result = json.loads((ROOT / "bench" / "results" / named[1]).read_text())
    assert page.written(text, result, named[1], readme.endswith("zh-CN.md")) == text
    assert len(page.rows(result, False)) == len(page.ROWS), "a row was not measured"
    changed = {**result, "lines": [{**line, "ours": (line["ours"] or 0) * 1.1 + 1} for line in result["lines"]]}
    assert page.written(text, changed, named[1], readme.endswith("zh-CN.md")) != text


def test_the_loads_are_those_of_their_results() -> None:
    text = loads_page.PAGE.read_text()
    named = list(dict.fromkeys(loads_page.SOURCE.findall(text)))
    saved = loads_page.load(named)
    assert loads_page.written(text, saved) == text
    groups = {mark["group"] for mark in loads_page.MARK.finditer(text)}
    assert groups == set(GROUPS)
    assert all(loads_page.section(group, saved) is not None for group in GROUPS), "a load was not measured"
