"""A log record is one line, whatever its values hold."""

from __future__ import annotations

import logging

import pytest

from supervisor.daemon.logs import LEVELS, Line


def record(name: str, level: int = logging.WARNING, **fields: object) -> logging.LogRecord:
    one = logging.LogRecord("supervisor", level, __file__, 1, name, (), None)
    one.fields = fields
    return one


def test_fields_follow_the_name_of_the_event() -> None:
    line = Line(journal=True).format(record("attempt.stopped", job="yolo", step=7, loss=None))
    assert line == '<4>attempt.stopped job="yolo" step=7 loss=null'


def test_a_value_can_neither_end_the_line_nor_reach_the_terminal() -> None:
    line = Line(journal=False).format(record("job.said", text="one\ntwo\x1b[31m\u009b"))
    assert "\n" not in line
    assert all(" " <= one <= "~" for one in line)


@pytest.mark.parametrize(("level", "priority"), [("debug", 7), ("info", 6), ("warning", 4), ("error", 3)])
def test_the_journal_learns_the_priority(level: str, priority: int) -> None:
    assert Line(journal=True).format(record("daemon.ready", LEVELS[level])).startswith(f"<{priority}>")


def test_an_exception_stays_in_its_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        one = record("act.failed")
        one.exc_info = (type(error), error, error.__traceback__)
    line = Line(journal=True).format(one)
    assert "\n" not in line
    assert "ValueError" in line


def test_a_record_of_somebody_elses_library_has_no_fields() -> None:
    one = logging.LogRecord("urllib3", logging.ERROR, __file__, 1, "retrying %s", ("it",), None)
    assert Line(journal=True).format(one) == "<3>retrying it"
