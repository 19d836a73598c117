"""Blocks of steps as a tune reads them: what is counted between two settings."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from simulated_tune import SAMPLES, SimulatedTune, Training

from supervisor.core import attempt_files as fo
from supervisor.core.readings import StepRecord
from supervisor.core.tuning.compare import typical_s
from supervisor.core.tuning.knob import Facts
from supervisor.core.tuning.session import Session
from supervisor.daemon.clock import SystemClock
from supervisor.daemon.tunes.step_reader import StepReader
from tests.sources.recorder_by_hand import Writer

NO_LOADER = Facts(
    device="cuda",
    cuda=True,
    workers=0,
    processors=16,
    loader_why_not="the batches are made in the training",
    channels_last_why_not="no weight has four dimensions",
    tf32=False,
    autocast=True,
    fused=True,
    convolves=False,
    compiled=True,
)


class WatchedTune(SimulatedTune):
    """Notes what became of each block to which steps were added."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.lengthened: list[tuple[float, float]] = []
        """What a block was taken for, and what its steps and those until the next settings took."""

    def _lengthen(self, session: Session, held: Mapping[str, object], before: StepRecord | None) -> Session:
        assert self._newest is not None
        assert before is not None
        longer = super()._lengthen(session, held, before)
        ends_s = [before.at.monotonic_s, *(record.at.monotonic_s for record in self._steps.passed)]
        passed = [(later - earlier) / SAMPLES for earlier, later in pairwise(ends_s)]
        if longer != session and not self._is_between_epochs(before):
            assert longer.trial is not None
            newest_s = longer.trial.blocks[-1] if longer.trial.blocks else longer.trial.comparison.pairs[-1][0]
            self.lengthened.append((newest_s, typical_s((*self._newest.times, *passed))))
        return longer

    def _is_between_epochs(self, before: StepRecord) -> bool:
        return self._steps.passed[-1].epoch != before.epoch


def test_steps_made_until_the_next_settings_hold_are_of_the_block_before_them() -> None:
    """On an H200 three of twelve steps were made between the end of a block and the next settings."""
    training = Training(NO_LOADER, lambda held: 0.07 if "tf32" in held else 0.075, 0.05, 0.3, random.Random(1))
    tune = WatchedTune(training)
    tune.tune()
    assert len(tune.lengthened) >= 3
    assert all(found == expected for found, expected in tune.lengthened)


@pytest.mark.parametrize(("for_s", "tried"), [(60.0, False), (150.0, True)])
def test_a_model_is_not_compiled_where_the_tune_could_not_confirm_anything_afterwards(
    for_s: float, *, tried: bool
) -> None:
    facts = replace(NO_LOADER, compiled=False)
    training = Training(facts, lambda held: 0.04 if "tf32" in held else 0.08, 0.02, 0.0, random.Random(1))
    session = SimulatedTune(training, for_s).tune()
    why = [row.why for row in session.refused if row.knob == "compile"]
    assert [("--for gives it more" in text) for text in why] == [not tried]
    assert session.settings == {"tf32": True}
    assert session.confirmed is not None


class AskedAhead(Training):
    """Three steps after each switch take half as long, until the host is as far ahead of the GPU as it can be."""

    ahead = 0

    def set(self, settings: Mapping[str, object]) -> None:
        super().set(settings)
        self.ahead = 3

    def find_pace_s(self, held: Mapping[str, object]) -> float:
        """Return what the next step takes."""
        self.ahead, is_short = max(0, self.ahead - 1), self.ahead > 0
        return (0.05 if "tf32" in held else 0.1) * (0.5 if is_short else 1.0)


def test_steps_that_a_gpu_was_asked_for_before_a_switch_are_none_of_the_block_after_it() -> None:
    training = AskedAhead(NO_LOADER, lambda _held: 0.0, 0.002, 0.0, random.Random(1))
    training.take_s = training.find_pace_s
    session = SimulatedTune(training).tune()
    assert session.settings == {"tf32": True}
    assert session.before_s == pytest.approx(0.1 / SAMPLES, rel=0.01)
    assert session.after_s == pytest.approx(0.05 / SAMPLES, rel=0.01)


ONE_WORKER = replace(
    NO_LOADER, loader_why_not=None, workers=1, prefetch=4, pinned=True, tf32=True, autocast=None, compiled=True
)
"""Waits for its worker; other workers are all that there is to try."""


@dataclass
class CountedExchanges(Training):
    """Counts how often workers took the place of others."""

    exchanges: int = 0

    def set(self, settings: Mapping[str, object]) -> None:
        self.exchanges += settings.get("workers") != self.held.get("workers")
        super().set(settings)


def test_workers_that_end_a_wait_make_more_blocks_rather_than_be_exchanged_to_be_proven_once_more() -> None:
    """Two blocks of them prove a gain, and four that it is so large that it needs no other proof."""
    training = CountedExchanges(ONE_WORKER, lambda _held: 0.077, 0.2, 0.3, random.Random(0), batch_s=0.23, crowding=2.0)
    session = SimulatedTune(training).tune()
    assert (session.settings, training.exchanges) == ({"workers": 16}, 1)
    assert session.alone is not None


def test_what_was_made_up_to_a_switch_is_passed_and_what_came_after_is_read(tmp_path: Path) -> None:
    (tmp_path / fo.RUN).mkdir()
    writer, reader = Writer(tmp_path / fo.RECORDER, capacity=64), StepReader(SystemClock(), tmp_path)
    for step in (1, 2, 3):
        writer.write(step, at_ns=step * 10**9)
    reader.begin()
    for step in range(4, 9):
        writer.write(step, at_ns=step * 10**9)
    reader.skip(6)
    assert [record.step for record in reader.passed] == [4, 5, 6]
    assert [record.step for record in reader.read()] == [7, 8]
    reader.skip(8)
    assert reader.passed == (), "nothing was made since"
    reader.close()
