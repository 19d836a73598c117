"""Stall: judged by the step counter, stage by stage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core import events as ev
from supervisor.core.attempt.silences import Silences
from supervisor.core.flags import Severity
from supervisor.core.job import Phase
from supervisor.core.readings import HostReading, ProcessReading, Stage, StepRecord
from supervisor.core.rules import Rule
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.start_timeout import StartTimeout

from .stories import JOB, Story, life, story


def test_a_minute_without_a_step_is_a_stall() -> None:
    flag = story().training(steps=100).silence(60).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert not flag.can_save
    assert flag.message == "no step for 60 s in stage step (limit 60 s), last step 100"


@pytest.mark.parametrize(("silent", "limit_s"), [((100,), 300), ((98, 102), 1500), ((100,) * 3, 3600), ((97, 200), 60)])
def test_a_silence_for_which_it_was_stopped_before_may_last_longer(silent: tuple[int, ...], limit_s: int) -> None:
    timeline = story().training(steps=100)
    timeline.history.silences = Silences(steps=silent)
    assert timeline.silence(limit_s - 1).check(Stall()) is None
    flag = timeline.silence(1).check(Stall())
    assert flag is not None
    before = {300: "; 1 attempt was stopped after this step", 60: ""}.get(limit_s)
    if before is not None:
        assert flag.message == f"no step for {limit_s} s in stage step (limit {limit_s} s), last step 100{before}"


def test_a_pause_that_it_has_come_out_of_may_come_again() -> None:
    """It was stopped for each upload that took 90 s, and given up."""
    timeline = story().training(steps=100)
    timeline.history.silences = Silences(steps=(100,))
    timeline.silence(90).steps(101, 200).silence(179)
    assert timeline.check(Stall()) is None
    assert timeline.silence(5).check(Stall()) is not None


def test_a_validation_is_no_such_pause_nor_is_one_of_a_training_that_was_never_stopped() -> None:
    timeline = story().training(steps=100)
    timeline.history.silences = Silences(steps=(50,))
    timeline.stage(Stage.VALIDATE).silence(900).stage(Stage.STEP).steps(101, 200)
    assert timeline.silence(60).check(Stall()) is not None
    assert story().training(steps=100).silence(55).steps(101, 200).silence(60).check(Stall()) is not None


def test_a_training_whose_pause_is_longer_than_the_limit_is_not_given_up() -> None:
    """It saves its first checkpoint after step 100, which takes 90 s."""
    timeline = life([Stall()])
    for _ in range(4):
        timeline.training(steps=100)
        for _ in range(9):
            if timeline.phase() is Phase.RUNNING:
                timeline.silence(10)
        if timeline.phase() is Phase.RUNNING:
            break
        timeline.exits(signal=15).silence(600).looks()
    timeline.steps(101, 200)
    for _ in range(9):
        timeline.silence(10)
    timeline.steps(201, 300)
    assert (timeline.phase(), timeline.job.number) == (Phase.RUNNING, 2)


def test_one_second_short_of_the_limit_is_no_stall() -> None:
    assert story().training().silence(59).check(Stall()) is None


def test_a_limit_of_a_stage_that_is_shorter_than_any_other_is_asked_for_in_time() -> None:
    short = Stall(data_wait_limit_s=3.0)
    waiting = story().training().stage(Stage.DATA_WAIT)
    assert not short.may_flag(waiting.silence(2).history)
    assert short.may_flag(waiting.silence(1).history)


def test_a_step_interrupts_the_silence() -> None:
    assert story().training(100).silence(59).steps(101, 101).silence(59).check(Stall()) is None


def test_output_does_not_interrupt_the_silence() -> None:
    timeline = story().training()
    for _ in range(12):
        timeline.silence(5).prints("still alive")
    assert timeline.check(Stall()) is not None


def test_a_busy_gpu_does_not_excuse_a_stall() -> None:
    assert story().training().gpu(60, busy=99.0).check(Stall()) is not None


@pytest.mark.parametrize(
    ("stage", "limit_s"), [(Stage.VALIDATE, 3600.0), (Stage.CHECKPOINT, 900.0), (Stage.EXITING, 3600.0)]
)
def test_a_stage_has_its_own_limit(stage: Stage, limit_s: float) -> None:
    timeline = story().training().stage(stage).silence(limit_s - 1)
    assert timeline.check(Stall()) is None
    flag = timeline.silence(1).check(Stall())
    assert flag is not None
    assert stage.value in flag.message


def test_the_first_batch_after_a_validation_gets_the_whole_limit() -> None:
    timeline = story().training().stage(Stage.VALIDATE).silence(1000).stage(Stage.STEP).silence(59)
    assert timeline.check(Stall()) is None
    assert timeline.silence(1).check(Stall()) is not None


def test_it_spoils_no_checkpoint() -> None:
    flag = story().training().silence(60).check(Stall())
    assert flag is not None
    assert flag.since is None


def test_before_the_first_step_it_says_nothing() -> None:
    assert story().started().stage(Stage.STEP).silence(10_000).check(Stall()) is None


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.WARMUP])
def test_a_second_training_in_the_process_may_set_up_in_peace(stage: Stage) -> None:
    assert story().training().stage(Stage.ENDED).silence(5).stage(stage).silence(500).check(Stall()) is None


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.WARMUP])
def test_steps_outrank_a_stage_that_was_not_left(stage: Stage) -> None:
    timeline = story().started().stage(stage).steps(1, 10).silence(60)
    assert timeline.check(Stall()) is not None


def test_steps_of_an_unknown_stage_are_judged() -> None:
    assert story().started().steps(1, 10).silence(59).check(Stall()) is None
    flag = story().started().steps(1, 10).silence(60).check(Stall())
    assert flag is not None
    assert "stage unknown" in flag.message


def test_a_training_that_ended_does_not_stall() -> None:
    assert story().training().stage(Stage.ENDED).silence(9999).check(Stall()) is None
    assert story().training().says(ev.AgentEvent.TRAIN_END).silence(9999).check(Stall()) is None


def test_a_process_that_is_gone_does_not_stall() -> None:
    assert story().training().exits(1).silence(9999).check(Stall()) is None
    assert story().training().lost().silence(9999).check(Stall()) is None


def test_a_hook_that_failed_after_the_last_step_makes_it_a_warning() -> None:
    flag = story().training().says(ev.AgentEvent.HOOK_FAILED, where="torch_hook.step").silence(60).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_a_hook_that_failed_before_a_step_changes_nothing() -> None:
    timeline = (
        story().training(10).says(ev.AgentEvent.HOOK_FAILED, where="ultralytics_hook.on_model_save").steps(11, 12)
    )
    flag = timeline.silence(60).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_a_readopted_attempt_whose_steps_are_not_at_hand_can_stall() -> None:
    timeline = story().started()
    timeline.history.first_step_at = timeline.history.last_step_at = timeline.now
    timeline.history.claimed = True
    flag = timeline.silence(60).check(Stall())
    assert flag is not None


def test_act_off_reports_only() -> None:
    flag = story().training().silence(60).check(Stall(act=False))
    assert flag is not None
    assert flag.severity is Severity.WARNING


# --- learned limits: the silence and an agent that tells every stage ------------------------------------------------


def learnt(*, stages_complete: bool = True) -> Story:
    """A training of 18 batches a second that has been watched for a while."""
    return story().training(100).stage(Stage.STEP, stages_complete=stages_complete).steps(101, 1300, 1 / 18)


def test_after_learning_a_stall_is_found_in_eight_seconds() -> None:
    timeline = learnt().silence(7.9)
    assert timeline.check(Stall()) is None
    flag = timeline.silence(0.1).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert flag.message == "no step for 8 s in stage step (learned limit 8 s), last step 1300"


def test_where_not_every_stage_is_reported_it_is_only_reported_until_the_setting_says_so() -> None:
    timeline = learnt(stages_complete=False).silence(8)
    flag = timeline.check(Stall())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    flag = timeline.silence(52).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_a_machine_that_gasps_for_memory_proves_nothing_until_then() -> None:
    timeline = learnt()
    reading = HostReading(at=timeline.now.plus(9), memory_stall_percent=60.0)
    timeline.silence(9).put(ev.HostRead(at=reading.at, reading=reading))
    flag = timeline.check(Stall())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    flag = timeline.silence(51).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_without_learn_the_setting_counts_alone() -> None:
    assert learnt().silence(59).check(Stall(learn=False)) is None


def test_a_machine_that_has_just_woken_up_is_given_the_whole_limit() -> None:
    timeline = learnt()
    timeline.put(ev.ClockStepped(at=timeline.now.plus(1), by_s=30_000))
    assert timeline.silence(59).check(Stall()) is None
    assert timeline.silence(1).check(Stall()) is not None


def test_steps_that_wait_unread_are_no_silence() -> None:
    """The daemon was held up for a minute: what it does not know yet is not missing."""
    timeline = learnt().looked().silence(120)
    assert timeline.check(Stall()) is None
    timeline.looked(ago_s=115)
    assert timeline.check(Stall()) is None
    assert timeline.looked().check(Stall()) is not None


def test_old_steps_that_were_read_just_now_say_nothing_of_those_behind_them() -> None:
    """A reader that is held up comes to the steps of two minutes ago first; the newest are in its next page."""
    timeline = learnt().looked().silence(120)
    old = replace(timeline.history.steps[-1], at=timeline.now.plus(-119), step=timeline.history.steps[-1].step + 1)
    timeline.put(ev.StepsMade(at=timeline.now, job=JOB, attempt=timeline.attempt, records=(old,)))
    assert timeline.check(Stall()) is None
    assert timeline.looked().check(Stall()) is not None


def test_a_training_that_an_exception_ends_slowly_has_the_settings_limit() -> None:
    timeline = learnt().says(ev.AgentEvent.EXCEPTION, type="OutOfMemoryError", message="CUDA out of memory.")
    assert timeline.silence(59.9).check(Stall()) is None
    flag = timeline.silence(0.1).check(Stall())
    assert flag is not None
    raised = "a process raised OutOfMemoryError: CUDA out of memory."
    assert flag.message == f"no step for 60 s in stage step (limit 60 s), last step 1300; {raised}"


def test_a_program_that_waits_for_a_process_which_an_exception_ended_has_that_named() -> None:
    """Sample Factory waits for its inference worker, and prints its frames per second, 0, every five seconds."""
    timeline = story().training(40).says(ev.AgentEvent.EXCEPTION, type="KeyError", message="of a step before", pid=7)
    timeline.steps(41, 42)
    facts: dict[str, object] = {"type": "RuntimeError", "message": "probability tensor\x1b[0m\nhas nan"}
    raised = ev.AgentReported(at=timeline.now, job=JOB, attempt=1, agent_event=ev.AgentEvent.EXCEPTION, facts=facts)
    timeline.put(replace(raised, pid=5286))
    flag = timeline.silence(60).check(Stall())
    assert flag is not None
    assert flag.message.endswith("last step 42; process 5286 raised RuntimeError: probability tensor has nan")


def test_at_rest_an_exception_has_the_settings_limit_too() -> None:
    timeline = fed().says(ev.AgentEvent.EXCEPTION, type="OutOfMemoryError", message="CUDA out of memory.")
    assert timeline.tree(59, cpu=0.2).check(Stall()) is None


def test_an_exception_that_the_training_outlived_leaves_the_learned_limit() -> None:
    timeline = learnt().says(ev.AgentEvent.EXCEPTION, type="ValueError", message="of a thread").steps(1301, 1301)
    assert timeline.silence(8.1).check(Stall()) is not None


def test_what_a_trouble_took_is_not_learned() -> None:
    timeline = learnt()
    before = timeline.history.learned.limit_s(Stage.STEP, 60.0)
    timeline.silence(30)
    timeline.history.flagged = True
    for step in range(1301, 1310):
        timeline.steps(step, step, 30.0)
    timeline.history.flagged = False
    assert timeline.history.learned.limit_s(Stage.STEP, 60.0) == before


def test_neither_a_sleep_nor_the_stage_between_two_steps_is_learned_as_a_step() -> None:
    timeline = learnt()
    for number in range(10):
        step = 1301 + 3 * number
        timeline.put(ev.ClockStepped(at=timeline.now.plus(1), by_s=30_000))
        timeline.steps(step, step, 20.0)
        timeline.stage(Stage.VALIDATE, stages_complete=True).silence(40).stage(Stage.STEP, stages_complete=True).steps(
            step + 1, step + 2
        )
    assert timeline.history.learned.limit_s(Stage.STEP, 60.0) == 8.0
    assert timeline.history.learned.limit_s(Stage.VALIDATE, 3600.0) == pytest.approx(160, rel=0.06)


def test_a_wait_for_data_is_learned_apart_from_the_step() -> None:
    timeline = story().training(100).stage(Stage.STEP, stages_complete=True)
    for step in range(101, 1300):
        timeline.now = timeline.now.plus(6.0)
        record = StepRecord(at=timeline.now, step=step, loss=1.0, data_wait_s=5.9)
        timeline.put(ev.StepsMade(at=timeline.now, job=JOB, attempt=1, records=(record,)))
    assert timeline.history.learned.limit_s(Stage.STEP, 60.0) == 8.0
    assert timeline.history.learned.limit_s(Stage.DATA_WAIT, 180.0) == 60.0


@pytest.mark.parametrize(("stage", "limit_s"), [(Stage.DATA_WAIT, 180.0), (Stage.COMPILE, 600.0)])
def test_what_lies_inside_a_step_has_its_own_limit(stage: Stage, limit_s: float) -> None:
    timeline = story().training(100).stage(stage, stages_complete=True).silence(limit_s - 1)
    assert timeline.check(Stall()) is None
    assert timeline.silence(1).check(Stall()) is not None


def fed(*, device: str | None = "cpu", stages_complete: bool = True) -> Story:
    """A training on the CPU of which it is known how long it waits for data."""
    timeline = story().training(100)
    if device is not None:
        timeline.says(ev.AgentEvent.PLAN, device=device)
    timeline.stage(Stage.STEP, stages_complete=stages_complete)
    for step in range(101, 1300):
        timeline.now = timeline.now.plus(0.1)
        record = StepRecord(at=timeline.now, step=step, loss=1.0, data_wait_s=0.01)
        timeline.put(ev.StepsMade(at=timeline.now, job=JOB, attempt=1, records=(record,)))
    return timeline.stage(Stage.DATA_WAIT, stages_complete=stages_complete)


def test_a_wait_for_data_in_which_the_whole_job_rests_is_found_sooner() -> None:
    assert fed().tree(14, cpu=0.2).check(Stall()) is None
    flag = fed().tree(15, cpu=0.2).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert flag.message == "no step for 15 s in stage data_wait (learned limit at rest 15 s), last step 1299"


@pytest.mark.parametrize(("cpu", "stuck"), [(40.0, ()), (None, ()), (0.2, (7,))], ids=["works", "unknown", "disk"])
def test_a_wait_for_data_in_which_somebody_may_be_at_work_has_the_whole_limit(
    cpu: float | None, stuck: tuple[int, ...]
) -> None:
    assert fed().tree(59, cpu=cpu, stuck=stuck).check(Stall()) is None
    assert fed().tree(60, cpu=cpu, stuck=stuck).check(Stall()) is not None


def test_of_rest_it_reports_how_near_it_is() -> None:
    silence, rest = Stall().measure(fed().tree(12, cpu=0.2).history)
    assert silence.limit == 60.0
    assert rest.now == pytest.approx(12.0)
    assert (rest.limit, rest.learned, rest.severity) == (15.0, True, Severity.CRITICAL)
    _, rest = Stall().measure(fed().tree(12, cpu=50.0).history)
    assert rest.now == 0.0


def test_rest_that_was_interrupted_counts_again() -> None:
    assert fed().tree(10, cpu=0.2).tree(1, cpu=50.0).tree(14, cpu=0.2).check(Stall()) is None


def test_a_gpu_at_work_or_unseen_is_no_rest() -> None:
    def readings(busy: float | None) -> Story:
        timeline = fed(device="cuda:0")
        for _ in range(20):
            timeline.gpu(busy=busy).tree(cpu=0.2).silence(1)
        return timeline

    assert readings(99.0).check(Stall()) is None
    assert readings(None).check(Stall()) is None
    assert readings(0.0).check(Stall()) is not None


def test_a_gpu_that_was_still_at_work_when_the_wait_began_rests_from_then_on() -> None:
    timeline = fed(device="cuda:0").gpu(busy=90.0)
    for _ in range(18):
        timeline.silence(1).gpu(busy=0.0).tree(cpu=0.2)
    assert timeline.check(Stall()) is not None


def test_rest_proves_nothing_where_a_stage_may_go_untold() -> None:
    assert fed(stages_complete=False).tree(30, cpu=0.2).check(Stall()) is None


def test_how_near_it_is_and_whether_that_was_learned() -> None:
    (watched,) = Stall().measure(learnt().silence(4).history)
    assert watched.now == pytest.approx(4.0)
    assert (watched.limit, watched.learned) == (8.0, True)
    assert watched.share == pytest.approx(0.5)
    (watched,) = Stall().measure(story().started().history)
    assert watched.not_watched == "no step was seen yet"


def test_where_a_short_silence_is_no_proof_both_limits_are_watched() -> None:
    short, own = Stall().measure(learnt(stages_complete=False).silence(9).history)
    assert (short.learned, short.severity, short.reached) == (True, Severity.WARNING, True)
    assert (own.limit, own.severity, own.reached) == (60.0, Severity.CRITICAL, False)


# --- steps that only the output shows -------------------------------------------------------------------------------


def bar(timeline: Story, step: int) -> Story:
    timeline.put(
        ev.OutputSeen(at=timeline.now, job=JOB, attempt=1, new_bytes=9, last_line=f"{step}/900", progress_step=step)
    )
    return timeline


def test_a_progress_bar_that_stands_still_is_reported_and_later_acts() -> None:
    timeline = bar(story().started(), 7)
    assert timeline.silence(899).check(Stall()) is None
    flag = timeline.silence(1).check(Stall())
    assert flag is not None
    assert (flag.severity, flag.subject) == (Severity.WARNING, "output")
    flag = timeline.silence(1800).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_a_bar_that_stands_still_while_every_process_idles_is_a_stall() -> None:
    flag = bar(story().started(), 7).tree(900, cpu=0.5).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def ended_bar(timeline: Story, steps: int) -> Story:
    for step in (steps // 2, steps):
        line = f"100%|###| {step}/{steps}"
        seen = ev.OutputSeen(
            at=timeline.now, job=JOB, attempt=1, new_bytes=9, last_line=line, progress_step=step, bar_steps=steps
        )
        timeline.put(seen)
    return timeline


def test_a_training_that_prints_nothing_after_the_bar_of_its_data_is_warned_of_and_not_stopped() -> None:
    """As after `Map: 100% 1000/1000` or `Loading checkpoint shards: 100% 3/3`."""
    timeline = ended_bar(ended_bar(story().started(), 1000), 3)
    flag = timeline.tree(7200, cpu=90.0).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_a_bar_that_ended_before_is_that_of_an_epoch_and_one_within_is_no_end() -> None:
    for timeline in (ended_bar(ended_bar(story().started(), 500), 500), bar(ended_bar(story().started(), 500), 7)):
        flag = timeline.tree(2700, cpu=90.0).check(Stall())
        assert flag is not None
        assert flag.severity is Severity.CRITICAL


def test_at_rest_the_end_of_any_bar_is_a_stall() -> None:
    flag = ended_bar(story().started(), 1000).tree(901, cpu=0.5).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_a_bar_that_is_redrawn_at_the_same_step_is_no_progress_and_one_that_moves_is() -> None:
    timeline = bar(bar(story().started(), 7).silence(800), 7).silence(100)
    assert timeline.check(Stall()) is not None
    assert bar(timeline, 8).silence(100).check(Stall()) is None


@pytest.mark.parametrize("stage", [Stage.VALIDATE, Stage.CHECKPOINT, Stage.DATA_WAIT])
def test_a_stopped_process_is_a_stall_as_soon_in_every_stage(stage: Stage) -> None:
    timeline = story().training().stage(stage)
    assert timeline.tree(59, stopped=(4242,)).check(Stall()) is None
    flag = timeline.tree(2, stopped=(4242,)).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert story().training().stage(stage).tree(100).check(Stall()) is None


def plain_loop() -> Story:
    """A loop of which only the steps are told, 4242 under its shim 1."""
    return story(gpus_used=()).started(4242).training()


ALONE = ((1, 0), (4242, 1))


def test_a_plain_loop_of_which_nothing_runs_is_a_stall_after_20_s() -> None:
    timeline = plain_loop().tree(19, cpu=0.1, switches=0.3, parents=ALONE)
    assert timeline.check(Stall()) is None
    flag = timeline.tree(1, cpu=0.1, switches=0.3, parents=ALONE).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert flag.message == "no step for 20 s in stage step (limit at rest 20 s), last step 100"


@pytest.mark.parametrize(
    "pause",
    [
        {"cpu": 99.0, "switches": None},
        {"cpu": 1.0, "switches": 40.0},
        {"cpu": 0.1, "switches": 0.3, "stuck": (4242,)},
        {"cpu": 0.1, "switches": 0.3, "served": (4242,)},
        {"cpu": 0.1, "switches": 0.3, "parents": (*ALONE, (4300, 4242))},
        {"cpu": 0.1, "switches": None},
        {"cpu": 0.1, "switches": 0.3, "timed": (4242,)},
        {"cpu": 0.1, "switches": 0.3, "asking": (4242,)},
    ],
    ids=[
        "computes",
        "reads or waits for a network",
        "waits for a disk",
        "waits for a file system's server",
        "waits for a child",
        "not counted",
        "sleeps by a timer",
        "waits for a peer's answer",
    ],
)
def test_a_healthy_pause_of_25_s_is_no_stall(pause: dict[str, Any]) -> None:
    assert plain_loop().tree(25, **{"parents": ALONE, **pause}).check(Stall()) is None


def test_a_loaders_own_workers_wake_nobody_at_rest() -> None:
    timeline = plain_loop().says(ev.AgentEvent.WORKERS, loader=1, pids=[4300], training=True)
    assert timeline.tree(20, cpu=0.1, switches=0.3, parents=(*ALONE, (4300, 4242))).check(Stall()) is not None


QUIET: dict[str, Any] = {"cpu": 0.1, "switches": 0.3, "parents": ALONE}


def test_a_pause_that_a_program_makes_by_itself_has_the_settings_limit() -> None:
    timeline = plain_loop().tree(59, **QUIET, timed=(4242,))
    assert timeline.check(Stall()) is None
    flag = timeline.tree(1, **QUIET, timed=(4242,)).check(Stall())
    assert flag is not None
    assert flag.message == "no step for 60 s in stage step (limit 60 s), last step 100"


def test_after_a_pause_of_its_own_rest_counts_from_its_end() -> None:
    timeline = plain_loop().tree(25, **QUIET, timed=(4242,)).tree(19, **QUIET)
    assert timeline.check(Stall()) is None
    assert timeline.tree(2, **QUIET).check(Stall()) is not None


def test_a_learned_limit_only_warns_of_a_pause_that_a_callback_makes() -> None:
    ways: tuple[dict[str, Any], ...] = ({"timed": (4242,)}, {"asking": (4242,)})
    for woken in ways:
        timeline = learnt().tree(30, **QUIET, **woken)
        flag = timeline.check(Stall())
        assert flag is not None
        assert flag.severity is Severity.WARNING
        assert flag.message.startswith("no step for 30 s in stage step (learned limit 8 s)")
        later = timeline.tree(30, **QUIET, **woken).check(Stall())
        assert later is not None
        assert later.severity is Severity.CRITICAL


def test_only_what_trains_or_draws_its_batches_is_woken_from_outside() -> None:
    other = (*ALONE, (4300, 1))
    assert plain_loop().tree(20, cpu=0.1, switches=0.3, parents=other, timed=(4300,)).check(Stall()) is not None
    drawing = plain_loop().says(ev.AgentEvent.WORKERS, loader=1, pids=[4300], training=True)
    workers = (*ALONE, (4300, 4242))
    assert drawing.tree(25, cpu=0.1, switches=0.3, parents=workers, asking=(4300,)).check(Stall()) is None


def test_of_several_ranks_a_peer_may_be_the_one_that_hangs() -> None:
    ranks = story(gpus_used=()).started(4242).claimed(4242, 4243).training()
    both = (*ALONE, (4243, 1))
    assert ranks.tree(20, cpu=0.1, switches=0.3, parents=both, asking=(4242, 4243)).check(Stall()) is not None


def test_a_gpu_that_works_or_is_not_read_is_no_rest() -> None:
    timeline = story(gpus_used=()).started(4242).training()
    for _ in range(25):
        timeline.tree(cpu=0.1, switches=0.3, parents=ALONE).gpu(busy=99.0).silence(1)
    assert timeline.check(Stall()) is None


def looping(device: str | None = "cpu") -> Story:
    """A JAX training on a device whose first call is one compiled loop; 4242 runs under its shim 1."""
    timeline = story(gpus_used=()).started(4242).claimed(4242)
    return timeline.says(ev.AgentEvent.DEVICE, device=device).stage(Stage.LOOP)


@pytest.mark.parametrize("rule", [Stall(), StartTimeout()], ids=["stall", "start_timeout"])
def test_a_compiled_loop_that_computes_may_last_as_long_as_the_training(rule: Rule) -> None:
    timeline = looping().tree(7200, cpu=99.0, every_s=10.0, parents=ALONE)
    assert timeline.check(rule) is None
    assert timeline.steps(1, 1).tree(7200, cpu=99.0, every_s=10.0, parents=ALONE).check(rule) is None


def test_a_compiled_loop_in_which_the_whole_job_rests_is_a_stall_also_before_its_first_call_ends() -> None:
    timeline = looping().tree(19, cpu=0.1, switches=0.3, parents=ALONE)
    assert timeline.check(Stall()) is None
    flag = timeline.tree(1, cpu=0.1, switches=0.3, parents=ALONE).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    text = "no end of a compiled loop for 20 s, whose steps are not seen: the whole job rests"
    assert flag.message == text


@pytest.mark.parametrize("device", [None, "gpu", "tpu"])
def test_a_process_at_rest_may_wait_for_a_loop_on_what_no_sensor_reads(device: str | None) -> None:
    assert looping(device).tree(3600, cpu=0.1, switches=0.3, every_s=10.0, parents=ALONE).check(Stall()) is None


def test_a_call_far_longer_than_those_before_it_is_warned_of_and_no_more() -> None:
    timeline = looping().steps(1, 7, every_s=100.0)
    assert timeline.tree(700, cpu=99.0, every_s=10.0, parents=ALONE).check(Stall()) is None
    flag = timeline.tree(200, cpu=99.0, every_s=10.0, parents=ALONE).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert "calls before it suggest at most" in flag.message


def listed(timeline: Story, *pids: int) -> Story:
    reading = ProcessReading(at=timeline.now, processes=len(pids), pids=pids)
    timeline.put(ev.ProcessesRead(at=timeline.now, job=JOB, attempt=1, reading=reading))
    return timeline


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ((4242, 4250, 4251), (4242, 4251), "; gone since: process 4250"),
        ((4242, 4250, 4251), (4242, 4250, 4251, 4260), None),
        ((4242, *range(4300, 4305)), (4242,), "; gone since: process 4300, 4301, 4302, and 2 more"),
    ],
)
def test_what_the_others_may_wait_for_is_named_where_it_is_gone_since(
    before: tuple[int, ...], after: tuple[int, ...], named: str | None
) -> None:
    """As a learner that the program spawned, or a worker of a pool that no library reports, killed by SIGKILL."""
    timeline = listed(story().training(100), *before, 4999)
    for _ in range(3):
        listed(timeline.training(20), *before)
    flag = listed(timeline.silence(60), *after).check(Stall())
    assert flag is not None
    assert ("gone since" in flag.message) is (named is not None)
    assert (named or "") in flag.message
    assert "4999" not in flag.message, "a helper that came and went"
