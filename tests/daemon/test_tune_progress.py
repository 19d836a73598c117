"""The report of a tune names all that it tried, also where it came to no proof."""

from __future__ import annotations

from supervisor.core.tuning.compare import Gain
from supervisor.core.tuning.session import Session
from supervisor.core.tuning.trial import Adopted, Arm, Refused, Trial
from supervisor.daemon.tunes.progress import Progress


def test_a_tune_that_ended_early_names_what_it_had_proven_by_itself_and_what_it_was_trying() -> None:
    session = Session(
        adopted=(Adopted(knob="fused_optimizer", value=True, gain=Gain(gain=0.4, low=0.3, high=0.5)),),
        refused=(Refused(knob="threads", value=2, why="slower by 90%"),),
        trial=Trial(arm=Arm(knob="compile", value="default"), base={}, settings={"compile": "default"}),
    )
    now = Progress(session=session)
    assert [row.knob for row in now.report("net").refused] == ["threads"]
    now.problem = "the time given was over"
    found = now.report("net", "ended")
    assert found.adopted == []
    assert [(row.knob, row.why) for row in found.refused] == [
        ("threads", "slower by 90%"),
        ("fused_optimizer", "proven by itself, and not confirmed with the rest"),
        ("compile", "not settled: the tune ended"),
    ]
