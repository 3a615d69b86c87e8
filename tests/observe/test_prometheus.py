"""A real Prometheus scrapes real stores, and answers every query of the dashboard for Grafana."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from cluster.nodes import free_ports
from cluster.served import serving
from pains import until
from programs import need

import di_store
from di_store import observe

pytestmark = pytest.mark.extended

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/di-store.json").read_text())
HOSTILE = 'a "b" \\ c\n<script>{x="1"} ü\u202e'
VARIABLES = {"$store": ".+", "$table": ".+", "$__rate_interval": "1h"}


class Prometheus:
    """The HTTP interface of a running one."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now."""
        return self._ask("query", query=expression)["result"]

    def targets(self) -> list[dict[str, Any]]:
        """What it scrapes."""
        return self._ask("targets")["activeTargets"]

    def _ask(self, call: str, **given: str) -> Any:
        with urllib.request.urlopen(
            f"{self._url}/api/v1/{call}?{urllib.parse.urlencode(given)}", timeout=120
        ) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        assert not found.get("warnings"), found
        return found["data"]

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=120) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Watched(NamedTuple):
    """A Prometheus, and the stores that it scrapes."""

    prometheus: Prometheus
    own: di_store.Store
    served: str


def place(url: str) -> str:
    return url.removeprefix("http://").removesuffix("/metrics")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """It scrapes a store that serves itself and one of `di-store serve`, by the file of docs/metrics.md."""
    need("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with (
        di_store.open(memory="64MiB", disk=folder / "disk") as own,
        observe.serve_metrics(own) as server,
        serving("prometheus-served", "--metrics", "0") as served,
    ):
        for name in ("replay", HOSTILE):
            table = own.create_table(name, capacity=1000, limiter=di_store.SamplesPerInsert(2, 10, 0.9))
            table.extend({"x": np.ones((20, 4), "f4")})
            table.sample(5)
        (text,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", (ROOT / "docs/metrics.md").read_text(), re.S)
        file = yaml.safe_load(text.replace("127.0.0.1:9464", place(server.url)).replace("15s", "2s"))
        file["scrape_configs"][0]["static_configs"].append({"targets": [place(served.metrics)]})
        (folder / "prometheus.yml").write_text(yaml.safe_dump(file))
        (port,) = free_ports(1)
        words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", "--log.level=error"]
        running = subprocess.Popen(["prometheus", *words, f"--web.listen-address=127.0.0.1:{port}"])
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        try:
            until(prometheus.is_ready, "Prometheus")
            until(lambda: len(prometheus.query("di_store_up")) == 2, "a scrape of both stores")
            own.table("replay").insert({"x": np.ones(4, "f4")})
            until(lambda: prometheus.query("rate(di_store_table_inserts_total[10m]) > 0"), "a scrape after an insert")
            until(lambda: len(prometheus.query("rate(di_store_deaths_total[10m])")) == 2, "two scrapes of both stores")
            yield Watched(prometheus, own, served.name)
        finally:
            running.terminate()
            running.wait(120)


def expressions() -> list[str]:
    """All queries of the dashboard's panels, with the variables replaced as Grafana does."""
    found = [each["expr"] for panel in DASHBOARD["panels"] for each in panel.get("targets", ())]
    for name, text in VARIABLES.items():
        found = [each.replace(name, text) for each in found]
    return found


def test_targets_are_up(watched: Watched) -> None:
    until(lambda: [each["health"] for each in watched.prometheus.targets()] == ["up", "up"], "both targets")
    stores = {each["metric"]["store"] for each in watched.prometheus.query("di_store_up == 1")}
    assert stores == {watched.own.name, watched.served}


def test_every_query_of_the_dashboard_has_a_result(watched: Watched) -> None:
    """None is refused, and none asks for a metric or label that no store has."""
    every = expressions()
    assert len(every) > 25
    quiet = [each for each in every if not watched.prometheus.query(each)]
    assert quiet == []
    assert not [each for each in every if "$" in each]


def test_the_lists_of_the_dashboard_have_entries(watched: Watched) -> None:
    """`label_values(METRIC, LABEL)` is Grafana's own: the label's values among the metric's series."""
    asked = {
        each["name"]: each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"
    }
    values = {}
    for name, text in asked.items():
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", text)
        assert found is not None, text
        series = watched.prometheus.query(found[1].replace("$store", ".+"))
        values[name] = {each["metric"][found[2]] for each in series}
    assert values == {"store": {watched.own.name, watched.served}, "table": {"replay", HOSTILE}}


def test_hostile_names_arrive_as_they_are(watched: Watched) -> None:
    (series,) = watched.prometheus.query('di_store_table_samples_total{table!="replay"}')
    assert series["metric"]["table"] == HOSTILE
    assert series["value"][1] == "5"


def test_values_arrive(watched: Watched) -> None:
    """A counter that grows has a rate."""
    watched.own.table("replay").sample(10)
    until(
        lambda: watched.prometheus.query('increase(di_store_table_samples_total{table="replay"}[10m]) > 0'),
        "the samples to be scraped",
    )
    (limit,) = watched.prometheus.query(f'di_store_memory_limit_bytes{{store="{watched.own.name}"}}')
    assert int(limit["value"][1]) == 64 << 20


def test_names_follow_the_conventions(watched: Watched) -> None:
    """As Prometheus's own linter has them."""
    need("promtool")
    with observe.serve_metrics(watched.own) as server, urllib.request.urlopen(server.url) as answer:
        text = answer.read()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_dashboard_is_whole() -> None:
    """Panels have names of their own, lie beside each other, and ask the data source that the user chooses."""
    panels = DASHBOARD["panels"]
    assert len({each["id"] for each in panels}) == len({each["title"] for each in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for each in panels:
        at = each["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells, each["title"]
        assert max(x for x, _ in own) < 24
        cells |= own
        for target in each.get("targets", ()):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
