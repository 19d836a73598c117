"""Every ladder as a story: the same trouble at the same place, until no remedy is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.findings import FaultClass
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.job import Limits, Phase
from supervisor.core.readings import Stage
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.causes import CAUSES
from supervisor.core.remedies.choose import choose
from supervisor.core.remedies.context import Ended, Experience, RemedyContext
from supervisor.core.remedies.effects import changes_of
from supervisor.core.remedies.settings import Remedies
from supervisor.core.remedies.spec import InForce
from supervisor.core.remedies.table import BY_NAME
from supervisor.core.remedies.trials import Course, Outcome, Trial
from supervisor.core.rules import RULES, cause_of
from supervisor.core.rules.non_finite_loss import NonFiniteLoss
from supervisor.core.scale import on_training, same_place
from supervisor.core.triage.finding import Finding
from tests.examples import at_least

from .stories import GB, GPU, NAN, OTHER_GPU, START, TRAINER, Life, life

PATIENT = Limits(budget=Budget(restarts=50, restarts_per_cause=50, restarts_per_period=99, backoff_s=(0.0,)))
"""Room for every ladder: what ends it is the ladder."""
EVERYTHING = RemedyContext(cpu_profile=True, free_gpus=(OTHER_GPU,))


def patient(limits: Limits = PATIENT, context: RemedyContext = EVERYTHING) -> Life:
    """A YOLO on a machine with two cards and a CPU profile, launched."""
    timeline = Life([NonFiniteLoss(tolerated=0), *(rule() for rule in RULES if rule is not NonFiniteLoss)], limits)
    timeline.context = context
    timeline.silence(0)
    return timeline


def trains(timeline: Life, steps: int = 60, *, patched: bool = False) -> Life:
    """An ordinary beginning, or a resume, up to step `steps`."""
    timeline.started().says(ev.AgentEvent.CLAIMED, torch="2.12.0")
    timeline.says(ev.AgentEvent.PLAN, **TRAINER, epochs=50, batches_per_epoch=1000, device="cuda:0")
    if patched or timeline.job.course.has("conv2d"):
        timeline.says(ev.AgentEvent.PATCHED, conv2d="planned")
    start = timeline.present().resume_from
    timeline.stage(Stage.STEP)
    return timeline.steps((start.step or 0) + 1 if start else 1, steps)


def asks_for_nccl(timeline: Life) -> Life:
    """Its script makes a process group of several ranks, with NCCL."""
    return timeline.says(ev.AgentEvent.SETTING_ASKED, setting="ranks_backend")


def raises(kind: str, message: str) -> Callable[[Life], object]:
    return lambda timeline: trains(timeline).says(ev.AgentEvent.EXCEPTION, type=kind, message=message).exits(1)


def stops(timeline: Life) -> None:
    """The training that is being stopped ends, at the latest killed."""
    if timeline.phase() is Phase.STOPPING:
        timeline.exits(signal=15)


def stands_still(timeline: Life, busy: float | None = None) -> Life:
    """It makes no step until it is stopped, which takes longer after a step at which it was before."""
    for _ in range(120):
        if timeline.phase() is Phase.RUNNING:
            timeline.silence(61) if busy is None else timeline.gpu(31, busy=busy)
    return timeline


def stalls(timeline: Life) -> None:
    stops(stands_still(trains(timeline)))


def idles(timeline: Life) -> None:
    stops(stands_still(trains(timeline).stage(Stage.STEP, stages_complete=True), busy=0.0))


def hangs_on_the_card(timeline: Life) -> None:
    stops(trains(timeline).kernel(FaultClass.GPU_HANG, gpu=None).silence(1))


def loses_the_card(timeline: Life) -> None:
    stops(trains(timeline).kernel(FaultClass.GPU_LOST, gpu=None))


def never_steps(timeline: Life) -> None:
    stops(timeline.started().says(ev.AgentEvent.CLAIMED, torch="1.13.1").stage(Stage.WARMUP).silence(601))


def gets_nan(timeline: Life) -> None:
    stops(trains(timeline).steps(61, 61, loss=NAN))


def fills_the_card(timeline: Life) -> None:
    stops(trains(timeline).gpu(12, used=6 * GB, gpu=timeline.job.course.gpu or GPU))


LADDERS: dict[str, tuple[Callable[[Life], object], tuple[str, ...]]] = {
    "non_finite": (
        gets_nan,
        ("skip_step", "older_generation", "lower_lr", "clip_gradients", "amp_off", "skip_data"),
    ),
    "oom_gpu": (
        raises("OutOfMemoryError", "HIP out of memory. Tried to allocate 20.00 MiB"),
        ("allocator", "half_batch", "half_batch", "smaller_images", "cpu_profile"),
    ),
    "oom_host": (raises("MemoryError", ""), ("fewer_workers", "no_workers", "half_batch")),
    "fragmentation": (fills_the_card, ("restart", "allocator", "half_batch", "half_batch", "smaller_images")),
    "miopen": (
        raises("RuntimeError", "miopenStatusUnknownError"),
        ("conv2d", "cudnn_off", "cpu_profile"),
    ),
    "slow_start": (
        never_steps,
        ("restart", "restart", "conv2d", "cudnn_off", "compile_off", "no_workers", "other_gpu", "cpu_profile"),
    ),
    "stall": (stalls, ("restart", "no_workers", "conv2d", "other_gpu", "cpu_profile")),
    "gpu_hang": (hangs_on_the_card, ("restart", "conv2d", "no_workers", "other_gpu", "cpu_profile")),
    "gpu_lost": (loses_the_card, ("other_gpu", "cpu_profile")),
    "no_kernel_image": (
        raises("RuntimeError", "HIP error: no kernel image is available for execution"),
        ("conv2d", "cudnn_off", "other_gpu", "cpu_profile"),
    ),
    "blas": (
        raises("RuntimeError", "rocBLAS error: internal"),
        ("restart", "amp_off", "other_gpu", "cpu_profile"),
    ),
    "compile": (raises("BackendCompilerFailed", "backend='inductor' raised: x"), ("compile_off",)),
    "loader": (
        raises("RuntimeError", "DataLoader worker (pid 7) is killed"),
        ("restart", "fewer_workers", "no_workers"),
    ),
    "collective": (
        lambda timeline: (
            asks_for_nccl(trains(timeline))
            .says(ev.AgentEvent.EXCEPTION, type="DistBackendError", message="NCCL error: ncclUnhandledCudaError")
            .exits(1)
        ),
        ("restart", "rccl_no_p2p", "rccl_simple", "ranks_host"),
    ),
    "crash": (raises("TypeError", "x"), ("restart", "older_generation")),
}


@pytest.mark.parametrize(
    ("hurt", "before"), [(never_steps, "restart"), (stalls, "no_workers")], ids=["slow_start", "stall"]
)
def test_ranks_that_stand_still_leave_nccl_where_they_asked_for_it(hurt: Callable[[Life], object], before: str) -> None:
    def hurt_ranks(timeline: Life) -> object:
        asks_for_nccl(timeline.started())
        return hurt(timeline)

    taken = walk(patient(), hurt_ranks)
    assert taken[taken.index("ranks_host") - 1] == before


def walk(timeline: Life, hurt: Callable[[Life], object], times: int = 20) -> list[str | None]:
    """Hurt it in the same way at the same place until it is given up; return the remedies, oldest first."""
    timeline.saves("a.pt", 20).silence(1).saves("b.pt", 40).silence(1)
    taken: list[str | None] = []
    for _ in range(times):
        timeline.read_decisions()
        hurt(timeline)
        ends = [decision for decision in timeline.decisions if isinstance(decision, de.Retry | de.GiveUp)]
        assert len(ends) == 1, (timeline.phase(), timeline.job.reason)
        if isinstance(ends[0], de.GiveUp):
            return taken
        taken.append(ends[0].remedy)
        timeline.looks().silence(1)
    raise AssertionError(f"no end of remedies: {taken}")


@pytest.mark.parametrize("cause", sorted(LADDERS))
def test_the_same_trouble_at_the_same_place_is_met_with_one_remedy_after_the_other(cause: str) -> None:
    hurt, ladder = LADDERS[cause]
    timeline = patient()
    assert tuple(walk(timeline, hurt)) == ladder
    assert {trial.cause for trial in timeline.job.course.trials} == {cause}
    assert f"the same {cause} at the same place" in (timeline.job.reason or "")
    assert f"no remedy is left for {cause}" in (timeline.job.reason or "")


def test_on_a_full_disk_it_is_started_from_the_newest_checkpoint_until_its_restarts_are_spent() -> None:
    """An older checkpoint makes no room, and nothing is wrong with the data or the code: somebody has to."""
    timeline = patient(Limits(budget=Budget(restarts=6, backoff_s=(0.0,))))
    full = raises("RuntimeError", "[enforce fail at inline_container.cc:672] . unexpected pos 1088 vs 982")
    taken = walk(timeline, full)
    assert set(taken) == {"restart"}
    assert len(taken) == 6
    assert (timeline.job.reason or "").startswith("6 restarts in a row without progress")
    assert "no room is left on a disk that it writes to; last: RuntimeError" in (timeline.job.reason or "")
    assert "at fault" not in (timeline.job.reason or "")


def test_a_machine_that_is_lost_at_the_same_place_again_is_no_sign_of_a_fault_in_data_or_code() -> None:
    """As by power cuts, or by a person who reboots it, soon after each start."""
    timeline = patient(Limits(budget=Budget(restarts=6, backoff_s=(0.0,))))
    taken = walk(timeline, lambda timeline: trains(timeline).lost())
    assert set(taken) == {"restart"}
    assert len(taken) == 6
    assert (timeline.job.reason or "").startswith("6 restarts in a row without progress")
    assert "at fault" not in (timeline.job.reason or "")


KILLS: dict[str, Callable[[Life], object]] = {
    "itself": lambda timeline: trains(timeline).exits(signal=9),
    "below a shell": lambda timeline: trains(timeline).exits(137),
}


@pytest.mark.parametrize("kind", KILLS)
def test_a_training_killed_from_outside_at_the_same_place_again_is_started_until_its_restarts_are_spent(
    kind: str,
) -> None:
    """Two kills at neighbouring steps say nothing about what the training does there."""
    timeline = patient(Limits(budget=Budget(restarts=6, backoff_s=(0.0,))))
    taken = walk(timeline, KILLS[kind])
    assert set(taken) == {"restart"}
    assert len(taken) == 6
    assert (timeline.job.reason or "").startswith("6 restarts in a row without progress")
    assert "at fault" not in (timeline.job.reason or "")


@pytest.mark.parametrize("signal", [6, 15])
def test_a_signal_that_a_program_sends_to_itself_may_come_from_what_it_does_there(signal: int) -> None:
    timeline = patient()
    assert walk(timeline, lambda timeline: trains(timeline).exits(signal=signal)) == ["restart", "older_generation"]


def test_a_training_that_the_kernel_kills_for_memory_at_the_same_place_is_changed() -> None:
    def kill(timeline: Life) -> None:
        trains(timeline).kernel(FaultClass.OOM_KILL, "Out of memory", gpu=None).exits(signal=9)

    assert tuple(walk(patient(), kill)) == LADDERS["oom_host"][1]


@pytest.mark.parametrize(("named", "ladder"), [(True, ["xla_memory", "cpu_profile"]), (False, ["cpu_profile"])])
def test_what_helps_torch_is_not_taken_for_a_training_of_keras_on_jax(named: bool, ladder: list[str]) -> None:
    def fails(timeline: Life) -> None:
        timeline.started().says(ev.AgentEvent.CLAIMED, torch=None)
        timeline.says(ev.AgentEvent.PLAN, framework="keras", epochs=2).stage(Stage.STEP).steps(1, 60)
        if named:
            timeline.says(ev.AgentEvent.SETTING_ASKED, setting="xla_memory")
        message = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes."
        timeline.says(ev.AgentEvent.EXCEPTION, type="JaxRuntimeError", message=message).exits(1)

    assert walk(patient(), fails) == ladder


def test_gpus_that_wait_for_data_get_a_loader_without_workers() -> None:
    timeline = patient()
    assert walk(timeline, idles) == ["restart", "no_workers"]


def test_every_cause_has_a_ladder_of_its_own_and_every_remedy_a_meaning() -> None:
    table = Remedies()
    for cause in CAUSES:
        assert set(table.ladder(cause)) <= set(BY_NAME)
    assert set(LADDERS) | {"stall_data", "hardware"} == set(CAUSES)
    used = {item for cause in CAUSES for item in table.ladder(cause)}
    assert used == set(BY_NAME)


@pytest.mark.parametrize(
    ("rule", "fault", "cause"),
    [("crash", "killed_by_signal", "crash"), ("crash", "data_loader", "loader"), ("vram_high", None, "fragmentation")],
)
def test_a_fault_says_more_than_the_rule_that_met_it(rule: str, fault: str | None, cause: str) -> None:
    flag = RedFlag(rule=rule, severity=Severity.CRITICAL, at=START, message="x", fault=fault)
    assert cause_of(flag) == cause


# --- what is taken back, and what stays -----------------------------------------------------------------------------


def test_a_wrong_guess_is_taken_back_and_what_was_not_enough_stays() -> None:
    timeline = patient()
    for _ in range(3):
        stalls(timeline)
        timeline.looks().silence(1)
    assert [item.remedy for item in timeline.job.course.in_force] == ["conv2d"]
    timeline = patient()
    for _ in range(3):
        LADDERS["oom_gpu"][0](timeline)
        timeline.looks().silence(1)
    assert [item.remedy for item in timeline.job.course.in_force] == ["allocator", "half_batch", "half_batch"]


def test_a_remedy_has_helped_well_past_the_trouble_and_stays_in_force() -> None:
    timeline = patient()
    LADDERS["oom_gpu"][0](timeline)
    timeline.looks().silence(1)
    trains(timeline, 159)
    before = [trial.outcome for trial in timeline.job.course.trials]
    timeline.steps(160, 160)
    assert before == [Outcome.OPEN]
    assert timeline.job.course.trials[-1].outcome is Outcome.HELPED
    assert timeline.job.course.has("allocator")
    timeline.says(ev.AgentEvent.EXCEPTION, type="OutOfMemoryError", message="HIP out of memory").exits(1)
    assert timeline.job.course.trials[-1].remedy == "half_batch", "in force already, so it is not taken again"


def test_steps_whose_losses_are_not_finite_are_no_progress_and_help_nobody() -> None:
    """A program that loads a spoilt file of its own goes on from there, further in each attempt."""
    timeline = patient()
    LADDERS["non_finite"][0](timeline)
    timeline.looks().silence(1)
    trains(timeline, 61)
    seen = []
    for loss, first, last in ((float("nan"), 62, 400), (1.0, 401, 401)):
        timeline.steps(first, last, loss=loss)
        seen.append((timeline.job.course.trials[-1].outcome, timeline.job.ledger.furthest_step))
    assert seen == [(Outcome.OPEN, 61), (Outcome.HELPED, 401)]


def test_the_end_of_the_training_is_help_and_the_word_of_its_user_is_unclear() -> None:
    for asked, outcome in ((False, Outcome.HELPED), (True, Outcome.UNCLEAR)):
        timeline = patient()
        stalls(timeline)
        trains(timeline.looks().silence(1), 70)
        if asked:
            timeline.asks(ev.Ask.STOP)
            timeline.exits(signal=15)
        else:
            timeline.says(ev.AgentEvent.TRAIN_END).exits(0)
        assert timeline.job.course.trials[-1].outcome is outcome


def test_another_trouble_leaves_the_first_remedy_unclear_and_in_force() -> None:
    timeline = patient()
    LADDERS["oom_gpu"][0](timeline)
    timeline.looks().silence(1)
    stalls(timeline)
    first, second = timeline.job.course.trials
    assert (first.outcome, second.cause, second.remedy) == (Outcome.UNCLEAR, "stall", "restart")
    assert timeline.job.course.has("allocator")


@pytest.mark.parametrize(("reported_of", "outcome"), [(True, Outcome.FAILED), (False, Outcome.UNCLEAR)])
def test_a_remedy_that_the_agent_never_reported_has_not_failed(reported_of: bool, outcome: Outcome) -> None:
    timeline = patient()
    LADDERS["oom_gpu"][0](timeline)
    timeline.looks().silence(1)
    if reported_of:
        timeline.says(
            ev.AgentEvent.REMEDY_APPLIED, setting="allocator", remedies=["allocator"], set="max_split_size_mb:128"
        )
    LADDERS["oom_gpu"][0](timeline)
    assert [trial.outcome for trial in timeline.job.course.trials] == [outcome, Outcome.OPEN]


def test_a_trouble_elsewhere_is_another_try_and_no_end() -> None:
    timeline = patient(context=RemedyContext(agent=False))
    for step in (60, 90, 120, 150):
        trains(timeline, step).exits(1)
        assert timeline.phase() is Phase.BACKOFF, timeline.job.reason
        timeline.looks().silence(1)
    assert {trial.remedy for trial in timeline.job.course.trials} == {"restart"}


def test_a_place_that_is_unknown_is_not_the_same() -> None:
    timeline = patient()
    for _ in range(5):
        timeline.started().exits(1)
        assert timeline.phase() is Phase.BACKOFF
        timeline.looks().silence(1)


def test_a_person_who_starts_a_failed_job_has_every_remedy_tried_again() -> None:
    timeline = patient()
    walk(timeline, LADDERS["crash"][0])
    assert timeline.phase() is Phase.FAILED
    timeline.asks(ev.Ask.START).looks().silence(1)
    LADDERS["crash"][0](timeline)
    assert timeline.job.course.trials[-1].remedy == "restart"


def test_a_fresh_start_forgets_every_remedy() -> None:
    timeline = patient()
    LADDERS["oom_gpu"][0](timeline)
    timeline.asks(ev.Ask.STOP).asks(ev.Ask.START, fresh=True)
    assert timeline.job.course.in_force == ()


# --- the owner's word -----------------------------------------------------------------------------------------------


def test_what_is_forbidden_is_passed_over_and_changes_nothing_any_more() -> None:
    table = Remedies(forbid=("allocator", "half_batch"))
    timeline = patient(replace(PATIENT, remedies=table))
    assert walk(timeline, LADDERS["oom_gpu"][0]) == ["smaller_images", "cpu_profile"]
    timeline = patient()
    LADDERS["oom_gpu"][0](timeline)
    assert changes_of(timeline.job.course.in_force, table).settings == ()


def test_what_was_forbidden_since_takes_nothing_from_the_remedies_after_it() -> None:
    kept = [InForce(remedy=remedy, cause="oom_gpu", attempt=2) for remedy in ("allocator", "half_batch")]
    settings = dict(changes_of(kept, Remedies(forbid=("allocator",))).settings)
    assert {name: setting.value for name, setting in settings.items()} == {"batch_factor": 0.5}


def test_remedies_that_are_off_leave_plain_retries_to_the_budget() -> None:
    timeline = patient(Limits(budget=Budget(restarts=4, backoff_s=(0.0,)), remedies=Remedies(enabled=False)))
    assert walk(timeline, stalls) == ["restart"] * 4
    assert "4 restarts in a row" in (timeline.job.reason or "")


def test_a_training_that_the_agent_does_not_know_gets_what_needs_no_agent() -> None:
    timeline = Life(limits=PATIENT)
    timeline.context = EVERYTHING
    timeline.silence(0)

    def stall_unknown(value: Life) -> None:
        stops(stands_still(value.training(60)))

    assert walk(timeline, stall_unknown) == ["restart", "conv2d", "other_gpu", "cpu_profile"]


# --- what this machine has learned ----------------------------------------------------------------------------------


def test_what_helped_here_comes_first_what_never_did_is_passed_over_and_both_are_reported() -> None:
    known = (
        Experience(cause="oom_gpu", remedy="allocator", helped=0, failed=3),
        Experience(cause="oom_gpu", remedy="smaller_images", helped=9, failed=0),
        Experience(cause="stall", remedy="no_workers", helped=2, failed=0),
    )
    timeline = patient(context=replace(EVERYTHING, experience=known))
    retry = walk(timeline, LADDERS["oom_gpu"][0])
    assert retry == ["half_batch", "half_batch", "smaller_images", "cpu_profile"], "a last resort stays the last"
    assert "allocator skipped: failed 3 times on this machine" in timeline.job.course.trials[0].reason
    timeline = patient(context=replace(EVERYTHING, experience=known))
    assert walk(timeline, stalls)[:2] == ["no_workers", "restart"]
    assert "no_workers first: helped 2 times on this machine" in timeline.job.course.trials[0].reason


# --- cards ----------------------------------------------------------------------------------------------------------


def lost(timeline: Life) -> Life:
    """A card is lost and the training goes on on the CPU."""
    trains(timeline, 60).kernel(FaultClass.GPU_LOST, "amdgpu: device lost from bus!")
    stops(timeline)
    timeline.looks().silence(1)
    assert timeline.job.course.has("cpu_profile")
    return trains(timeline, 70)


def test_a_training_on_the_cpu_goes_back_to_its_gpu_once_that_has_answered_for_long() -> None:
    timeline = lost(patient(context=RemedyContext(cpu_profile=True)))
    timeline.read_decisions()
    timeline.context = RemedyContext(cpu_profile=True, answering_s=((GPU, 299.0),))
    assert timeline.steps(71, 75, 70.0).read_decisions() == []
    timeline.context = RemedyContext(cpu_profile=True, answering_s=((OTHER_GPU, 900.0),))
    assert timeline.steps(76, 76).read_decisions() == [], "another card is not its"
    timeline.context = RemedyContext(cpu_profile=True, answering_s=((GPU, 300.0),))
    stop = timeline.steps(77, 77).last
    assert isinstance(stop, de.Stop)
    assert (stop.save, stop.flag) == (True, None)
    assert GPU in stop.reason
    timeline.saves("back.pt", 77).exits(signal=15)
    assert not timeline.job.course.has("cpu_profile")
    launch = timeline.looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is not None
    assert launch.resume_from.path == "back.pt"
    assert timeline.job.ledger.total == 1, "going back spends nothing"


def test_a_gpu_that_comes_and_goes_is_gone_back_to_only_so_often() -> None:
    timeline = patient(replace(PATIENT, remedies=Remedies(max_returns=2)), RemedyContext(cpu_profile=True))
    for _ in range(2):
        lost(timeline)
        timeline.context = RemedyContext(cpu_profile=True, answering_s=((GPU, 9e9),))
        timeline.steps(71, 75, 70.0)
        assert timeline.phase() is Phase.STOPPING
        timeline.exits(signal=15).looks().silence(1)
        timeline.context = RemedyContext(cpu_profile=True)
    lost(timeline)
    timeline.context = RemedyContext(cpu_profile=True, answering_s=((GPU, 9e9),))
    timeline.steps(71, 75, 300.0)
    assert timeline.phase() is Phase.RUNNING


def test_a_gpu_that_hung_is_not_gone_back_to_by_itself() -> None:
    timeline = patient(context=RemedyContext(cpu_profile=True, answering_s=((GPU, 9e9),), agent=False))
    for _ in range(2):
        hangs_on_the_card(timeline)
        timeline.looks().silence(1)
    assert timeline.job.course.has("cpu_profile")
    trains(timeline, 70).steps(71, 75, 300.0)
    assert timeline.phase() is Phase.RUNNING


def test_another_gpu_is_the_one_to_run_on() -> None:
    timeline = patient()
    loses_the_card(timeline)
    assert timeline.job.course.gpu == OTHER_GPU
    assert changes_of(timeline.job.course.in_force, Remedies()).gpu == OTHER_GPU


# --- steps that are counted anew ------------------------------------------------------------------------------------


def test_half_a_batch_makes_twice_the_steps_and_that_is_no_progress() -> None:
    timeline = patient()
    LADDERS["oom_gpu"][0](timeline)
    timeline.looks().silence(1).started()
    timeline.says(ev.AgentEvent.PLAN, **TRAINER, epochs=50, batches_per_epoch=2000)
    timeline.steps(41, 120)
    assert timeline.job.ledger.furthest_step == 120
    assert timeline.job.ledger.in_a_row == 1, "step 120 is where step 60 was"
    timeline.steps(121, 121)
    assert timeline.job.ledger.in_a_row == 0


# --- what a remedy changes ------------------------------------------------------------------------------------------


def settings_after(hurt: Callable[[Life], object], times: int, table: Remedies) -> dict[str, object]:
    timeline = patient(replace(PATIENT, remedies=table))
    timeline.saves("a.pt", 20).silence(1).saves("b.pt", 40).silence(1)
    for _ in range(times):
        hurt(timeline)
        timeline.looks().silence(1)
    settings = dict(changes_of(timeline.job.course.in_force, table).settings)
    known = {remedy.remedy for remedy in timeline.job.course.in_force}
    assert all(setting.remedies and known.issuperset(setting.remedies) for setting in settings.values())
    return {name: setting.value for name, setting in settings.items()}


def test_remedies_that_are_taken_twice_change_twice_as_much() -> None:
    table = Remedies(scale_lr=True)
    found = settings_after(LADDERS["oom_gpu"][0], 3, table)
    assert found == {"allocator": True, "batch_factor": 0.25, "lr_factor": 0.25}


def test_a_non_finite_loss_ends_with_all_that_helps_and_the_batches_left_out() -> None:
    found = settings_after(gets_nan, 6, Remedies())
    assert found == {
        "skip_non_finite": True,
        "lr_factor": 0.5,
        "clip_norm": 1.0,
        "amp": False,
        "skip_batches": (56, 66),
    }


@pytest.mark.parametrize(("step", "left_out"), [(61, (56, 66)), (7, (2, 12)), (6, (1, 11)), (3, (1, 8)), (None, None)])
def test_batches_are_left_out_from_the_first_one_on_where_the_step_is_early(
    step: int | None, left_out: tuple[int, int] | None
) -> None:
    held = InForce(remedy="skip_data", attempt=2, cause="non_finite", step=step)
    settings = changes_of([held], Remedies()).settings
    assert [setting.value for _, setting in settings] == ([] if left_out is None else [left_out])


def test_a_finding_of_two_words_is_the_first_reason_as_a_person_reads_it() -> None:
    finding = Finding(verdict="data_or_numerics", words="finite in single precision", speaks_for=("amp_off",))
    ended = Ended(cause="non_finite", step=7, adjustable=("amp",), torch=True, finding=finding)
    choice = choose(Course(), Remedies(), ended, RemedyContext())
    assert choice.reason.startswith("triage: data or numerics: finite in single precision; ")


def test_no_kernel_of_a_gpu_is_replaced_in_a_training_that_reports_the_cpu() -> None:
    def ladder(device: str | None) -> list[str | None]:
        course, chosen = Course(), []
        for attempt in range(1, 7):
            ended = Ended(cause="stall", step=100 * attempt, torch=True)
            chosen.append(choose(course, Remedies(), ended, RemedyContext(device=device)).remedy)
            tried = Trial(attempt=attempt, at=START, cause="stall", remedy=chosen[-1] or "restart", step=ended.step)
            course = replace(course, trials=(*course.trials, tried))
        return chosen

    assert "conv2d" not in ladder("cpu")
    assert "conv2d" in ladder("cuda")
    assert "conv2d" in ladder(None)


def test_the_cpu_hides_every_gpu_and_compiling_can_be_switched_off() -> None:
    timeline = patient(context=RemedyContext(cpu_profile=True))
    loses_the_card(timeline)
    changes = changes_of(timeline.job.course.in_force, Remedies())
    assert changes.cpu
    assert dict(changes.env)["ROCR_VISIBLE_DEVICES"] == ""
    timeline = patient()
    LADDERS["compile"][0](timeline)
    assert dict(changes_of(timeline.job.course.in_force, Remedies()).env) == {"TORCHDYNAMO_DISABLE": "1"}


@pytest.mark.parametrize(
    ("remedy", "changed"),
    [
        ("conv2d", {"conv2d": True}),
        ("cpu_profile", {"cpu": True, "gpu": None}),
        ("other_gpu", {"gpu": OTHER_GPU}),
        ("restart", {}),
        ("a remedy of another version", {}),
    ],
)
def test_a_remedy_in_force_changes_how_the_next_attempt_runs_and_nothing_else(
    remedy: str, changed: dict[str, object]
) -> None:
    made = changes_of([InForce(remedy=remedy, cause="crash", attempt=1, gpu=OTHER_GPU)], Remedies())
    expected: dict[str, object] = {"conv2d": False, "cpu": False, "gpu": None, **changed}
    assert {name: getattr(made, name) for name in expected} == expected


def test_an_older_generation_is_asked_for_where_there_is_one() -> None:
    timeline = patient()
    timeline.saves("a.pt", 20).silence(1).saves("b.pt", 40).silence(1)
    for expected in ("b.pt", "a.pt"):
        LADDERS["crash"][0](timeline)
        launch = timeline.looks().silence(1).last
        assert isinstance(launch, de.Launch)
        assert launch.resume_from is not None
        assert launch.resume_from.path == expected


def test_crashes_each_further_on_than_the_last_cost_no_older_generation() -> None:
    """Somebody kills it every fifty steps: what it was resumed from is not the reason."""
    timeline = patient()
    for step in (60, 110, 160, 210):
        timeline.saves("a.pt", step - 20).silence(1).saves("b.pt", step - 10).silence(1)
        trains(timeline, step).exits(signal=9)
        launch = timeline.looks().silence(1).last
        assert isinstance(launch, de.Launch)
        assert launch.resume_from is not None
        assert launch.resume_from.path == "b.pt"
    assert {trial.remedy for trial in timeline.job.course.trials} == {"restart"}


def test_another_crash_where_it_was_killed_before_is_not_the_same_one() -> None:
    """As DETR's, which was killed at the end of two epochs, and whose boxes were no numbers in the next step."""
    timeline = patient()
    for step in (30, 59):
        timeline.saves("a.pt", step - 1).silence(1)
        trains(timeline, step).exits(signal=9)
        timeline.looks().silence(1)
    raises("AssertionError", "boxes1")(timeline)
    assert timeline.phase() is Phase.BACKOFF, timeline.job.reason
    assert timeline.job.course.trials[-1].remedy == "restart"
    timeline.looks().silence(1)
    raises("AssertionError", "boxes1")(timeline)
    assert "the same crash at the same place (step 60, before it step 60)" in timeline.job.course.trials[-1].reason


def test_starts_that_find_no_gpu_cost_no_older_generation() -> None:
    """Its driver is being exchanged: what the training was resumed from is not the reason."""
    timeline = patient()
    timeline.saves("a.pt", 20).silence(1).saves("b.pt", 40).silence(1)
    for _ in range(3):
        timeline.started()
        timeline.says(ev.AgentEvent.EXCEPTION, type="RuntimeError", message="No HIP GPUs are available").exits(1)
        launch = timeline.looks().silence(1).last
        assert isinstance(launch, de.Launch)
        assert launch.resume_from is not None
        assert launch.resume_from.path == "b.pt"


def test_what_the_agent_set_is_kept_until_the_next_launch() -> None:
    timeline = patient()
    LADDERS["oom_gpu"][0](timeline)
    timeline.looks().silence(1).started()
    timeline.says(
        ev.AgentEvent.REMEDY_APPLIED, setting="allocator", remedies=["allocator"], set="max_split_size_mb:128"
    )
    timeline.says(
        ev.AgentEvent.REMEDY_APPLIED, setting="allocator", remedies=["allocator"], set="max_split_size_mb:128"
    )
    assert timeline.job.course.in_force[0].applied == "max_split_size_mb:128"
    timeline.exits(1).looks().silence(1)
    assert timeline.job.course.in_force[0].applied is None


def test_a_guess_that_was_wrong_the_second_time_leaves_what_helped_the_first_time() -> None:
    helped = InForce(remedy="no_workers", cause="loader", attempt=2)
    tried = Trial(attempt=5, at=START, cause="loader", remedy="no_workers")
    course = Course(trials=(tried,), in_force=(helped, replace(helped, attempt=5)))
    assert course.failed("loader", START.plus(60)).in_force == (helped,)


# --- any course -----------------------------------------------------------------------------------------------------


@settings(max_examples=at_least(200))
@given(troubles=st.lists(st.tuples(st.sampled_from(CAUSES), st.sampled_from([None, 10, 60, 61, 500])), max_size=60))
def test_in_no_order_of_troubles_is_anything_tried_in_vain(troubles: list[tuple[str, int | None]]) -> None:
    """No remedy more often than its ladder has it, and nothing unchanged twice at one place."""
    table, course = Remedies(), Course()
    for attempt, (cause, step) in enumerate(troubles, start=1):
        course = course.failed(cause, START)
        ended = Ended(
            cause=cause,
            step=step,
            adjustable=("batch_factor", "image_factor", "skip_batches"),
            torch=True,
            resumed=True,
        )
        choice = choose(course, table, ended, EVERYTHING)
        if choice.remedy is None:
            assert any(item.step is not None for item in course.episode(cause))
            continue
        past = [item for item in course.episode(cause) if item.remedy == choice.remedy]
        if not BY_NAME[choice.remedy].lasts:
            assert not any(
                same_place(on_training(item.step), on_training(step), table.same_place_steps) for item in past
            )
        else:
            assert len(past) < table.ladder(cause).count(choice.remedy)
        trial = Trial(attempt=attempt + 1, at=START, cause=cause, remedy=choice.remedy, step=step)
        course = course.taken(trial, choice.gpu)


# --- exit statuses and the economy ----------------------------------------------------------------------------------


def test_a_status_that_is_never_retried_ends_the_job() -> None:
    timeline = life(limits=Limits(budget=Budget(never_retry_exit_codes=(93,)))).training().exits(93)
    assert timeline.read_decisions() == ["Launch", "GiveUp"]
    assert "status 93 is never retried" in (timeline.job.reason or "")


def test_a_status_that_is_always_retried_spends_nothing_and_waits_all_the_same() -> None:
    budget = Budget(restarts=1, always_retry_exit_codes=(75,), backoff_s=(0.0, 8.0), jitter_fraction=0.0)
    timeline = life(limits=Limits(budget=budget))
    for _ in range(6):
        timeline.training(50).exits(75)
        assert timeline.phase() is Phase.BACKOFF, timeline.job.reason
        timeline.looks().silence(8)
    assert timeline.job.ledger.total == 0
    timeline.training(5).exits(75).looks()
    assert timeline.silence(7).phase() is Phase.BACKOFF
    assert timeline.silence(1).phase() is Phase.STARTING


def test_one_cause_has_a_budget_of_its_own() -> None:
    budget = Budget(restarts=10, restarts_per_cause=2, backoff_s=(0.0,))
    timeline = patient(Limits(budget=budget))
    for _ in range(2):
        stalls(timeline)
        timeline.looks().silence(1)
    stalls(timeline)
    assert timeline.phase() is Phase.FAILED
    assert "2 restarts in a row after stall without progress (budget 2 per cause)" in (timeline.job.reason or "")


def test_causes_that_take_turns_buy_no_endless_retries() -> None:
    timeline = patient(Limits(budget=Budget(restarts=5, restarts_per_cause=4, backoff_s=(0.0,))))
    hurts = [stalls, hangs_on_the_card, LADDERS["oom_gpu"][0]]
    count = 0
    while timeline.phase() is not Phase.FAILED:
        hurts[count % 3](timeline)
        count += 1
        if timeline.phase() is Phase.BACKOFF:
            timeline.looks().silence(1)
    assert count == 6
    assert "5 restarts in a row without progress" in (timeline.job.reason or "")


def test_the_wait_is_the_same_for_the_same_attempt_and_another_for_another_job() -> None:
    budget, ledger = Budget(backoff_s=(100.0,)), life().job.ledger
    waits = {seed: ledger.backoff_s(budget, seed) for seed in ("a 1", "a 2", "b 1")}
    assert len(set(waits.values())) == 3
    assert all(90.0 <= wait <= 100.0 for wait in waits.values())
    assert ledger.backoff_s(budget, "a 1") == waits["a 1"]
