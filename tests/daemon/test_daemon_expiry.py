"""The time that retention is reckoned from outlives a daemon that is killed at once."""

from __future__ import annotations

from pathlib import Path

from supervisor.core.moments import Moment
from supervisor.core.readings import HostReading
from supervisor.daemon.record.expiry import RetentionClock
from supervisor.store.store import Store

START = Moment(1000.0, 1_763_600_000.0)
YEAR_S = 365 * 86_400.0


def opened(folder: Path, now: Moment) -> Store:
    return Store.open(f"sqlite:///{folder}/supervisor.db", now, "one")


def test_a_clock_ahead_is_known_to_be_after_a_daemon_that_died_with_its_first_commit(tmp_path: Path) -> None:
    """Nothing had kept that time yet, as in the record of an earlier version."""
    store = opened(tmp_path, START)
    with store.turn(START):
        store.add_host_sample(HostReading(at=START))
    store.close(START)
    ahead = Moment(START.monotonic_s + 10, START.unix_s + 20 * YEAR_S)
    store = opened(tmp_path, ahead)
    RetentionClock(store, ahead)
    with store.turn(ahead):
        store.add_host_sample(HostReading(at=ahead))
    store.close(ahead)
    later = ahead.plus(10)
    store = opened(tmp_path, later)
    assert RetentionClock(store, later).advance(later) < START.unix_s + YEAR_S
    store.close(later)
