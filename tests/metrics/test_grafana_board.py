"""The shipped Grafana board: few panels, each of metrics that exist, each explained."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from supervisor.cli.metrics import BOARD
from supervisor.metrics.declared import METRICS

TEXT = files("supervisor.metrics").joinpath(BOARD).read_text(encoding="utf-8")
BOARD_JSON: dict[str, Any] = json.loads(TEXT)
PANELS = [panel for panel in BOARD_JSON["panels"] if panel["type"] != "row"]
LABELS = {metric.name: set(metric.labels) for metric in METRICS}


def expressions() -> Iterator[str]:
    yield from (target["expr"] for panel in PANELS for target in panel["targets"])
    yield from (note["expr"] for note in BOARD_JSON["annotations"]["list"])


def test_every_query_is_of_metrics_and_labels_that_exist() -> None:
    used = re.findall(r"(rocm_supervisor_[a-z0-9_]+)(\{[^}]*\})?", " ".join(expressions()))
    assert {name for name, _ in used} <= LABELS.keys()
    for name, selector in used:
        assert set(re.findall(r"(\w+)=~?", selector)) <= LABELS[name], name
    asked = [variable["definition"] for variable in BOARD_JSON["templating"]["list"] if variable["type"] == "query"]
    for metric, label in (re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups() for query in asked):  # type: ignore[union-attr]  # it matches
        assert label in LABELS[metric]


def test_legends_name_labels_that_their_query_leaves() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            wanted = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            names = re.findall(r"rocm_supervisor_[a-z0-9_]+", target["expr"])
            kept = set.union(*(LABELS[name] for name in names))
            if summed := re.search(r"(?:sum|count) by \(([^)]*)\)", target["expr"]):
                kept = set(re.split(r", *", summed[1]))
            assert wanted <= kept, target["expr"]


def test_it_is_small_and_each_panel_says_its_unit_and_what_is_bad_once() -> None:
    assert len(PANELS) <= 14
    assert len({panel["id"] for panel in BOARD_JSON["panels"]}) == len(BOARD_JSON["panels"])
    for panel in PANELS:
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
    at = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD_JSON["panels"]]
    assert len(set(at)) == len(at), "no panel lies upon another"
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in BOARD_JSON["panels"])


def test_the_source_of_the_data_is_chosen_in_grafana() -> None:
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in PANELS)
    assert not re.search(r"https?://", TEXT)
