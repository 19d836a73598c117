"""The owner's nights of November: what happened then, and what happens now."""

from __future__ import annotations

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.findings import FaultClass
from supervisor.core.job import Phase
from supervisor.core.readings import Stage

from .stories import NAN, TRAINER, Life, life

BATCHES = 41_163
MISSING_DATABASE = "MIOpen(HIP): Warning [SQLiteBase] Missing system database file: gfx1030_18.kdb"


def night() -> Life:
    """A training that has made its first steps, half a second each."""
    timeline = life().says(ev.AgentEvent.PLAN, **TRAINER, epochs=50, batches_per_epoch=BATCHES, device="cuda:0")
    return timeline.training(steps=200, every_s=0.4)


def stop_of(timeline: Life) -> de.Stop:
    stops = [decision for decision in timeline.decisions if isinstance(decision, de.Stop)]
    assert len(stops) == 1
    return stops[0]


def test_99_percent_gpu_and_no_batch_is_found_within_the_limit_of_a_start() -> None:
    timeline = life().started().stage(Stage.SETUP).silence(30).stage(Stage.WARMUP)
    timeline.gpu(120, busy=99.0, used=3_000_000_000)
    warned = timeline.last
    assert isinstance(warned, de.Warn)
    assert warned.flag.rule == "busy_without_progress"
    timeline.gpu(479, busy=99.0, used=3_000_000_000)
    assert timeline.read_decisions() == ["Launch", "Warn"]
    timeline.gpu(1, busy=99.0)
    stop = stop_of(timeline)
    assert stop.flag is not None
    assert (stop.flag.rule, stop.save) == ("start_timeout", False)


def test_on_a_gpu_that_miopen_fails_on_the_search_is_ended_after_two_minutes_and_not_eight() -> None:
    timeline = life().started().stage(Stage.SETUP).silence(30).stage(Stage.WARMUP)
    timeline.gpu(119, busy=99.0, gfx="gfx1010")
    assert timeline.read_decisions() == ["Launch"]
    timeline.gpu(1, busy=99.0, gfx="gfx1010")
    flag = stop_of(timeline).flag
    assert flag is not None
    assert (flag.rule, flag.fault) == ("busy_without_progress", "miopen")
    assert flag.diagnosis is not None
    assert "MIOpen" in flag.diagnosis.causes[0]
    assert 'conv2d = "planned"' in flag.diagnosis.advice[1]


def test_after_an_hour_of_half_second_steps_the_freeze_of_7_8_hours_is_found_in_seconds() -> None:
    timeline = night()
    timeline.stage(Stage.STEP, stages_complete=True).steps(201, 1500, 0.4)
    timeline.gpu(7, busy=99.0)
    assert timeline.read_decisions() == ["Launch"]
    timeline.gpu(1, busy=99.0)
    flag = stop_of(timeline).flag
    assert flag is not None
    assert flag.message == "no step for 8 s in stage step (learned limit 8 s), last step 1500"


def test_a_freeze_in_mid_epoch_at_full_load_is_found_in_a_minute() -> None:
    timeline = night()
    for _ in range(60):
        timeline.gpu(busy=99.0, used=4_200_000_000).silence(1)
    stop = stop_of(timeline)
    assert stop.flag is not None
    assert stop.flag.rule == "stall"


def test_a_freeze_soon_after_validation_and_checkpoint_resumes_from_that_checkpoint() -> None:
    timeline = night().stage(Stage.VALIDATE).silence(1200).stage(Stage.CHECKPOINT).silence(2)
    timeline.saves("last.pt", 200).silence(1).stage(Stage.STEP)
    assert timeline.read_decisions() == ["Launch"]
    timeline.steps(201, 205, 0.4).silence(60)
    assert stop_of(timeline).flag is not None
    launch = timeline.silence(40).exits(signal=9).looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is not None
    assert launch.resume_from.path == "last.pt"


def test_a_freeze_on_the_first_batch_after_the_checkpoint_resumes_from_it_too() -> None:
    timeline = life().started().steps(1, 200).silence(0.5).saves("last.pt", 200).silence(60)
    launch = timeline.exits(signal=15).looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from == timeline.saved[0]


def test_three_resumes_that_hang_before_their_first_batch_end_in_words_not_in_a_loop() -> None:
    timeline = night().saves("last.pt", 200).exits(signal=9)
    while timeline.phase() is Phase.BACKOFF:
        timeline.looks().silence(600)
        timeline.started().stage(Stage.WARMUP).prints(MISSING_DATABASE, FaultClass.MIOPEN)
        timeline.silence(600).silence(40).exits(signal=9)
    names = timeline.read_decisions()
    tried = [(trial.cause, trial.remedy) for trial in timeline.job.course.trials]
    assert tried == [("crash", "restart"), ("slow_start", "restart"), ("slow_start", "conv2d")] + [
        ("slow_start", item) for item in ("cudnn_off", "compile_off", "no_workers")
    ]
    assert names[-1] == "GiveUp"
    assert "the same slow_start at the same place (step 200" in (timeline.job.reason or "")
    assert MISSING_DATABASE in (timeline.job.reason or "")
    assert timeline.job.miopen_failed


def test_two_isolated_nans_are_reported_and_the_training_goes_on() -> None:
    timeline = night().steps(201, 201, loss=NAN).steps(202, 231).steps(232, 232, loss=NAN).steps(233, 400)
    assert timeline.read_decisions() == ["Launch", "Warn", "Warn"]


def test_systematic_nan_stops_and_goes_back_before_its_first() -> None:
    timeline = night().saves("best.pt", 200).silence(1)
    for begin in range(201, 500, 103):
        timeline.steps(begin, begin, loss=NAN)
        timeline.saves(f"step{begin}.pt", begin)
        if "Stop" in [type(decision).__name__ for decision in timeline.decisions]:
            break
        timeline.steps(begin + 1, begin + 102)
    stop = stop_of(timeline)
    assert stop.flag is not None
    assert (stop.flag.since_step, stop.save) == (201, False)
    launch = timeline.exits(signal=15).looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is not None
    assert launch.resume_from.path == "best.pt"


def test_a_hard_reboot_is_resumed_by_itself() -> None:
    timeline = night().saves("last.pt", 200).silence(5).lost("the machine was rebooted").looks()
    launch = timeline.last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from == timeline.saved[0]


def test_a_starved_gpu_is_left_alone() -> None:
    timeline = life().training(10)
    for step in range(11, 100):
        timeline.gpu(5, busy=0.0, used=9_000_000_000, total=24_000_000_000).steps(step, step)
    assert timeline.read_decisions() == ["Launch"]


def test_a_hogged_workqueue_is_a_hint_and_no_verdict() -> None:
    timeline = night().kernel(
        FaultClass.QUEUE_EVICTION, "workqueue: amdgpu_amdkfd_restore_userptr_worker hogged CPU", fatal=False, gpu=None
    )
    assert timeline.steps(201, 300).read_decisions() == ["Launch", "Warn"]
