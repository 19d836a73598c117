"""Disk low: stops before a checkpoint is written into a full disk."""

from __future__ import annotations

from supervisor.core import events as ev
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.readings import DiskReading, HostReading
from supervisor.core.rules.disk_low import DiskLow

from .stories import GB, story


def test_a_full_disk_acts_and_nothing_is_saved_on_it() -> None:
    flag = story().training().disks(runs=199_999_999).check(DiskLow())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert not flag.can_save
    assert flag.subject == "/runs"
    assert flag.message == "/runs: 0.20 of 1000.00 GB are free"


def test_at_the_limit_it_is_reported_only() -> None:
    flag = story().training().disks(runs=200_000_000).check(DiskLow())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_bytes_and_fraction_each_tell() -> None:
    by_bytes, by_fraction = DiskLow(warn_fraction=0.0), DiskLow(warn_bytes=0)
    assert story().training().disks(runs=1_999_999_999).check(by_bytes) is not None
    assert story().training().disks(runs=2_000_000_000).check(by_bytes) is None
    assert story().training().disks(runs=20 * GB - 1).check(by_fraction) is not None
    assert story().training().disks(runs=20 * GB).check(by_fraction) is None


def test_the_fullest_disk_speaks() -> None:
    flag = story().training().disks(state=GB, runs=100_000_000, home=500 * GB).check(DiskLow())
    assert flag is not None
    assert flag.subject == "/runs"


def test_room_that_was_made_ends_the_flag() -> None:
    assert story().training().disks(runs=1).silence(1).disks(runs=500 * GB).check(DiskLow()) is None


def test_a_reading_of_memory_alone_takes_nothing_back() -> None:
    assert story().training().disks(runs=1).silence(1).memory(available=GB).check(DiskLow()) is not None


def test_an_old_reading_says_nothing() -> None:
    assert story().training().disks(runs=1).silence(61).check(DiskLow()) is None


def test_without_a_reading_it_says_nothing() -> None:
    assert story().training().silence(5).check(DiskLow()) is None
    assert story().training().disks().check(DiskLow()) is None


def test_a_process_that_is_gone_writes_nothing() -> None:
    assert story().training().disks(runs=1).exits(1).check(DiskLow()) is None


def test_act_off_reports_only() -> None:
    flag = story().training().disks(runs=1).check(DiskLow(act=False))
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_of_a_reading_the_disks_that_the_training_uses_are_left() -> None:
    used, other = (DiskReading(path=path, free_bytes=GB, total_bytes=9 * GB) for path in ("/runs", "/home"))
    reading = HostReading(at=story().now, disks=(used, other))
    assert reading.of_disks(frozenset({"/runs", "/state"})).disks == (used,)
    assert reading.of_disks(frozenset({"/runs", "/home"})) is reading is reading.of_disks(None)


def inodes(free: int | None, total: int | None, rule: DiskLow | None = None) -> RedFlag | None:
    """Return what the rule says of a disk with much free space and so many inodes."""
    timeline = story().training()
    disk = DiskReading(path="/runs", free_bytes=500 * GB, total_bytes=1000 * GB, free_inodes=free, total_inodes=total)
    timeline.put(ev.HostRead(at=timeline.now, reading=HostReading(at=timeline.now, disks=(disk,))))
    return timeline.check(rule or DiskLow())


def test_a_disk_without_inodes_acts_as_a_full_one_does() -> None:
    flag = inodes(99, 10**7)
    assert flag is not None
    assert (flag.severity, flag.can_save, flag.subject) == (Severity.CRITICAL, False, "/runs")
    assert flag.message == "/runs: 99 of 10000000 inodes are free, one for each file or folder"
    assert flag.diagnosis is not None
    assert "df -i" in flag.diagnosis.advice[0]
    for free, severity in ((100, Severity.WARNING), (9999, Severity.WARNING), (10_000, None)):
        flag = inodes(free, 10**7)
        assert (None if flag is None else flag.severity) is severity
    off = inodes(0, 10**7, DiskLow(act=False))
    assert off is not None
    assert off.severity is Severity.WARNING


def test_a_small_disk_may_have_few_inodes_and_one_without_a_number_is_not_judged() -> None:
    assert inodes(20, 1000) is None
    flag = inodes(19, 1000)
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert inodes(None, None) is inodes(0, 0) is None
