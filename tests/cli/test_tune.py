"""`supervisorctl tune`: what may be asked, and how a report reads."""

from __future__ import annotations

import struct
import zlib

import pytest
from msgspec.structs import replace

from supervisor.cli.errors import CliError
from supervisor.cli.table import Pen
from supervisor.cli.tune import as_json, parse_permissions, parse_span_s, plot, report_lines
from supervisor.control import record_types
from supervisor.core.reports.tune_picture import (
    BAR,
    BARS_MOST,
    MARGIN,
    PROVEN,
    RANGE,
    ROW,
    STACKED_BELOW,
    TEXT,
    WIDTH,
    draw,
)

REPORT = record_types.TuneReport(
    job="night",
    state="ended",
    samples_per_s=record_types.BeforeAfterRate(before=49.0, after=422.0),
    adopted=[record_types.KnobAdopted(knob="workers", value=16, gain=7.6, low=7.1, high=8.2)],
    refused=[record_types.KnobRefused(knob="threads", value=8, why="gains at most 1.2%")],
    left=[record_types.KnobRefused(knob="tf32", value=None, why="not without permission: --may precision")],
    bottleneck=record_types.BeforeAfterName(before="data-bound", after=None),
    why="88% of a step waits for its batch",
)


def test_a_report_says_what_was_found_and_what_came_of_it() -> None:
    text = "\n".join(report_lines(record_types.encode(REPORT), Pen(width=200)))
    assert text.startswith("night: data-bound: 88% of a step waits for its batch")
    assert "+760.0% (+710.0% to +820.0%)" in text
    assert "49.0 -> 422.0 samples/s (8.61x), confirmed" in text
    assert "not without permission" in text


def test_a_report_has_a_plot_of_the_pace_and_of_the_least_and_the_most_that_each_setting_gains() -> None:
    unsure = record_types.KnobAdopted(knob="tf32", value=True, gain=0.4, low=-0.1, high=4.1)
    report = record_types.encode(replace(REPORT, adopted=[*REPORT.adopted, unsure]))
    bars = [line.split("  ") for line in plot(report, Pen()).splitlines()[1:]]
    assert [bar[0].strip() for bar in bars] == ["before", "after", "workers = 16", "tf32 = true"]
    assert [bar[-1] for bar in bars] == ["█" * 5, "█" * 40, "█" * 35 + "▒" * 5, "▒" * 20]
    assert plot(report, Pen()) in "\n".join(report_lines(report, Pen()))
    assert not plot(record_types.encode(replace(REPORT, adopted=[])), Pen())


def test_a_plot_is_drawn_as_png_too() -> None:
    report = record_types.encode(REPORT)
    png = draw(report)
    width, height = struct.unpack(">2I", png[16:24])
    assert (png[:8], width) == (b"\x89PNG\r\n\x1a\n", WIDTH)
    rows = read_rows(png, width)
    middle = {name: rows[MARGIN + ROW * number + BAR // 2] for number, name in enumerate(("before", "after", "set"), 1)}
    dark = {name: row.count(PROVEN) for name, row in middle.items()}
    assert 0.10 < dark["before"] / dark["after"] < 0.13, "49 of 422 samples a second"
    assert 0.85 < dark["set"] / dark["after"] < 0.88, "at least 7.1 of 8.2 at most"
    assert middle["set"].count(RANGE) == dark["after"] - dark["set"]
    assert len(rows) == height
    assert draw(record_types.encode(replace(REPORT, adopted=[])))[:4] == b"\x89PNG"


def test_a_picture_for_a_phone_has_each_bar_below_its_text_and_a_dark_page_a_dark_one() -> None:
    report = record_types.encode(REPORT)
    narrow, dark = draw(report, width=STACKED_BELOW - 160), draw(report, is_dark=True)
    rows = read_rows(narrow, STACKED_BELOW - 160)
    assert max(row.count(PROVEN) for row in rows) == STACKED_BELOW - 160 - 2 * MARGIN, "a bar has the whole width"
    assert not any(TEXT in row and PROVEN in row for row in rows), "no text is next to a bar"
    assert read_rows(dark, WIDTH) == read_rows(draw(report), WIDTH), "the same picture in other colours"
    assert dark != draw(report)


def test_a_picture_of_many_settings_is_bounded() -> None:
    many = [record_types.KnobAdopted(knob=f"knob{n}" * 40, value=n, gain=0.1, low=0.1, high=1e300) for n in range(900)]
    png = draw(record_types.encode(replace(REPORT, adopted=many)))
    assert struct.unpack(">I", png[20:24])[0] <= 2 * MARGIN + ROW * (1 + BARS_MOST)


def read_rows(png: bytes, width: int) -> list[bytes]:
    begin = png.index(b"IDAT")
    pixels = zlib.decompress(png[begin + 4 : begin + 4 + int.from_bytes(png[begin - 4 : begin], "big")])
    return [pixels[place + 1 : place + 1 + width] for place in range(0, len(pixels), width + 1)]


def test_what_was_not_tried_is_in_the_json_with_its_reason() -> None:
    found = as_json(record_types.encode(REPORT))
    assert list(found) == ["job", "samples_per_s", "adopted", "refused", "bottleneck", "not_tried", "problem"]
    assert found["not_tried"] == [{"knob": "tf32", "value": None, "why": "not without permission: --may precision"}]


def test_a_report_survives_being_kept() -> None:
    assert record_types.decode_tune_report(record_types.encode(REPORT)) == REPORT
    assert record_types.decode_tune_report({"job": 7}) is None


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("1.5h", 5400)])
def test_a_span_has_a_unit(text: str, seconds: float) -> None:
    assert parse_span_s(text) == seconds


@pytest.mark.parametrize("text", ["15", "1s", "-5m", "2d", "", "30h"])
def test_what_is_no_span_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(CliError, match="is not a duration"):
        parse_span_s(text)


def test_only_known_permissions_are_given() -> None:
    assert parse_permissions(" precision, ") == ["precision"]
    with pytest.raises(CliError, match="'lr' is unknown"):
        parse_permissions("lr")
