"""The daemon knows when it did not run, and takes no slow turn of its own for that."""

from __future__ import annotations

import threading

from clocks_by_hand import HandClock, until

from supervisor.daemon.clock import AWAY_S, Presence


def test_a_gap_between_two_looks_is_an_absence_and_is_reported_once() -> None:
    clock = HandClock()
    presence = Presence(clock)
    assert presence.taken() == ()
    clock.sleep(6)
    (away,) = presence.taken()
    assert (away.at, away.away_s) == (clock.now(), 6.0)
    assert presence.taken() == ()


def test_looks_that_come_in_time_are_none_however_long_nobody_asks() -> None:
    clock = HandClock()
    presence = Presence(clock)
    for _ in range(100):
        clock.sleep(AWAY_S - 0.1)
        presence.look()
    assert presence.taken() == ()


def test_absences_that_nobody_asked_for_are_all_reported() -> None:
    clock = HandClock()
    presence = Presence(clock)
    presence.look()
    for seconds in (2.0, 0.5, 3.0):
        clock.sleep(seconds)
        presence.look()
    assert [item.away_s for item in presence.taken()] == [2.0, 3.0]


def test_a_wall_clock_that_jumps_is_no_absence() -> None:
    clock = HandClock()
    presence = Presence(clock)
    presence.look()
    clock.step_wall(86_400)
    assert presence.taken() == ()


def test_it_looks_by_itself_until_its_end() -> None:
    clock = HandClock()
    presence = Presence(clock)
    presence.look()
    clock.sleep(10)
    thread = threading.Thread(target=presence.keep)
    thread.start()
    until(lambda: bool(presence._unreported), "a look")
    presence.end()
    thread.join(120)
    assert not thread.is_alive()
