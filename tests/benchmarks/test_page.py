"""The figures of the READMEs and of the pages under docs/ are those of the results that they name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench import loads_page, readme
from bench.bottlenecks import report as bottlenecks_report
from bench.doc import Doc
from bench.kit import Result
from bench.scale import report as scale_report
from di_store.workloads.catalogue import GROUPS

pytestmark = pytest.mark.extended

DOCS = {"README": readme.DOC, "performance": scale_report.DOC, "bottlenecks": bottlenecks_report.DOC}


@pytest.mark.parametrize("name", DOCS)
def test_the_figures_are_those_of_the_result(name: str) -> None:
    assert DOCS[name].holds()


@pytest.mark.parametrize("name", DOCS)
def test_a_different_result_is_detected(name: str) -> None:
    doc: Doc = DOCS[name]
    result = Result.load(doc.shown())
    changed = replace(
        result, parts={part: [_larger(each) for each in records] for part, records in result.parts.items()}
    )
    assert not any(page.holds(doc.blocks(changed, doc.shown())) for page in doc.pages)


def _larger(value: Any) -> Any:
    """The same record with larger figures."""
    if isinstance(value, dict):
        return {key: _larger(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_larger(each) for each in value]
    return value * 1.1 + 1 if isinstance(value, float) else value


def test_every_row_of_the_readme_was_measured() -> None:
    assert len(readme.rows(Result.load(readme.DOC.shown()), False, False)) == len(readme.ROWS)


def test_the_loads_are_those_of_their_results() -> None:
    assert set(loads_page.PAGE.blocks()) == set(GROUPS)
    assert loads_page.PAGE.holds(loads_page.blocks(loads_page.load(loads_page.PAGE.results())))
