"""What a round of readings holds of the machine."""

from __future__ import annotations

from pathlib import Path

from clocks_by_hand import HandClock

from supervisor.core import events as ev
from supervisor.core.readings import GpuReading
from supervisor.daemon.telemetry import Telemetry


class NoGpus:
    def read(self, _now: object) -> tuple[GpuReading, ...]:
        return ()


def test_a_disk_that_a_reload_adds_is_read_from_the_next_round_on(tmp_path: Path) -> None:
    paths, rounds = [tmp_path], list[ev.Event]()
    telemetry = Telemetry(HandClock(), rounds.append, NoGpus(), lambda: paths)
    telemetry.read_host()
    added = tmp_path / "added"
    added.mkdir()
    paths.append(added)
    telemetry.read_host()
    read = [[disk.path for disk in event.reading.disks] for event in rounds if isinstance(event, ev.HostRead)]
    assert read == [[str(tmp_path)], [str(tmp_path), str(added)]]
