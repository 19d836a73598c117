"""Times, sizes and tables as people read them; what is unknown is a dash and never a zero."""

from __future__ import annotations

import pytest

from supervisor.cli.formatting import ago, clock_time, epoch, number, part_of, size, span, until
from supervisor.cli.table import Cell, Pen, cells, cut, cut_middle

NOW = 1_763_164_800.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.4, "0.4 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (105, "1 min 45 s"),
        (3600, "1 h"),
        (28_080, "7 h 48 min"),
        (93_784, "1 d 2 h"),
        (-3, "0 s"),
    ],
)
def test_a_duration_is_reported_in_two_units(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("then", "text"),
    [
        (None, "-"),
        (NOW, "now"),
        (NOW - 1.5, "1 s ago"),
        (NOW - 12 * 60 - 59, "12 min ago"),
        (NOW - 86_400 * 3, "3 d ago"),
        (NOW + 120, "in 2 min"),
    ],
)
def test_a_time_is_reported_as_how_long_ago(then: float | None, text: str) -> None:
    assert ago(then, NOW) == text


def test_what_is_waited_for_is_reported_in_two_units() -> None:
    assert [until(then, NOW) for then in (None, NOW - 1, NOW + 223_200)] == ["-", "due", "in 2 d 14 h"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (5_200_000_000, "5.2 GB"), (2e15, "2000.0 TB")],
)
def test_bytes_are_reported_in_decimal_units(count: float | None, text: str) -> None:
    assert size(count) == text


def test_a_time_that_no_calendar_has_is_a_dash() -> None:
    assert [clock_time(item) for item in (None, 1e20, float("nan"), float("inf"))] == ["-"] * 4


def test_parts_are_reported_as_far_as_they_are_known() -> None:
    assert [part_of(None, 9), part_of(0, None), part_of(3, 9)] == ["-", "0", "3/9"]
    assert [number(None), number(0.0, "{:.1f}")] == ["-", "0.0"]
    assert [epoch(None), epoch(0)] == [None, 1]


def test_columns_are_aligned_whatever_the_script() -> None:
    rows = [[Cell("熱", "red"), Cell("1", right=True), Cell("x")], [Cell("yolo"), Cell("22", right=True), Cell("y")]]
    assert Pen().table(("JOB", "N", "WHY"), rows).splitlines() == [
        "JOB    N  WHY",
        "熱     1  x",
        "yolo  22  y",
    ]


def test_colour_does_not_move_columns() -> None:
    rows = [[Cell("a", "red"), Cell("b")]]
    plain, colored = Pen().table(("J", "P"), rows), Pen(color=True).table(("J", "P"), rows)
    assert "\x1b[31ma\x1b[0m" in colored
    assert colored.replace("\x1b[1m", "").replace("\x1b[31m", "").replace("\x1b[0m", "") == plain


def test_only_the_last_column_is_cut_to_the_terminal() -> None:
    line = Pen(width=24).table(("JOB", "WHY"), [[Cell("yolo"), Cell("a very long reason indeed")]]).splitlines()[1]
    assert line == "yolo  a very long reaso…"


def test_a_path_is_cut_in_its_middle_before_columns_move_down() -> None:
    path = "/srv/runs/yolo-night-of-the-long-name/weights/epoch12.pt"
    rows = [[Cell(path, path=True), Cell("12", right=True), Cell("proven")]]
    head, row = Pen(width=44).table(("FILE", "EPOCH", "VERDICT"), rows).splitlines()
    assert row == "/srv/runs…weights/epoch12.pt     12  proven"
    assert head == f"{'FILE':28}  EPOCH  VERDICT"
    assert path in Pen().table(("FILE", "EPOCH", "VERDICT"), rows)


def test_columns_without_a_value_are_left_out_where_there_is_no_room() -> None:
    rows = [[Cell("yolo"), Cell("-"), Cell("running"), Cell("")]]
    assert Pen(width=20).table(("JOB", "STAGE", "PHASE", "WHY"), rows).splitlines() == ["JOB   PHASE", "yolo  running"]
    assert "STAGE" in Pen(width=40).table(("JOB", "STAGE", "PHASE", "WHY"), rows)


def test_columns_without_room_follow_below_behind_the_first() -> None:
    rows = [[Cell("yolo"), Cell("running"), Cell("80321", right=True), Cell("no step for 61 s")]]
    assert Pen(width=24).table(("JOB", "PHASE", "STEP", "WHY"), rows).splitlines() == [
        "JOB   PHASE     STEP",
        "yolo  running  80321",
        "JOB   WHY",
        "yolo  no step for 61 s",
    ]


@pytest.mark.parametrize("text", ["", "abc", "x" * 100, "熱" * 100, "e\u0301" * 100, "🔥a" * 50])
def test_a_text_cut_in_its_middle_fits_and_keeps_both_ends(text: str) -> None:
    shown = cut_middle(text, 20)
    assert cells(shown) <= 20
    assert (shown[:1], shown[-1:]) == (text[:1], text[-1:])
    assert cut_middle(text, 1000) == text


@pytest.mark.parametrize("text", ["", "abc", "x" * 100, "熱" * 100, "e\u0301" * 100, "🔥a" * 50])
def test_a_cut_text_fits(text: str) -> None:
    assert cells(cut(text, 20)) <= 20
    assert cut(text, 1000) == text
