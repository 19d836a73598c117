"""What a night has broken is read from the logs of its trainings and its daemon, and its output is a script."""

from __future__ import annotations

from itertools import islice

import pytest
from hostile_night import find_breaks, find_exceptions, plan, read_script
from night_acts import WEIGHTS, Acts

UNDISTURBED = {step: f"{1 / step:.3f}" for step in range(1, 200)}


def log_of(*parts: tuple[int, int]) -> list[str]:
    """Return the log of a training whose starts came from the step before `first` each, and reached `last`."""
    return [
        line
        for first, last in parts
        for line in (f"start {first - 1}", *(f"{step} {UNDISTURBED[step]}" for step in range(first, last + 1)))
    ]


def test_a_training_that_went_on_from_its_saves_is_not_broken() -> None:
    assert list(find_breaks(log_of((1, 90), (81, 130), (121, 199)), UNDISTURBED, 40)) == []


@pytest.mark.parametrize(
    ("lines", "broken"),
    [
        (log_of((1, 90), (1, 20)), "started from step 0 after step 90"),
        ([*log_of((1, 90)), "92 0.011"], "step 92 came after 90"),
        ([*log_of((1, 90)), "91 0.5"], "step 91 has the loss 0.5, not 0.011"),
    ],
)
def test_what_was_lost_is_named(lines: list[str], broken: str) -> None:
    assert list(find_breaks(lines, UNDISTURBED, 40)) == [broken]


def test_stack_traces_are_counted_but_for_what_the_daemon_was_refused() -> None:
    log = (
        'error work.failed exception="Traceback (most recent call last):\\n  File\\nKeyError: 7"\n'
        'error work.failed exception="Traceback (most recent call last):\\n  File\\nKeyError: 8"\n'
        'error work.failed exception="Traceback\\nOSError: [Errno 28] No space left on device"\n'
        "info daemon.ready\n"
    )
    assert find_exceptions(log) == {"KeyError: N": 2}


def test_what_a_night_prints_is_the_script_that_plays_it_again() -> None:
    acts = list(islice(plan(7, list(WEIGHTS)), 300))
    assert {kind for kind, _ in acts} == set(WEIGHTS)
    printed = [f"12:00:0{number % 10} {kind} {seed}: done" for number, (kind, seed) in enumerate(acts)]
    assert list(read_script(["12:00:00 the daemon ended with -9", *printed])) == acts
    assert list(read_script(f"{kind} {seed}" for kind, seed in acts)) == acts


def test_each_act_is_one_that_can_be_done() -> None:
    assert all(hasattr(Acts, f"_{kind}") for kind in WEIGHTS)
