"""What is watched of one job, and how near each limit is, as lines for people; it asks and judges nothing."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from supervisor.cli.table import Cell, Pen
from supervisor.cli.words import number, size, span
from supervisor.core.harmless import one_line

HEAD = ("WATCHED", "RULE", "NOW", "LIMIT", "NEAR", "THEN", "WHAT")
GROUPS = ("steps", "losses", "cards", "memory", "storage", "pace", "process")
NEAR_SHARE = 0.5
RED_SHARE = 0.8
THEN = {"critical": "acts", "warning": "told", "info": "good news"}


def watched_lines(job: dict[str, Any], pen: Pen, *, whole: bool) -> list[str]:
    """Return the table of what one job of GET /v1/status is watched for; without `whole` what is near alone."""
    watched = job["watched"]
    if not watched:
        return []
    shown = watched if whole else [one for one in watched if _near(one)]
    text = ["", pen.table(HEAD, _rows(shown))] if shown else ["", "nothing is near a limit"]
    if not whole:
        left = (
            f"{len(shown)} of {len(watched)} limits and conditions: supervisorctl status {one_line(job['name'])} --all"
        )
        text += [pen.paint(one, "dim") for one in (left, *_unarmed(watched))]
    return text


def _near(one: dict[str, Any]) -> bool:
    """Whether it is half way to trouble, or further; good news and what is switched off are in no hurry."""
    if not one["enabled"] or one["severity"] == "info":
        return False
    return one["reached"] or (one["share"] or 0.0) >= NEAR_SHARE


def _unarmed(watched: list[dict[str, Any]]) -> list[str]:
    """Return which rules never act, whatever they see."""
    shadow = sorted({one_line(one["rule"]) for one in watched if one["shadow"] and one["enabled"]})
    off = sorted({one_line(one["rule"]) for one in watched if not one["enabled"]})
    return [f"{how}: {', '.join(rules)}" for how, rules in (("in shadow", shadow), ("switched off", off)) if rules]


def _rows(watched: list[dict[str, Any]]) -> list[list[Cell]]:
    """Return the rows by what they are about, the rules of each by their nearest limit."""
    ordered = sorted(watched, key=lambda one: _place(one["group"]))  # stable: the daemon puts the nearest first
    rows = []
    for group, members in groupby(ordered, key=lambda one: str(one["group"])):
        for place, one in enumerate(members):
            rows.append([Cell("" if place else one_line(group), "bold"), *_row(one)])
    return rows


def _place(group: str) -> tuple[int, str]:
    return (GROUPS.index(group) if group in GROUPS else len(GROUPS), group)


def _row(one: dict[str, Any]) -> list[Cell]:
    limit = _in_unit(one["limit"], one["unit"]) + (" (learned)" if one["learned"] else "")
    watched = one["not_watched"] is None
    style = "red" if one["reached"] or (one["share"] or 0.0) >= RED_SHARE else None
    return [
        Cell(one_line(one["rule"]), "bold" if watched else "dim"),
        Cell(_in_unit(one["now"], one["unit"]), right=True),
        Cell(limit if watched else "-", right=True),
        Cell(_nearness(one), style, right=True),
        Cell(_then(one)),
        Cell(one_line(one["what"]) + _remark(one), None if watched else "dim"),
    ]


def _nearness(one: dict[str, Any]) -> str:
    if one["share"] is None or one["not_watched"] is not None:
        return "yes" if one["reached"] else "-"
    return number(100 * one["share"], "{:.0f} %")


def _then(one: dict[str, Any]) -> str:
    """Return what the rule does at that limit."""
    if not one["enabled"]:
        return "off"
    if one["not_watched"] is not None:
        return "-"
    if one["shadow"] and one["severity"] == "critical":
        return "shadow"
    return THEN.get(one["severity"], one_line(one["severity"]))


def _remark(one: dict[str, Any]) -> str:
    if one["not_watched"] is not None:
        return f"; not watched: {one_line(one['not_watched'])}"
    if one["share"] == 1.0 and one["lacks"] is not None:
        return f"; not yet: {one_line(one['lacks'])}"
    if one["share"] == 1.0 and one["hold_s"] is not None and not one["reached"]:
        return f"; for {span(one['held_s'] or 0.0)} of {span(one['hold_s'])}"
    return ""


def _in_unit(value: float | None, unit: str) -> str:
    if unit == "bytes":
        return size(value)
    if unit == "s":
        return span(value)
    shape = "{:.0f}" if value is not None and abs(value) >= 1000 else "{:.4g}"
    return number(value, shape + (f" {one_line(unit)}" if unit else ""))
