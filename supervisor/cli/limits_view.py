"""The gauges of one job and how near each is to its limit, as lines of text."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from supervisor.cli.formatting import number, size, span
from supervisor.cli.table import Cell, Pen
from supervisor.core.sanitize import one_line

HEAD = ("GROUP", "RULE", "NOW", "LIMIT", "% OF LIMIT", "ACTION", "CHECK")
GROUPS = ("steps", "losses", "gpus", "memory", "storage", "pace", "process")
WHOLE_WIDTH = 120
"""Columns of a terminal from which on the table is shown in one part."""
NEAR_SHARE = 0.5
RED_SHARE = 0.8
ACTIONS = {"critical": "stop", "warning": "warn", "info": "info"}


def gauge_lines(job: dict[str, Any], pen: Pen, *, show_all: bool) -> list[str]:
    """Return the table of gauges of one job of GET /v1/status; without `show_all` only those near their limit."""
    watched = job["watched"]
    if not watched:
        return []
    shown = watched if show_all else [gauge for gauge in watched if _is_near(gauge)]
    text = ["", _gauge_table(shown, pen)] if shown else ["", "no gauge is at 50 % of its limit or above"]
    if not show_all:
        counts = f"{len(shown)} of {len(watched)} gauges shown; all: supervisorctl status {one_line(job['name'])} --all"
        text += [pen.paint(item, "dim") for item in (counts, *_list_inactive(watched))]
    return text


def _gauge_table(shown: list[dict[str, Any]], pen: Pen) -> str:
    """Return the table; where it has to be split, each part begins with the rules, which tell the rows apart."""
    head, rows = HEAD, _gauge_rows(shown)
    if pen.width is not None and pen.width < WHOLE_WIDTH:
        head, rows = (head[1], head[0], *head[2:]), [[row[1], row[0], *row[2:]] for row in rows]
    return pen.table(head, rows)


def _is_near(entry: dict[str, Any]) -> bool:
    """Whether the gauge is at half its limit or above; False for info rules and disabled ones."""
    if not entry["enabled"] or entry["severity"] == "info":
        return False
    return entry["reached"] or (entry["share"] or 0.0) >= NEAR_SHARE


def _list_inactive(watched: list[dict[str, Any]]) -> list[str]:
    """Return which rules take no action: those in shadow and those switched off."""
    shadow = sorted({one_line(entry["rule"]) for entry in watched if entry["shadow"] and entry["enabled"]})
    off = sorted({one_line(entry["rule"]) for entry in watched if not entry["enabled"]})
    return [f"{how}: {', '.join(rules)}" for how, rules in (("in shadow", shadow), ("switched off", off)) if rules]


def _gauge_rows(watched: list[dict[str, Any]]) -> list[list[Cell]]:
    """Return the rows by group, within a group the gauge nearest to its limit first."""
    ordered = sorted(
        watched, key=lambda entry: _group_order(entry["group"])
    )  # stable: the daemon sends the nearest first
    rows = []
    for group, members in groupby(ordered, key=lambda entry: str(entry["group"])):
        for index, entry in enumerate(members):
            rows.append([Cell("" if index else one_line(group), "bold"), *_gauge_row(entry)])
    return rows


def _group_order(group: str) -> tuple[int, str]:
    return (GROUPS.index(group) if group in GROUPS else len(GROUPS), group)


def _gauge_row(entry: dict[str, Any]) -> list[Cell]:
    limit = _in_unit(entry["limit"], entry["unit"]) + (" (learned)" if entry["learned"] else "")
    watched = entry["not_watched"] is None
    style = "red" if entry["reached"] or (entry["share"] or 0.0) >= RED_SHARE else None
    return [
        Cell(one_line(entry["rule"]), "bold" if watched else "dim"),
        Cell(_in_unit(entry["now"], entry["unit"]), right=True),
        Cell(limit if watched else "-", right=True),
        Cell(_describe_share(entry), style, right=True),
        Cell(_describe_action(entry)),
        Cell(one_line(entry["what"]) + _describe_state(entry), None if watched else "dim"),
    ]


def _describe_share(entry: dict[str, Any]) -> str:
    if entry["share"] is None or entry["not_watched"] is not None:
        return "yes" if entry["reached"] else "-"
    return number(100 * entry["share"], "{:.0f} %")


def _describe_action(entry: dict[str, Any]) -> str:
    """Return what the rule does when the limit is reached."""
    if not entry["enabled"]:
        return "off"
    if entry["not_watched"] is not None:
        return "-"
    if entry["shadow"] and entry["severity"] == "critical":
        return "shadow"
    return ACTIONS.get(entry["severity"], one_line(entry["severity"]))


def _describe_state(entry: dict[str, Any]) -> str:
    if entry["not_watched"] is not None:
        return f"; not watched: {one_line(entry['not_watched'])}"
    if entry["share"] == 1.0 and entry["lacks"] is not None:
        return f"; waits for: {one_line(entry['lacks'])}"
    if entry["share"] == 1.0 and entry["hold_s"] is not None and not entry["reached"]:
        return f"; held for {span(entry['held_s'] or 0.0)} of {span(entry['hold_s'])}"
    return ""


def _in_unit(value: float | None, unit: str) -> str:
    if unit == "bytes":
        return size(value)
    if unit == "s":
        return span(value)
    shape = "{:.0f}" if value is not None and abs(value) >= 1000 else "{:.4g}"
    return number(value, shape + (f" {one_line(unit)}" if unit else ""))
