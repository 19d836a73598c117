"""Stopped process: what a signal has stopped is told in every stage, acted on by a setting, and explains the rest."""

from __future__ import annotations

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.decide import decide
from supervisor.core.flags import SHADOW, Act, RedFlag, Severity
from supervisor.core.judge import LEFT_STOPPED, judge
from supervisor.core.readings import Stage
from supervisor.core.rules import RULES
from supervisor.core.rules.gpu_idle import GpuIdle
from supervisor.core.rules.idle_job import IdleJob
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.start_timeout import StartTimeout
from supervisor.core.rules.stopped_process import RESUMES_S, StoppedProcess

from .stories import JOB, Life, Story, life, story

LAUNCHER, MAKER, OTHER = 4242, 4300, 4301


def launched() -> Story:
    """Ranks 0 and 1 under a launcher that wakes many times a second to look after them."""
    return story(gpus_used=()).started(LAUNCHER).claimed(MAKER, OTHER)


def critical(timeline: Story, rule: StoppedProcess | None = None) -> RedFlag | None:
    flag = timeline.check(rule or StoppedProcess())
    return flag if flag is not None and flag.severity is Severity.CRITICAL else None


@pytest.mark.parametrize("stage", [*Stage, None])
def test_a_stopped_rank_is_an_incident_after_30_s_in_every_stage(stage: Stage | None) -> None:
    timeline = launched()
    timeline = timeline if stage is None else timeline.training(10).stage(stage, stages_complete=True)
    assert timeline.tree(29, cpu=1.0, switches=40.0, stopped=(OTHER,)).check(StoppedProcess()) is None
    flag = critical(timeline.tree(1, cpu=1.0, switches=40.0, stopped=(OTHER,)))
    assert flag is not None
    where = "no step was seen yet" if stage is None else f"stage {stage.value}"
    assert flag.message == (
        f"process {OTHER} is stopped by a signal (SIGSTOP, Ctrl-Z) for 30 s, state T, without progress ({where}); "
        f"`kill -CONT {OTHER}` (SIGCONT) lets it go on"
    )
    assert flag.can_save


def test_after_the_end_of_the_training_as_well() -> None:
    ended = launched().training(10).says(ev.AgentEvent.TRAIN_END)
    assert critical(ended.tree(30, stopped=(MAKER,))) is not None


def test_a_step_and_a_reading_without_it_interrupt_it() -> None:
    assert launched().training(10).tree(25, stopped=(MAKER,)).steps(101, 101).tree(20, stopped=(MAKER,)).check(
        StoppedProcess()
    ) is None  # fmt: skip
    assert launched().training(10).tree(25, stopped=(MAKER,)).tree(1).tree(20, stopped=(MAKER,)).check(
        StoppedProcess()
    ) is None  # fmt: skip


def test_a_program_that_nothing_is_known_of_is_stopped_where_all_of_it_rests() -> None:
    assert critical(story().tree(31, cpu=0.5, switches=30.0, stopped=(7,))) is not None
    assert critical(story().tree(31, cpu=90.0, stopped=(7,))) is None
    assert critical(story().tree(31, stopped=(7,))) is None, "how much it works is not known"
    printing = story().tree(20, cpu=0.5, stopped=(7,)).prints("epoch 1").tree(20, cpu=0.5, stopped=(7,))
    assert critical(printing) is None
    computing = story()
    for _ in range(32):
        computing.tree(cpu=0.5, stopped=(7,)).gpu(busy=80.0).silence(1)
    assert critical(computing) is None


def test_a_stopped_launcher_is_a_warning_while_its_ranks_make_steps() -> None:
    timeline = launched().training(10)
    began, step = timeline.now, 11
    while timeline.now.seconds_since(began) < 29:
        assert timeline.check(StoppedProcess()) is None
        timeline.steps(step, step).tree(1, cpu=95.0, stopped=(LAUNCHER,))
        step += 1
    flag = timeline.steps(step, step).tree(3, cpu=95.0, stopped=(LAUNCHER,)).check(StoppedProcess())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert flag.message.startswith(f"the launcher, process {LAUNCHER}, is stopped by a signal (SIGSTOP, Ctrl-Z) for 3")
    assert flag.message.endswith(f"`kill -CONT {LAUNCHER}` (SIGCONT) lets it go on")


def test_another_process_that_is_stopped_while_steps_are_made_is_no_warning() -> None:
    timeline = launched().training(10)
    for step in range(11, 60):
        timeline.steps(step, step).tree(1, cpu=95.0, stopped=(OTHER + 1,))
    assert timeline.check(StoppedProcess()) is None


def test_a_stopped_helper_of_a_training_that_works_is_a_warning() -> None:
    flag = launched().stage(Stage.SETUP).tree(40, cpu=95.0, stopped=(LAUNCHER,)).check(StoppedProcess())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_what_a_debugger_holds_is_a_warning_that_names_it() -> None:
    flag = launched().training(10).tree(59, cpu=0.0, switches=0.0, traced=(MAKER,)).check(StoppedProcess())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert f"process {MAKER} is held by a debugger for 59 s" in flag.message
    assert "SIGCONT" not in flag.message


def test_a_start_under_a_debugger_is_a_warning_only_where_the_debugger_rests_too() -> None:
    """`gdb -batch -ex run` stops it at each library that it loads, and most readings find it so."""
    assert launched().tree(90, cpu=70.0, traced=(MAKER,)).check(StoppedProcess()) is None
    flag = launched().tree(90, cpu=0.0, switches=0.0, traced=(MAKER,)).check(StoppedProcess())
    assert flag is not None
    assert "held by a debugger" in flag.message
    attached = launched().tree(3, cpu=70.0, stopped=(MAKER,)).tree(90, cpu=70.0, traced=(MAKER,))
    assert attached.check(StoppedProcess()) is None, "a signal stopped it before, and no longer"


def test_a_sensor_that_is_silent_stops_nothing() -> None:
    assert launched().training(10).silence(300).check(StoppedProcess()) is None
    assert launched().training(10).tree(20, stopped=(MAKER,)).silence(90).check(StoppedProcess()) is None


def test_it_is_stopped_with_a_save_and_retried() -> None:
    timeline = life().started(LAUNCHER).claimed(MAKER).training(10)
    timeline.stage(Stage.VALIDATE)
    timeline.tree(42, cpu=0.0, switches=0.0, stopped=(MAKER,))
    stops = [decision for decision in timeline.decisions if isinstance(decision, de.Stop)]
    assert [(stop.flag.rule if stop.flag else None, stop.save) for stop in stops] == [("stopped_process", True)]
    warnings = [decision for decision in timeline.decisions if isinstance(decision, de.Warn)]
    assert not warnings, "that nothing runs is explained by the stop"


def test_a_stall_of_a_process_that_was_stopped_all_the_time_may_be_saved() -> None:
    parents = ((1, 0), (LAUNCHER, 1))
    for every_s in (1.0, 5.0):
        timeline = story(gpus_used=()).started(LAUNCHER).training().tree(cpu=0.0, switches=0.0, parents=parents)
        timeline.silence(2).tree(25, cpu=0.0, switches=0.0, parents=parents, stopped=(LAUNCHER,), every_s=every_s)
        flag = timeline.check(Stall())
        assert flag is not None
        assert flag.can_save
    late = story(gpus_used=()).started(LAUNCHER).training().tree(30, cpu=0.0, switches=0.0, parents=parents)
    flag = late.tree(10, cpu=0.0, switches=0.0, parents=parents, stopped=(LAUNCHER,)).check(Stall())
    assert flag is not None
    assert not flag.can_save, "it had hung before somebody stopped it"
    hung = story(gpus_used=()).started(LAUNCHER).training().tree(25, cpu=0.0, switches=0.0, parents=parents)
    flag = hung.check(Stall())
    assert flag is not None
    assert not flag.can_save


# --- what its owner stops ---------------------------------------------------------------------------------------------

LEFT = (StoppedProcess(act=False), Stall(), StartTimeout(), IdleJob(), GpuIdle())


def test_where_the_setting_says_so_it_is_reported_once_and_left_alone_for_hours() -> None:
    timeline = life(LEFT).started(LAUNCHER).claimed(MAKER).training(10)
    timeline.tree(7200, cpu=0.0, switches=0.0, stopped=(MAKER,), every_s=10.0)
    (warning,) = timeline.decisions[1:]
    assert isinstance(warning, de.Warn)
    assert warning.flag.rule == "stopped_process"


def test_once_it_goes_on_it_has_time_for_its_next_step_and_is_watched_from_then_on() -> None:
    timeline = launched().training(10).tree(3600, stopped=(MAKER,), every_s=10.0)
    timeline.tree(100)
    assert judge(LEFT, timeline.history) == ()
    timeline.steps(101, 110).tree(100)
    assert {flag.rule for flag in judge(LEFT, timeline.history)} == {"stall"}


def test_one_that_never_goes_on_stepping_is_found_all_the_same() -> None:
    timeline = launched().training(10).tree(60, stopped=(MAKER,)).tree(RESUMES_S + 10)
    assert {flag.rule for flag in judge(LEFT, timeline.history)} == {"stall"}


@pytest.mark.parametrize("act", [True, SHADOW])
def test_only_a_plain_no_leaves_it_alone(act: bool) -> None:
    timeline = launched().training(10).tree(70, stopped=(MAKER,))
    found = {flag.rule for flag in judge((StoppedProcess(act=act), Stall()), timeline.history)}
    assert found == {"stopped_process", "stall"}


def test_the_time_that_it_was_stopped_teaches_nothing_of_its_pace() -> None:
    timeline = launched().training(100)
    before = timeline.history.pace.idle_s
    timeline.tree(50, stopped=(MAKER,)).steps(101, 200)
    assert timeline.history.learned_limit_s(60.0) in (None, launched().training(100).history.learned_limit_s(60.0))
    assert timeline.history.pace.idle_s >= before


def test_every_rule_that_is_left_out_is_a_rule() -> None:
    assert {rule.name for rule in RULES} >= LEFT_STOPPED


# --- SIGCONT first ---------------------------------------------------------------------------------------------------


def stopped_life(rule: StoppedProcess | None = None) -> Life:
    """A training whose only process is stopped in a validation, which has no short limit of its own."""
    rules = [rule or kind() if kind is StoppedProcess else kind() for kind in RULES]
    timeline = life(rules).started(LAUNCHER).claimed(MAKER).training(10)
    timeline.stage(Stage.VALIDATE)
    return timeline


def acts(timeline: Life) -> list[str]:
    kinds = (de.Continue, de.Stop)
    return [type(decision).__name__ for decision in timeline.decisions if isinstance(decision, kinds)]


def continued(timeline: Life) -> Life:
    """The executor reports that it sent SIGCONT."""
    (asked,) = (decision for decision in timeline.decisions if isinstance(decision, de.Continue))
    timeline.put(ev.Continued(at=timeline.now, job=asked.job, attempt=asked.attempt, pids=asked.pids))
    return timeline


def test_a_stopped_training_is_continued_first_and_that_is_a_warning() -> None:
    timeline = stopped_life().tree(30, cpu=0.0, switches=0.0, stopped=(MAKER,))
    (decision,) = (item for item in timeline.decisions if isinstance(item, de.Continue))
    assert (decision.job, decision.attempt, decision.pids) == (JOB, 1, (MAKER,))
    assert decision.flag.severity is Severity.WARNING
    assert decision.reason.endswith(f"SIGCONT is sent to {MAKER}; if that does not help it is stopped and resumed")
    assert decision.flag.key in timeline.job.open_flags, "what was told is not told again"
    assert acts(timeline) == ["Continue"]


def test_a_training_that_goes_on_after_sigcont_is_left_to_its_next_step() -> None:
    timeline = continued(stopped_life().tree(30, cpu=0.0, switches=0.0, stopped=(MAKER,)))
    timeline.tree(55, cpu=90.0).steps(101, 160)
    timeline.tree(30, cpu=90.0)
    assert acts(timeline) == ["Continue"]


def test_a_stall_that_a_stop_explains_is_continued_too_and_acts_where_no_step_comes() -> None:
    timeline = life([Stall(), StoppedProcess(hold_s=300.0)]).started(LAUNCHER).claimed(MAKER).training(10)
    timeline.tree(62, cpu=0.0, switches=0.0, stopped=(LAUNCHER, MAKER))
    assert acts(timeline) == ["Continue"]
    continued(timeline).tree(58, cpu=50.0)
    assert acts(timeline) == ["Continue"], "it has the time of a pause for its next step"
    timeline.tree(10, cpu=50.0)
    assert acts(timeline) == ["Continue", "Stop"]


@pytest.mark.parametrize("again", [True, False])
def test_sigcont_is_tried_once_and_waited_for_ten_seconds(again: bool) -> None:
    timeline = continued(stopped_life().tree(30, cpu=0.0, switches=0.0, stopped=(MAKER,)))
    if again:
        timeline.tree(1, cpu=50.0).tree(29, cpu=0.0, switches=0.0, stopped=(MAKER,))
        assert acts(timeline) == ["Continue"]
        timeline.tree(3, cpu=0.0, switches=0.0, stopped=(MAKER,))
    else:
        timeline.tree(9, cpu=0.0, switches=0.0, stopped=(MAKER,))
        assert acts(timeline) == ["Continue"]
        timeline.tree(2, cpu=0.0, switches=0.0, stopped=(MAKER,))
    assert acts(timeline) == ["Continue", "Stop"]


def test_without_the_setting_it_is_stopped_at_once() -> None:
    rule = StoppedProcess(continue_first=False)
    assert acts(stopped_life(rule).tree(31, cpu=0.0, switches=0.0, stopped=(MAKER,))) == ["Stop"]


def test_of_two_that_make_steps_every_rule_names_the_one_that_sigcont_lets_go_on() -> None:
    timeline = launched().training(10).tree(62, cpu=0.0, switches=0.0, stopped=(OTHER,), traced=(MAKER,))
    stall, stopped = timeline.check(Stall()), timeline.check(StoppedProcess())
    assert stall is not None
    assert stall.message.endswith(f"; process {OTHER} is stopped by a signal (SIGSTOP, Ctrl-Z), state T, and 1 more")
    assert stopped is not None
    assert stopped.message.startswith(f"process {OTHER} is stopped by a signal (SIGSTOP, Ctrl-Z) for 62 s")


def test_a_debugger_at_what_makes_steps_is_named_before_a_helper_that_is_stopped() -> None:
    helper = MAKER - 1
    timeline = launched().training(10).tree(62, cpu=0.0, switches=0.0, stopped=(helper,), traced=(MAKER,))
    stall, stopped = timeline.check(Stall()), timeline.check(StoppedProcess())
    assert stall is not None
    assert stall.message.endswith(f"; process {MAKER} is held by a debugger, state T, and 1 more")
    assert stopped is not None
    assert stopped.message.startswith(f"process {MAKER} is held by a debugger for 62 s")


def test_a_stall_that_is_found_sooner_than_the_stop_names_the_stopped_process() -> None:
    """Its limit, set or learned of a fast training, is shorter than the time for which a process is seen stopped."""
    timeline = life([Stall(limit_s=20.0), StoppedProcess(continue_first=False)])
    timeline.started(LAUNCHER).claimed(MAKER).training(10)
    timeline.tree(29, cpu=0.0, switches=0.0, stopped=(LAUNCHER, MAKER))
    (stop,) = (item for item in timeline.decisions if isinstance(item, de.Stop))
    assert stop.flag is not None
    assert stop.flag.rule == "stall"
    assert stop.flag.message.endswith(
        f"; process {MAKER} is stopped by a signal (SIGSTOP, Ctrl-Z), state T, and 1 more"
    )
    assert stop.flag.diagnosis is not None
    assert stop.flag.diagnosis.causes == ("the process was stopped, by SIGSTOP or with a debugger (state T)",)
    assert f"kill -CONT {LAUNCHER} {MAKER} lets it go on" in stop.flag.diagnosis.advice


HOLDS = {
    "traced": "held by a debugger",
    "on_terminal": "stopped by the job control of its terminal",
    "frozen": "frozen with its control group",
}


@pytest.mark.parametrize("how", HOLDS)
def test_a_stall_says_who_holds_the_process(how: str) -> None:
    timeline = story(gpus_used=()).started(LAUNCHER).claimed(MAKER).training(10)
    timeline.tree(62, cpu=0.0, switches=0.0, **{how: (MAKER,)})  # type: ignore[arg-type]  # one of the two
    flag = timeline.check(Stall())
    assert flag is not None
    state = "" if how == "frozen" else ", state T"
    assert flag.message.endswith(f"; process {MAKER} is {HOLDS[how]}{state}")


@pytest.mark.parametrize("act", [False, SHADOW])
def test_a_rule_that_does_not_act_continues_nothing(act: Act) -> None:
    timeline = stopped_life(StoppedProcess(act=act)).tree(40, cpu=0.0, switches=0.0, stopped=(MAKER,))
    assert acts(timeline) == []


@pytest.mark.parametrize("how", HOLDS)
def test_what_is_held_is_neither_continued_nor_stopped(how: str) -> None:
    timeline = stopped_life().tree(60, cpu=0.0, switches=0.0, **{how: (MAKER,)})  # type: ignore[arg-type]  # one of the two
    assert acts(timeline) == []
    warned = [item.flag.message for item in timeline.decisions if isinstance(item, de.Warn)]
    assert any(HOLDS[how] in message for message in warned)


@pytest.mark.parametrize("how", HOLDS)
def test_what_was_held_has_time_for_its_next_step_once_it_goes_on(how: str) -> None:
    """`docker pause` for the night, and a step of two minutes."""
    timeline = life([Stall(limit_s=300.0), StoppedProcess()]).started(LAUNCHER).claimed(MAKER).training(10)
    timeline.tree(7200, cpu=0.0, switches=0.0, every_s=60.0, **{how: (MAKER,)})  # type: ignore[arg-type]
    timeline.tree(120, cpu=90.0).steps(101, 102)
    assert acts(timeline) == []
    timeline.tree(330, cpu=90.0)
    assert acts(timeline) == ["Stop"], "a stall after that is one"


def test_a_frozen_process_is_named_with_what_thaws_it() -> None:
    flag = launched().training(10).tree(59, cpu=0.0, switches=0.0, frozen=(MAKER,)).check(StoppedProcess())
    assert flag is not None
    assert flag.message == f"process {MAKER} is frozen with its control group for 59 s, without progress (stage step)"
    assert flag.diagnosis is not None
    assert "it goes on once its control group is thawed: `docker unpause`, `systemctl thaw`" in flag.diagnosis.advice


def test_another_fault_at_the_same_time_is_not_waited_with() -> None:
    timeline = stopped_life().tree(20, cpu=0.0, switches=0.0, stopped=(MAKER,))
    flag = RedFlag(
        rule="stopped_process", severity=Severity.CRITICAL, at=timeline.now, message="stopped", stopped_pids=(MAKER,)
    )
    assert isinstance(decide(timeline.job, [flag], timeline.now), de.Continue)
    lost = RedFlag(rule="gpu_lost", severity=Severity.CRITICAL, at=timeline.now, message="lost")
    assert isinstance(decide(timeline.job, [flag, lost], timeline.now), de.Stop)
