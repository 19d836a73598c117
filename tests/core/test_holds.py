"""How long something has held."""

from __future__ import annotations

from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading
from supervisor.core.stats.holds import lasted_s, run_of


def at(second: float) -> Moment:
    return Moment(second, second)


def readings(*values: tuple[float, int | None]) -> list[ProcessReading]:
    return [ProcessReading(at=at(second), processes=1, rss_bytes=value) for second, value in values]


def full(reading: ProcessReading) -> bool | None:
    return None if reading.rss_bytes is None else reading.rss_bytes > 10


def test_a_run_is_the_newest_unbroken_one_oldest_first() -> None:
    run = run_of(readings((0, 20), (1, 5), (2, 20), (3, 30)), full, at(3))
    assert [item.rss_bytes for item in run] == [20, 30]
    assert lasted_s(run) == 1


def test_an_unknown_reading_neither_continues_nor_breaks_a_run() -> None:
    run = run_of(readings((0, 20), (1, None), (2, 20), (3, None)), full, at(3))
    assert lasted_s(run) == 2


def test_a_silence_breaks_a_run() -> None:
    run = run_of(readings((0, 20), (61, 20), (62, 20)), full, at(62))
    assert lasted_s(run) == 1
    assert lasted_s(run_of(readings((0, 20), (60, 20)), full, at(60))) == 60


def test_old_readings_say_nothing_of_now() -> None:
    assert run_of(readings((0, 20), (1, 20)), full, at(62)) == ()


def test_no_run_has_lasted_no_time() -> None:
    assert lasted_s(()) == 0
