"""What may not be looked at is told as long as it stands; a beginning beside others' files is told with its copies."""

from __future__ import annotations

import pytest

from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.rules.advisory.checkpoint_unseen import CheckpointUnseen

from .stories import JOB, Story, story

SHUT = "/home/one/runs is closed to the daemon: `chmod g+rx /home/one/runs`"
RULE = CheckpointUnseen()


def closed(timeline: Story, *places: str) -> Story:
    timeline.put(ev.CheckpointsClosed(at=timeline.now, job=JOB, attempt=1, closed=places))
    return timeline


def test_a_closed_folder_is_reported_with_what_to_do() -> None:
    flag = closed(story().training(), SHUT).check(RULE)
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert flag.message == f"checkpoints cannot be read: {SHUT}"
    assert flag.can_save


@pytest.mark.parametrize(("count", "end"), [(3, "c"), (4, "c and 1 more")])
def test_three_places_are_named_and_the_rest_is_counted(count: int, end: str) -> None:
    flag = closed(story().training(), *"abcd"[:count]).check(RULE)
    assert flag is not None
    assert flag.message == f"checkpoints cannot be read: a; b; {end}"


def test_a_pattern_that_is_a_folder_is_reported_until_it_is_corrected() -> None:
    timeline, words = story().training(), '"ck" is the folder /home/one/ck: write "ck/*.pt" for files in it'
    timeline.put(ev.CheckpointsClosed(at=timeline.now, job=JOB, attempt=1, closed=(), folders=(words,)))
    flag = timeline.check(RULE)
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert flag.message == f"checkpoints are not found: {words}"
    assert flag.can_save
    assert closed(timeline, SHUT).check(RULE) is not None
    assert closed(timeline).check(RULE) is None


def test_once_it_is_open_nothing_is_reported_any_more() -> None:
    assert closed(closed(story().training(), SHUT)).check(RULE) is None


def test_of_an_attempt_that_is_over_nothing_is_reported() -> None:
    assert closed(story().training(), SHUT).exits(0).check(RULE) is None


def test_a_beginning_next_to_other_checkpoints_names_its_copies_and_what_has_none() -> None:
    timeline = story().training()
    found = ev.ExistingFound(
        at=timeline.now, job=JOB, attempt=1, count=3, kept=2, folder="/state/existing", left_out=("/d/x.pt: no room",)
    )
    timeline.put(found)
    flag = timeline.check(RULE)
    assert flag is not None
    assert flag.message == (
        "started without a checkpoint handed to it, although 3 unproven checkpoints exist; "
        "copies of 2 are kept in /state/existing; no copy of /d/x.pt: no room"
    )


def test_nothing_closed_and_nothing_there_is_nothing_to_tell() -> None:
    assert story().training().check(RULE) is None
