"""The steps that a training makes while it is tuned, each once and in order, from the beginning of the tune on."""

from __future__ import annotations

from pathlib import Path

from supervisor.core.readings import StepRecord
from supervisor.daemon.clock import Clock
from supervisor.sources.attempt.recorder import RecorderReader


class StepReader:
    """Reads the flight recorder of one attempt; `last` is the newest step that it has returned or skipped."""

    def __init__(self, clock: Clock, folder: Path) -> None:
        """`folder` is that of the attempt."""
        self._clock, self._recorder = clock, RecorderReader(folder)
        self._cursor = 0
        self._later: tuple[StepRecord, ...] = ()
        """Steps read with those that were skipped, and to be returned first."""
        self.passed: tuple[StepRecord, ...] = ()
        """What was skipped last: steps made until other settings held."""
        self.last: StepRecord | None = None
        self.pid: int | None = None
        """The process that makes them, as it says itself."""

    @property
    def last_step(self) -> int:
        """The number of the newest step; 0 before the first."""
        return self.last.step if self.last is not None else 0

    def begin(self) -> None:
        """Leave out what was made before now."""
        self._cursor = self._recorder.read(0, self._clock.now(), limit=1).behind
        self.read()

    def read(self) -> tuple[StepRecord, ...]:
        """Return what was made since the last time."""
        page = self._recorder.read(self._cursor, self._clock.now())
        self._cursor, self.pid = page.cursor, page.claimed_pid or self.pid
        records, self._later = (*self._later, *page.records), ()
        if records:
            self.last = records[-1]
        return records

    def skip(self, step: int) -> None:
        """Pass what was made up to `step`, the last one under the settings before."""
        self.passed = ()
        while self.last is None or self.last.step < step:
            before, read = self.last, self.read()
            if not read:
                break
            self._later = tuple(record for record in read if record.step > step)
            kept = read[: len(read) - len(self._later)]
            self.passed += kept
            if self._later:
                self.last = kept[-1] if kept else before
                break

    def close(self) -> None:
        """Close the recorder's file."""
        self._recorder.close()
