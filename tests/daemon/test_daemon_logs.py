"""A log record is one line, whatever its values hold."""

from __future__ import annotations

import io
import logging
import re

import pytest

from supervisor.daemon.process.logging_setup import LEVELS, LINE_CHARS, Handler, Line


def record(name: str, level: int = logging.WARNING, **fields: object) -> logging.LogRecord:
    item = logging.LogRecord("supervisor", level, __file__, 1, name, (), None)
    item.fields = fields
    return item


def test_fields_follow_the_name_of_the_event() -> None:
    line = Line(journal=True).format(record("attempt.stopped", job="yolo", step=7, loss=None))
    assert line == '<4>attempt.stopped job="yolo" step=7 loss=null'


def test_a_value_can_neither_end_the_line_nor_reach_the_terminal() -> None:
    line = Line(journal=False).format(record("job.said", text="one\ntwo\x1b[31m\u009b"))
    assert "\n" not in line
    assert all(" " <= item <= "~" for item in line)


@pytest.mark.parametrize(("level", "priority"), [("debug", 7), ("info", 6), ("warning", 4), ("error", 3)])
def test_the_journal_learns_the_priority(level: str, priority: int) -> None:
    assert Line(journal=True).format(record("daemon.ready", LEVELS[level])).startswith(f"<{priority}>")


def test_an_exception_stays_in_its_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        item = record("act.failed")
        item.exc_info = (type(error), error, error.__traceback__)
    line = Line(journal=True).format(item)
    assert "\n" not in line
    assert "ValueError" in line


def test_a_record_of_somebody_elses_library_has_no_fields() -> None:
    item = logging.LogRecord("urllib3", logging.ERROR, __file__, 1, "retrying %s", ("it",), None)
    assert Line(journal=True).format(item) == "<3>retrying it"


def test_a_line_is_bounded_whatever_its_fields_and_its_trace_hold() -> None:
    try:
        raise ValueError("x" * 100_000_000)
    except ValueError as error:
        item = record("act.failed", error=error, text="y" * 1_000_000, names=["z" * 1000] * 1000, deep=[[[{"a": "b"}]]])
        item.exc_info = (type(error), error, error.__traceback__)
    line = Line(journal=True).format(item)
    assert len(line) < LINE_CHARS + 10
    assert 'text="yyy' in line
    assert "ValueError: xxx" in line or 'xxx"' in line


def lines_of(records: list[tuple[float, str, str]]) -> list[str]:
    stream = io.StringIO()
    handler = Handler(stream)
    handler.setFormatter(Line(journal=True))
    for at_s, name, job in records:
        item = record(name, job=job)
        item.created = at_s
        handler.handle(item)
    handler.close()
    return stream.getvalue().splitlines()


def test_a_flood_of_one_event_is_counted_and_the_rest_is_still_reported() -> None:
    flood = [(1000.0 + number / 1000, "recorder.damaged", "hostile") for number in range(30_000)]
    rest = [(1000.0 + number, "recorder.damaged", "healthy") for number in range(30)]
    lines = lines_of(sorted(flood + rest))
    assert sum('job="healthy"' in line for line in lines) == 30
    assert sum('job="hostile"' in line for line in lines) <= 40 + 30
    reported = [line for line in lines if "log.left_out" in line]
    assert 2 <= len(reported) <= 4
    counted = sum(int(re.findall(r"lines=(\d+)", line)[0]) for line in reported)
    assert counted + len(lines) - len(reported) == len(flood + rest)


def test_a_flood_of_ever_new_events_is_bounded_too() -> None:
    lines = lines_of([(1000.0 + number / 1000, f"event {number}", f"job {number}") for number in range(20_000)])
    assert len(lines) < 600 + 20 * 20 + 10
    assert len(max(lines, key=len)) < LINE_CHARS
