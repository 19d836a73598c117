"""Crash: which ends are none, and what an end is put down to."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from supervisor.core import events as ev
from supervisor.core.checkpoints.loss_curve import Resumed
from supervisor.core.findings import LAST_BOOT, FaultClass
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.readings import Stage
from supervisor.core.rules.crash import Crash
from supervisor.core.rules.crash_diagnosis import crash_diagnosis

from .stories import JOB, NAN, OTHER_GPU, Story, story

RULE = Crash()
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7, in main\n    fit()\n'


def flag_of(timeline: Story, rule: Crash = RULE) -> RedFlag:
    flag = timeline.check(rule)
    assert flag is not None
    return flag


# --- ends that are none -------------------------------------------------------------------------------------------


def test_a_living_process_has_not_crashed() -> None:
    assert story().training().silence(9999).check(RULE) is None


def test_status_0_after_the_trainings_own_end_is_a_finish() -> None:
    timeline = (
        story().says(ev.AgentEvent.PLAN, epochs=2, batches_per_epoch=50).training(100).says(ev.AgentEvent.TRAIN_END)
    )
    assert timeline.exits(0).check(RULE) is None


def test_an_early_end_by_the_trainings_own_decision_is_a_finish() -> None:
    timeline = (
        story().says(ev.AgentEvent.PLAN, epochs=100, batches_per_epoch=50).training(100).says(ev.AgentEvent.TRAIN_END)
    )
    assert timeline.exits(0).check(RULE) is None


def test_a_fulfilled_plan_is_a_finish_also_where_the_end_was_not_reported() -> None:
    timeline = story().says(ev.AgentEvent.PLAN, epochs=2, batches_per_epoch=50).training(100)
    assert timeline.exits(0).check(RULE) is None


def test_a_plan_without_batches_is_judged_by_its_last_epoch() -> None:
    timeline = story().says(ev.AgentEvent.PLAN, epochs=2).started().steps(1, 100, batches=50)
    assert timeline.exits(0).check(RULE) is None
    assert (
        flag_of(story().says(ev.AgentEvent.PLAN, epochs=3).started().steps(1, 100, batches=50).exits(0)).fault
        == "ended_early"
    )


def test_a_plan_of_unknown_length_cannot_be_missed() -> None:
    assert story().says(ev.AgentEvent.PLAN, epochs=None).training().exits(0).check(RULE) is None


def test_steps_without_a_plan_and_status_0_are_a_finish() -> None:
    assert story().training().exits(0).check(RULE) is None


@pytest.mark.parametrize("alive", [False, True])
def test_a_training_that_nobody_could_follow_finishes_with_status_0(*, alive: bool) -> None:
    timeline = story().started()
    if alive:
        timeline.says(ev.AgentEvent.ALIVE)
    assert timeline.silence(9999).exits(0).check(RULE) is None


def test_a_resumed_training_that_had_nothing_left_to_do_finishes() -> None:
    timeline = story().started().says(ev.AgentEvent.PLAN, epochs=3, batches_per_epoch=10).says(ev.AgentEvent.TRAIN_END)
    assert timeline.exits(0).check(RULE) is None


def test_an_end_that_only_the_recorder_reports_is_an_end() -> None:
    """The disk had no room for the line in agent.jsonl."""
    timeline = story().says(ev.AgentEvent.PLAN, epochs=9, batches_per_epoch=50).training(100).stage(Stage.ENDED)
    assert timeline.exits(0).check(RULE) is None
    timeline = story().started().says(ev.AgentEvent.PLAN, epochs=3, batches_per_epoch=10).stage(Stage.ENDED)
    assert timeline.exits(0).check(RULE) is None


# --- status 0 that is no finish -----------------------------------------------------------------------------------


def test_status_0_short_of_the_plan_ended_early() -> None:
    flag = flag_of(story().says(ev.AgentEvent.PLAN, epochs=2, batches_per_epoch=50).training(99).exits(0))
    assert flag.fault == "ended_early"
    assert flag.severity is Severity.CRITICAL
    assert "step 99" in flag.message
    assert flag.since is None


def test_status_0_short_of_the_plan_names_what_the_training_raised_and_the_program_caught() -> None:
    """GluonTS catches all that leaves Lightning's fit, and hands out the best weights so far."""
    timeline = story().says(ev.AgentEvent.PLAN, epochs=2, batches_per_epoch=50).training(60)
    message = "Expected parameter df of distribution Chi2() to satisfy the constraint, but found invalid values: [nan]"
    flag = flag_of(timeline.says(ev.AgentEvent.EXCEPTION, type="ValueError", message=message).exits(0))
    assert (flag.fault, flag.severity) == ("non_finite", Severity.CRITICAL)
    assert "short of its plan, after its training raised ValueError: Expected parameter df" in flag.message


def test_status_0_after_an_exception_that_the_program_caught_and_printed_is_a_warning() -> None:
    """A script that prints the traceback and ends: without a plan nobody can say that it was not complete."""
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    flag = flag_of(story().training(40).prints(memory, FaultClass.OOM_GPU).prints("").exits(0))
    assert (flag.fault, flag.severity) == ("oom_gpu", Severity.WARNING)
    assert memory in flag.message
    flag = flag_of(story().training(40).prints("ValueError: Expected more than 1 value per channel").exits(0))
    assert (flag.fault, flag.severity) == ("ended_early", Severity.WARNING)


def test_status_0_after_an_exception_that_left_steps_unmade_is_a_crash_with_its_fault() -> None:
    """As where loguru's `catch` is around the main function: it prints the traceback, and the program ends with 0."""
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    loops = {"epochs": 8, "steps_per_epoch": 12, "total_steps": 96}
    short = story().says(ev.AgentEvent.LOOPS, **loops).training(40)
    flag = flag_of(short.prints(memory, FaultClass.OOM_GPU).exits(0))
    assert (flag.fault, flag.severity) == ("oom_gpu", Severity.CRITICAL)
    assert flag.message == f"ended with status 0 at step 40 of 96, after it printed {memory}"
    short = story().says(ev.AgentEvent.LOOPS, **loops).training(40)
    flag = flag_of(short.prints("RuntimeError: all elements of input should be between 0 and 1").exits(0))
    assert (flag.fault, flag.severity) == ("non_finite", Severity.CRITICAL)
    short = story().says(ev.AgentEvent.LOOPS, **loops).training(40)
    assert flag_of(short.prints("ValueError: no boxes").exits(0)).fault == "ended_early"


def test_status_0_after_an_exception_is_in_doubt_once_all_steps_were_made_or_one_like_it_was_survived() -> None:
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    made = story().says(ev.AgentEvent.LOOPS, total_steps=40).training(40).prints(memory, FaultClass.OOM_GPU)
    assert flag_of(made.exits(0)).severity is Severity.WARNING
    skipping = story().says(ev.AgentEvent.LOOPS, total_steps=81).training(40).prints(memory, FaultClass.OOM_GPU)
    flag = flag_of(skipping.steps(41, 80).prints(memory, FaultClass.OOM_GPU).exits(0))
    assert (flag.fault, flag.severity) == ("oom_gpu", Severity.WARNING)


def test_status_0_after_an_exception_that_was_survived_or_only_mentioned_is_a_finish() -> None:
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    timeline = story().training(40).prints(memory, FaultClass.OOM_GPU).steps(41, 80).prints("done")
    assert timeline.exits(0).check(RULE) is None
    assert story().training(40).prints("Error rate: 0.02").exits(0).check(RULE) is None
    assert story().training(40).prints("mean absolute Error: 0.1").exits(0).check(RULE) is None


def test_status_0_of_a_program_that_took_no_notice_of_its_killed_training_is_a_crash() -> None:
    """Luigi's worker, or a process that is joined without a look at its exit code."""
    timeline = story().training(40).says(ev.AgentEvent.TRAINS, of=77)
    flag = flag_of(timeline.says(ev.AgentEvent.TRAINS, of=77, ended=True, error="SIGKILL").exits(0))
    assert (flag.fault, flag.severity) == ("killed_by_signal", Severity.CRITICAL)
    assert flag.message == (
        "the process that trained (pid 77) was killed by SIGKILL, and its program ended with status 0"
    )


def test_status_0_of_a_pipe_whose_training_is_gone_without_its_end_is_a_crash() -> None:
    """`train.py | tee log` has the status of `tee`, and `screen` none of its program's."""
    timeline = story().started(4242).training(40).says(ev.AgentEvent.TRAINS, of=77)
    flag = flag_of(timeline.exits(0))
    assert (flag.fault, flag.severity) == ("killed_by_signal", Severity.CRITICAL)
    assert (
        flag.message == "the process that trained (pid 77) was killed or crashed, and its program ended with status 0"
    )


def test_what_lived_when_its_program_came_to_its_end_was_ended_with_it() -> None:
    """An actor of Ray is killed by the exit of its driver; one in the background goes on, and may be lost later."""
    timeline = story().started(4242).training(40).says(ev.AgentEvent.TRAINS, of=77).silence(0.1)
    timeline.says(ev.AgentEvent.PROGRAM_ENDS, of=77)
    assert timeline.exits(0).check(Crash()) is None
    goes_on = story().started(4242).training(40).says(ev.AgentEvent.TRAINS, of=77).silence(0.1)
    goes_on.says(ev.AgentEvent.PROGRAM_ENDS, of=77).silence(0.1).training(5)
    assert flag_of(goes_on.exits(0)).fault == "killed_by_signal"


@pytest.mark.parametrize("status", [1, 2, 125], ids=["GNU parallel", "make", "xargs"])
def test_a_status_of_a_programs_own_after_its_training_is_gone_without_its_end_is_a_kill(status: int) -> None:
    timeline = story().started(4242).training(40).says(ev.AgentEvent.TRAINS, of=77)
    flag = flag_of(timeline.prints("xargs: python: terminated by signal 9").exits(status))
    assert flag.fault == "killed_by_signal"
    assert flag.message == (
        f"the process that trained (pid 77) was killed or crashed, and its program ended with status {status}; "
        "last output: xargs: python: terminated by signal 9"
    )


@pytest.mark.parametrize("status", [0, 2], ids=["tee", "make"])
def test_an_oom_kill_of_what_trained_is_want_of_memory_whatever_its_program_ended_with(status: int) -> None:
    timeline = story().started(4242).training(40).says(ev.AgentEvent.TRAINS, of=77)
    timeline.kernel(FaultClass.OOM_KILL, "Killed process 77 (python)", gpu=None, pid=77)
    assert flag_of(timeline.exits(status)).fault == "oom_host"


def test_an_oom_kill_of_another_process_explains_no_status_of_a_program() -> None:
    timeline = story().started(4242).training(40).says(ev.AgentEvent.TRAINS, of=77)
    timeline.kernel(FaultClass.OOM_KILL, "Killed process 78 (firefox)", gpu=None, pid=78)
    assert flag_of(timeline.exits(2)).fault == "killed_by_signal"


def test_a_status_after_the_own_end_of_what_trained_is_that_status() -> None:
    timeline = story().started(4242).training(40).says(ev.AgentEvent.TRAINS, of=77)
    assert flag_of(timeline.says(ev.AgentEvent.TRAINS, of=77, ended=True).exits(2)).fault == "exit_code"


def finished_below_a_wrapper(**end: object) -> Story:
    """A shell script, `make` or gdb (pid 4242) whose `python train.py` (pid 77) trained and ended."""
    timeline = story().started(4242).training(40).says(ev.AgentEvent.TRAINS, of=77)
    return timeline.says(ev.AgentEvent.TRAINS, of=77, ended=True, **end).silence(1)


@pytest.mark.parametrize("status", [1, 2, 125], ids=["a shell script, or gdb", "make", "xargs"])
def test_a_wrapper_that_fails_after_its_training_ended_with_status_0_is_a_warning_of_its_status(status: int) -> None:
    flag = flag_of(finished_below_a_wrapper(status=0).prints("cp: cannot stat 'best.pt'").exits(status))
    assert (flag.fault, flag.severity) == ("wrapper", Severity.WARNING)
    assert flag.message == (
        f"the training (pid 77) came to its normal end with status 0, and its wrapper ended with status {status}; "
        "last output: cp: cannot stat 'best.pt'"
    )


@pytest.mark.parametrize("end", [{}, {"status": 1}, {"status": 0, "error": "ValueError: a label of 12"}])
def test_a_wrapper_passes_on_a_status_of_its_training_that_is_not_known_to_be_0(end: dict[str, object]) -> None:
    flag = flag_of(finished_below_a_wrapper(**end).exits(1))
    assert (flag.fault, flag.severity) == ("exit_code", Severity.CRITICAL)


def test_an_exit_handler_s_own_status_is_the_training_s() -> None:
    timeline = finished_below_a_wrapper(status=0).says(ev.AgentEvent.TRAINS, of=77, ended=True, status=3)
    assert flag_of(timeline.exits(3)).severity is Severity.CRITICAL


def test_what_may_be_a_part_of_the_training_fails_as_before() -> None:
    """Another fold of a cross-validation, a training that was to save, one that is short of its plan, a signal."""
    assert flag_of(finished_below_a_wrapper(status=0).says(ev.AgentEvent.ALIVE).exits(1)).fault == "exit_code"
    assert flag_of(finished_below_a_wrapper(status=0).exits(139)).severity is Severity.CRITICAL
    assert flag_of(finished_below_a_wrapper(status=0).exits(signal=9)).severity is Severity.CRITICAL
    planned = story().started(4242).says(ev.AgentEvent.PLAN, epochs=2, batches_per_epoch=50).training(40)
    planned.says(ev.AgentEvent.TRAINS, of=77).says(ev.AgentEvent.TRAINS, of=77, ended=True, status=0)
    assert flag_of(planned.exits(1)).severity is Severity.CRITICAL


def test_a_training_that_is_the_command_itself_fails_with_its_own_status() -> None:
    timeline = story().started(4242).training(40).says(ev.AgentEvent.TRAINS, of=4242)
    timeline.says(ev.AgentEvent.TRAINS, of=4242, ended=True, status=0)
    assert flag_of(timeline.exits(1)).severity is Severity.CRITICAL


def test_status_0_of_a_pipe_whose_training_was_ended_by_an_exception_is_that_exception() -> None:
    timeline = story().started(4242).training(40).says(ev.AgentEvent.TRAINS, of=77)
    raised: dict[str, object] = {"type": "OutOfMemoryError", "message": "HIP out of memory"}
    timeline.put(
        ev.AgentReported(
            at=timeline.now,
            job=JOB,
            attempt=timeline.attempt,
            agent_event=ev.AgentEvent.EXCEPTION,
            pid=77,
            facts=raised,
        )
    )
    flag = flag_of(timeline.says(ev.AgentEvent.TRAINS, of=77, ended=True).exits(0))
    assert (flag.fault, flag.severity) == ("oom_gpu", Severity.CRITICAL)


def test_a_training_that_is_the_command_itself_has_its_own_status() -> None:
    assert story().started(4242).training(40).says(ev.AgentEvent.TRAINS, of=4242).exits(0).check(RULE) is None


@pytest.mark.parametrize("end", [{}, {"error": "ValueError: a label of 12"}], ids=["its own end", "an exception"])
def test_status_0_where_one_that_trained_was_not_killed_is_a_finish(end: dict[str, str]) -> None:
    timeline = story().training(40).says(ev.AgentEvent.TRAINS, of=77).says(ev.AgentEvent.TRAINS, of=78)
    timeline.says(ev.AgentEvent.TRAINS, of=77, ended=True, error="SIGKILL")
    assert timeline.says(ev.AgentEvent.TRAINS, of=78, ended=True, **end).exits(0).check(RULE) is None


def test_a_training_whose_plan_is_fulfilled_may_be_killed_at_its_end() -> None:
    timeline = story().says(ev.AgentEvent.PLAN, epochs=2, batches_per_epoch=50).training(100)
    timeline.says(ev.AgentEvent.TRAINS, of=77).says(ev.AgentEvent.TRAINS, of=77, ended=True, error="SIGKILL")
    assert timeline.exits(0).check(RULE) is None


def test_a_training_that_ended_after_it_was_asked_to_save_has_not_come_to_its_end() -> None:
    timeline = story().says(ev.AgentEvent.PLAN, epochs=9, batches_per_epoch=50).training(100)
    timeline.says(ev.AgentEvent.CHECKPOINT_SAVED, requested=True).says(ev.AgentEvent.TRAIN_END)
    assert flag_of(timeline.exits(0)).fault == "ended_early"


def test_a_save_on_request_long_ago_does_not_make_an_end_early() -> None:
    timeline = story().says(ev.AgentEvent.PLAN, epochs=9, batches_per_epoch=50).training(100)
    timeline.says(ev.AgentEvent.CHECKPOINT_SAVED, requested=True).says(ev.AgentEvent.CHECKPOINT_SAVED, requested=False)
    assert timeline.says(ev.AgentEvent.TRAIN_END).exits(0).check(RULE) is None


def test_a_plan_and_not_one_step_is_no_training() -> None:
    flag = flag_of(story().started().says(ev.AgentEvent.PLAN, epochs=2).exits(0))
    assert flag.fault == "ended_without_training"
    assert flag.severity is Severity.CRITICAL


@pytest.mark.parametrize(
    ("line", "is_resumed", "flags"),
    [
        ("OSError: [Errno 22] Invalid argument", True, True),
        ("OSError: [Errno 22] Invalid argument", False, False),
        ("MeanAbsoluteError: 0.31", True, False),
        ("done", True, False),
    ],
)
def test_a_resumed_training_that_prints_an_exception_before_its_first_step_has_not_finished(
    line: str, is_resumed: bool, flags: bool
) -> None:
    """Its save was cut short: it printed what torch.load raised, and ended with status 0 at step 80 of 300."""
    timeline = story().started()
    timeline.history.resumed = Resumed(step=80) if is_resumed else None
    flag = timeline.prints(line).exits(0).check(RULE)
    assert (flag is not None and flag.severity is Severity.CRITICAL) is flags
    if flags and flag is not None:
        assert flag.start_failure is not None, "its damaged save is looked for"


def test_torch_without_a_step_is_reported_and_not_retried() -> None:
    flag = flag_of(story().started().says(ev.AgentEvent.ALIVE).says(ev.AgentEvent.PATCHED, conv2d="unfold").exits(0))
    assert flag.fault == "ended_without_training"
    assert flag.severity is Severity.WARNING


def test_missing_steps_are_not_held_against_a_training_whose_hook_failed() -> None:
    timeline = (
        story().started().says(ev.AgentEvent.PLAN, epochs=2).says(ev.AgentEvent.HOOK_FAILED, where="ultralytics_hook.x")
    )
    assert flag_of(timeline.exits(0)).severity is Severity.WARNING
    timeline = story().says(ev.AgentEvent.PLAN, epochs=2, batches_per_epoch=50).training(50)
    timeline.silence(1).says(ev.AgentEvent.HOOK_FAILED, where="ultralytics_hook.x")
    assert flag_of(timeline.exits(0)).severity is Severity.WARNING


def test_a_second_training_that_stopped_short_is_not_covered_by_the_first_ones_end() -> None:
    timeline = (
        story().says(ev.AgentEvent.PLAN, epochs=1, batches_per_epoch=100).training(100).says(ev.AgentEvent.TRAIN_END)
    )
    timeline.stage(Stage.SETUP).says(ev.AgentEvent.PLAN, epochs=2, batches_per_epoch=100).steps(1, 100).exits(0)
    assert flag_of(timeline).fault == "ended_early"


# --- causes -------------------------------------------------------------------------------------------------------


def test_a_command_that_is_missing() -> None:
    flag = flag_of(story().exits(error="[Errno 2] No such file or directory: 'yolo'"))
    assert flag.fault == "command_missing"
    assert "No such file" in flag.message


@pytest.mark.parametrize(
    ("number", "name", "fault"),
    [
        (9, "SIGKILL", "killed_by_signal"),
        (6, "SIGABRT", "killed_by_signal"),
        (15, "SIGTERM", "killed_by_signal"),
        (11, "SIGSEGV", "illegal_access"),
        (7, "SIGBUS", "illegal_access"),
        (63, "signal 63", "killed_by_signal"),
    ],
)
def test_a_signal_is_named(number: int, name: str, fault: str) -> None:
    flag = flag_of(story().training().exits(signal=number))
    assert flag.fault == fault
    assert name in flag.message


def test_a_shell_reports_the_signal_that_killed_its_child() -> None:
    flag = flag_of(story().training().exits(139))
    assert flag.fault == "illegal_access"
    assert flag.message == "ended with status 139: a child was killed by SIGSEGV"


def test_a_plain_status() -> None:
    flag = flag_of(story().training().prints("error: no such option").exits(2))
    assert flag.fault == "exit_code"
    assert flag.message == "ended with status 2; last output: error: no such option"


def test_an_unknown_status_is_called_unknown() -> None:
    assert "unknown status" in flag_of(story().training().exits()).message


def test_a_lost_host() -> None:
    flag = flag_of(story().training().lost("the boot id changed"))
    assert flag.fault == "host_lost"
    assert flag.since is None
    assert "boot id" in flag.message


@pytest.mark.parametrize(
    ("kind", "message", "fault"),
    [
        ("OutOfMemoryError", "HIP out of memory. Tried to allocate 512.00 MiB", "oom_gpu"),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "oom_gpu"),
        ("torch.cuda.OutOfMemoryError", "", "oom_gpu"),
        ("JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.", "oom_gpu"),
        ("RuntimeError", "HIP error: out of memory", "oom_gpu"),
        ("RuntimeError", "CUDA error: out of memory", "oom_gpu"),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory", "oom_host"),
        ("MemoryError", "", "oom_host"),
        ("OSError", "[Errno 12] Cannot allocate memory", "oom_host"),
        ("RuntimeError", "miopenStatusUnknownError", "miopen"),
        ("RuntimeError", "HIP error: invalid device function", "no_kernel_image"),
        ("RuntimeError", "CUDA error: no kernel image is available for execution on the device", "no_kernel_image"),
        ("RuntimeError", "HIP error: an illegal memory access was encountered", "illegal_access"),
        ("AcceleratorError", "CUDA error: unspecified launch failure", "illegal_access"),
        ("RuntimeError", "hipErrorLaunchFailure", "illegal_access"),
        ("RuntimeError", "HIP error: an illegal instruction was encountered", "illegal_access"),
        ("RuntimeError", "aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation", "illegal_access"),
        ("RuntimeError", "HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION: The agent attempted", "no_kernel_image"),
        ("RuntimeError", "HSA_STATUS_ERROR_EXCEPTION_OF_OURS", "exception"),
        ("AcceleratorError", "CUDA error: the launch timed out and was terminated", "gpu_hang"),
        ("RuntimeError", "hipErrorLaunchTimeOut", "gpu_hang"),
        ("RuntimeError", "HIP error: device lost", "gpu_lost"),
        ("NVMLError_GpuIsLost", "GPU is lost", "gpu_lost"),
        ("AcceleratorError", "CUDA error: uncorrectable ECC error encountered", "ecc_uncorrectable"),
        ("AcceleratorError", "CUDA error: CUDA-capable device(s) is/are busy or unavailable", "no_gpu"),
        ("RuntimeError", "CUDA error: all CUDA-capable devices are busy or unavailable", "no_gpu"),
        ("RuntimeError", "HIP error: unknown error", "exception"),
        ("AcceleratorError", "CUDA error: device-side assert triggered Search for `cudaErrorAssert'", "assertion"),
        ("RuntimeError", "HIP error: device-side assert triggered", "assertion"),
        ("RuntimeError", "CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasSgemm`", "blas"),
        ("RuntimeError", "DataLoader worker (pid 2457) is killed by signal: Segmentation fault.", "data_loader"),
        ("RuntimeError", "unable to allocate shared memory(shm): No space left on device (28)", "data_loader"),
        ("OSError", "[Errno 28] No space left on device: 'last.pt'", "disk_full"),
        ("RuntimeError", "No HIP GPUs are available", "no_gpu"),
        ("RuntimeError", "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", "no_gpu"),
        ("AssertionError", "Torch not compiled with CUDA enabled", "no_gpu"),
        ("RuntimeError", "HIP error: no ROCm-capable device is detected", "no_gpu"),
        ("KeyError", "'names'", "exception"),
        ("ValueError", "Input contains NaN", "exception"),
        ("RuntimeError", "Loss is nan, stopping training", "non_finite"),
        ("RuntimeError", "Function 'MulBackward0' returned nan values in its 0th output.", "non_finite"),
        ("ValueError", "The loss returned in `training_step` is nan.", "non_finite"),
        (
            "ValueError",
            "Detected nan and/or inf values in `layer.weight`. Check your forward pass for numerically",
            "non_finite",
        ),
        (
            "ValueError",
            "Expected parameter loc to satisfy the constraint Real(), but found invalid values: tensor([[nan]])",
            "non_finite",
        ),
        ("RuntimeError", "probability tensor contains either `inf`, `nan` or element < 0", "non_finite"),
        (
            "RuntimeError",
            "The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped.",
            "non_finite",
        ),
        ("RuntimeError", "found NaN in local forward loss calculation. Device: 0, node: a", "non_finite"),
        ("FloatingPointError", "Minimum loss scale reached (0.0001). Your loss is probably exploding.", "non_finite"),
        (
            "Exception",
            "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
            "non_finite",
        ),
        ("FloatingPointError", "invalid value (nan) encountered in jit(step)", "non_finite"),
        (
            "InvalidArgumentError",
            "Graph execution error: Found Inf or NaN global norm. : Tensor had NaN values",
            "non_finite",
        ),
        ("AssertionError", "NaN loss at step 12", "non_finite"),
        ("RuntimeError", "NaN detected at batch 220: trn: . Something went wrong", "non_finite"),
        ("RuntimeError", "all elements of input should be between 0 and 1", "non_finite"),
        ("RuntimeError", "Training failed: Loss NaN/Inf detected", "non_finite"),
        ("ValueError", "Detection scores must not be NaN.", "non_finite"),
        ("ValueError", "scores are kept in '/data/nan'", "exception"),
        ("RuntimeError", "[enforce fail at inline_container.cc:672] . unexpected pos 1088 vs 982", "disk_full"),
        (
            "RuntimeError",
            "[enforce fail at inline_container.cc:471] . PytorchStreamWriter failed writing file",
            "disk_full",
        ),
        ("AttributeError", "`np.NaN` was removed in the NumPy 2.0 release. Use `np.nan` instead.", "exception"),
        ("ValueError", "loss 'nan' is unknown", "exception"),
        ("ValueError", "loss weights are read from values/inf/a.json", "exception"),
        ("FileNotFoundError", "no values in /data/nan", "exception"),
        ("KeyError", "no values for nan", "exception"),
    ],
)
def test_an_exception_is_classed_by_its_own_words(kind: str, message: str, fault: str) -> None:
    timeline = story().training().says(ev.AgentEvent.EXCEPTION, type=kind, message=message, traceback=TRACEBACK + kind)
    flag = flag_of(timeline.exits(1))
    assert flag.fault == fault
    assert flag.message.startswith(f"{kind}: {message}" if message else kind)
    assert 'File "train.py", line 7, in main' in flag.message


def test_the_place_of_an_exception_is_a_frame_also_where_its_message_names_a_line() -> None:
    message = "Expecting value: line 1 column 13 (char 12)"
    trace = f"{TRACEBACK}json.decoder.JSONDecodeError: {message}\n"
    facts = {"type": "JSONDecodeError", "message": message, "traceback": trace}
    flag = flag_of(story().training().says(ev.AgentEvent.EXCEPTION, **facts).exits(1))
    assert flag.message == f'JSONDecodeError: {message} (File "train.py", line 7, in main)'


def test_a_connection_to_a_loaders_worker_that_broke_is_the_loaders_death() -> None:
    trace = TRACEBACK + '  File "dataloader.py", line 1287, in _try_get_data\n'
    timeline = (
        story()
        .training()
        .says(ev.AgentEvent.EXCEPTION, type="ConnectionResetError", message="[Errno 104]", traceback=trace)
    )
    assert flag_of(timeline.exits(1)).fault == "data_loader"


def test_what_fails_while_a_want_of_memory_is_handled_is_put_down_to_that() -> None:
    """Pytorch-UNet's train.py answers it by a call that fails: the memory is what to help with."""
    handled = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    between = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    trace = f"{TRACEBACK}{handled}{between}{TRACEBACK}TypeError: 'module' object is not callable"
    facts = {"type": "TypeError", "message": "'module' object is not callable", "traceback": trace}
    flag = flag_of(story().training().says(ev.AgentEvent.EXCEPTION, **facts).exits(1))
    assert flag.fault == "oom_gpu"
    assert flag.message.startswith(f"{handled}, and while that was handled TypeError: 'module' object is not callable")


def test_what_an_exception_was_raised_from_is_named_too() -> None:
    """Ray's own only refers to the messages before it."""
    between = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    origin = "ray.exceptions.ActorDiedError: The actor died unexpectedly.\n\tpid: 9616"
    message = "The Ray Train run failed. Please inspect the previous error messages."
    facts = {"type": "TrainingFailedError", "message": message}
    trace = f"{TRACEBACK}{origin}{between}{TRACEBACK}TrainingFailedError: {message}"
    flag = flag_of(story().training().says(ev.AgentEvent.EXCEPTION, traceback=trace, **facts).exits(1))
    caused = "caused by ray.exceptions.ActorDiedError: The actor died unexpectedly. pid: 9616"
    assert flag.message == f'TrainingFailedError: {message} (File "train.py", line 7, in main), {caused}'


def test_what_else_was_handled_when_an_exception_was_raised_changes_nothing() -> None:
    between = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    trace = f"{TRACEBACK}KeyError: 'a file named out of memory'{between}{TRACEBACK}ValueError: no such row"
    timeline = (
        story().training().says(ev.AgentEvent.EXCEPTION, type="ValueError", message="no such row", traceback=trace)
    )
    flag = flag_of(timeline.exits(1))
    assert flag.fault == "exception"
    assert flag.message.startswith("ValueError: no such row (")


def test_an_exception_without_words_is_still_one() -> None:
    flag = flag_of(story().training().says(ev.AgentEvent.EXCEPTION).exits(1))
    assert flag.fault == "exception"


def test_a_keyboard_interrupt_that_a_signal_raised_is_that_signal() -> None:
    timeline = (
        story().training().says(ev.AgentEvent.EXCEPTION, type="KeyboardInterrupt", message="", traceback=TRACEBACK)
    )
    assert flag_of(timeline.exits(signal=2)).fault == "killed_by_signal"
    timeline = (
        story().training().says(ev.AgentEvent.EXCEPTION, type="KeyboardInterrupt", message="", traceback=TRACEBACK)
    )
    flag = flag_of(timeline.exits(1))
    assert (flag.fault, flag.message) == ("killed_by_signal", "ended with status 1: interrupted by SIGINT")


def test_an_exception_of_long_ago_explains_nothing() -> None:
    timeline = story().training().says(ev.AgentEvent.EXCEPTION, type="KeyError", message="'x'").silence(61)
    assert flag_of(timeline.exits(signal=11)).fault == "illegal_access"


def test_the_last_line_that_means_something_explains_a_bare_status() -> None:
    timeline = story().training().prints("HIP out of memory", FaultClass.OOM_GPU).silence(60)
    flag = flag_of(timeline.exits(1))
    assert flag.fault == "oom_gpu"
    assert flag.message == "ended with status 1: HIP out of memory"


def test_a_line_of_long_ago_explains_nothing() -> None:
    timeline = story().training().prints("HIP out of memory, batch halved", FaultClass.OOM_GPU).silence(61)
    assert flag_of(timeline.exits(1)).fault == "exit_code"


def test_what_was_raised_outranks_what_was_printed() -> None:
    timeline = story().training().prints("MIOpen: retry", FaultClass.MIOPEN)
    timeline.says(ev.AgentEvent.EXCEPTION, type="KeyError", message="'x'")
    assert flag_of(timeline.exits(1)).fault == "exception"


def test_a_fault_of_the_gpu_outranks_what_was_raised() -> None:
    timeline = story().training().kernel(FaultClass.GPU_HANG, "ring gfx timeout").silence(12)
    timeline.says(ev.AgentEvent.EXCEPTION, type="RuntimeError", message="HIP error: unspecified launch failure")
    flag = flag_of(timeline.exits(1))
    assert flag.fault == "gpu_hang"
    assert "ring gfx timeout" in flag.message


def test_another_gpus_fault_explains_nothing() -> None:
    timeline = story().training().kernel(FaultClass.GPU_HANG, gpu=OTHER_GPU)
    assert flag_of(timeline.exits(signal=6)).fault == "killed_by_signal"


@pytest.mark.parametrize("pid", [4242, None])
def test_sigkill_and_an_oom_kill_of_the_process_are_want_of_memory(pid: int | None) -> None:
    timeline = story().training().kernel(FaultClass.OOM_KILL, "Killed process 4242 (yolo)", gpu=None, pid=pid)
    flag = flag_of(timeline.exits(signal=9))
    assert flag.fault == "oom_host"
    assert "Killed process 4242" in flag.message


def test_an_oom_kill_of_another_process_is_not_ours() -> None:
    timeline = story().training().kernel(FaultClass.OOM_KILL, "Killed process 7 (firefox)", gpu=None, pid=7)
    assert flag_of(timeline.exits(signal=9)).fault == "killed_by_signal"


def test_an_oom_kill_explains_no_other_signal() -> None:
    timeline = story().training().kernel(FaultClass.OOM_KILL, gpu=None, pid=4242)
    assert flag_of(timeline.exits(signal=11)).fault == "illegal_access"


@pytest.mark.parametrize(
    ("code", "fault", "words"),
    [
        (247, "killed_by_signal", ": a child was killed by SIGKILL"),
        (245, "illegal_access", ": a child was killed by SIGSEGV"),
        (250, "killed_by_signal", ": a child was killed by SIGABRT"),
        (255, "exit_code", ""),
        (254, "exit_code", ""),
    ],
)
def test_a_launcher_that_ends_with_its_childs_return_code_passes_a_signal_on(code: int, fault: str, words: str) -> None:
    """`sys.exit(subprocess.call(...))`, as DeepSpeed's launcher has it: of -9 the kernel keeps 247."""
    flag = flag_of(story().training().exits(code))
    assert (flag.fault, flag.message) == (fault, f"ended with status {code}{words}")


def test_an_oom_kill_of_a_launchers_child_is_passed_on() -> None:
    timeline = story().training().kernel(FaultClass.OOM_KILL, gpu=None, pid=4300)
    assert flag_of(timeline.exits(247)).fault == "oom_host"


def test_an_oom_kill_of_a_shells_child_and_of_a_loader_are_passed_on() -> None:
    timeline = story().training().kernel(FaultClass.OOM_KILL, gpu=None, pid=4300)
    assert flag_of(timeline.exits(137)).fault == "oom_host"
    timeline = story().training().kernel(FaultClass.OOM_KILL, gpu=None, pid=4300)
    timeline.says(
        ev.AgentEvent.EXCEPTION,
        type="RuntimeError",
        message="DataLoader worker (pid 4300) is killed by signal: Killed.",
    )
    assert flag_of(timeline.exits(1)).fault == "oom_host"


# --- what follows -------------------------------------------------------------------------------------------------


def test_a_crash_leaves_earlier_checkpoints_sound() -> None:
    assert flag_of(story().training().exits(signal=11)).since is None


def test_a_training_that_gave_up_over_nan_is_spoilt_since_the_first() -> None:
    timeline = story().training(10).steps(11, 11, loss=NAN)
    first_at = timeline.now
    timeline.silence(1).says(ev.AgentEvent.EXCEPTION, type="RuntimeError", message="Loss is nan, stopping training")
    flag = flag_of(timeline.exits(1))
    assert (flag.since, flag.since_step) == (first_at, 11)


@pytest.mark.parametrize(
    ("kind", "message", "fault"),
    [
        ("ValueError", "Input contains NaN", "non_finite"),
        ("IndexError", "index -9223372036854775808 is out of bounds", "non_finite"),
        ("OutOfMemoryError", "CUDA out of memory.", "oom_gpu"),
    ],
)
def test_an_exception_of_any_words_right_after_a_loss_that_is_none_is_that_of_the_numbers(
    kind: str, message: str, fault: str
) -> None:
    """As a metric raises that is given NaN: which losses are tolerated does not matter to a program that ends of it."""
    raised = {"type": kind, "message": message, "traceback": TRACEBACK}
    spoilt = story().training(10).steps(11, 11, loss=NAN)
    assert flag_of(spoilt.says(ev.AgentEvent.EXCEPTION, **raised).exits(1)).fault == fault
    past = story().training(10).steps(11, 11, loss=NAN).steps(12, 12, loss=1.0)
    flag = flag_of(past.says(ev.AgentEvent.EXCEPTION, **raised).exits(1))
    assert flag.fault == ("oom_gpu" if fault == "oom_gpu" else "exception")


def test_a_gradient_or_a_loss_of_long_ago_that_was_none_spoils_nothing_since() -> None:
    timeline = story().training().steps(101, 104, loss=1.0, grad_norm=NAN).steps(105, 1300, loss=1.0)
    timeline.says(ev.AgentEvent.EXCEPTION, type="RuntimeError", message="Loss is nan", traceback=TRACEBACK)
    flag = flag_of(timeline.exits(1))
    assert (flag.fault, flag.since_step) == ("non_finite", None)


def test_where_no_nan_was_seen_it_is_spoilt_since_its_end() -> None:
    timeline = story().started().says(ev.AgentEvent.EXCEPTION, type="RuntimeError", message="Loss is nan").exits(1)
    assert flag_of(timeline).since == timeline.now


def test_a_process_that_crashed_after_its_training_ended_is_reported_only() -> None:
    timeline = (
        story().says(ev.AgentEvent.PLAN, epochs=2, batches_per_epoch=50).training(100).says(ev.AgentEvent.TRAIN_END)
    )
    flag = flag_of(timeline.exits(signal=11))
    assert flag.severity is Severity.WARNING


def test_a_message_is_one_bounded_line() -> None:
    timeline = story().training().prints("z" * 5000)
    timeline.says(ev.AgentEvent.EXCEPTION, type="ValueError", message="a\nb" * 5000, traceback=TRACEBACK)
    flag = flag_of(timeline.exits(1))
    assert "\n" not in flag.message
    assert len(flag.message) < 700


@pytest.mark.alone(reason="compares processor time with a limit")
def test_a_message_of_any_length_is_judged_at_once() -> None:
    """The deciding thread reads it, and other jobs wait for that thread."""
    timeline = story().training()
    timeline.says(ev.AgentEvent.EXCEPTION, type="ValueError", message="a\nb" * 50_000).exits(1)
    began_s = time.process_time()
    flag_of(timeline)
    assert time.process_time() - began_s < 2.0


def test_act_off_reports_only() -> None:
    assert flag_of(story().training().exits(1), Crash(act=False)).severity is Severity.WARNING


def test_a_lost_host_is_reported_with_what_its_boot_ended_with() -> None:
    timeline = story().training().kernel(FaultClass.GPU_RESET_FAILED, "GPU reset(1) failed")
    (finding,) = timeline.history.kernel.findings
    timeline.history.kernel.findings[0] = replace(finding, origin=LAST_BOOT)
    flag = flag_of(timeline.lost("the machine was restarted"))
    assert "the last boot ended with gpu_reset_failed: GPU reset(1) failed" in flag.message


@pytest.mark.parametrize("fault", sorted(set(FaultClass) - {FaultClass.OOM_KILL}, key=str))
def test_every_class_of_crash_that_can_be_explained_is(fault: FaultClass) -> None:
    found = crash_diagnosis(fault.value)
    assert found is not None
    assert found.causes
    assert found.advice


def test_a_crash_carries_its_diagnosis() -> None:
    flag = flag_of(story().training().prints("torch.OutOfMemoryError: HIP out of memory.", FaultClass.OOM_GPU).exits(1))
    assert flag.diagnosis == crash_diagnosis("oom_gpu")
