"""A start that fails twice in the same way before its first step is given up; what may be over next time is tried."""

from __future__ import annotations

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.job import Limits, Phase
from supervisor.core.readings import Stage
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.context import RemedyContext

from .stories import JOB, Life, life

FRAME = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    import timmm\n'


def raises(told: Life, kind: str, message: str, *, after_s: float = 8.0, caused_by: str = "") -> Life:
    """The program ends with an exception before its first step, as the agent reports it."""
    told.started().says(ev.AgentEvent.ALIVE).silence(after_s)
    told.says(ev.AgentEvent.EXCEPTION, type=kind, message=message, traceback=f"{caused_by}{FRAME}{kind}: {message}\n")
    return told.exits(1)


def waits_and_looks(told: Life) -> Life:
    """The wait before the next try passes."""
    assert told.phase() is Phase.BACKOFF, told.job.reason
    assert told.job.retry is not None
    return told.silence(max(0.0, told.job.retry.not_before.seconds_since(told.now)) + 0.1).looks()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ModuleNotFoundError", "No module named 'timmm'"),
        ("ImportError", "libcudart.so.12: cannot open shared object file: No such file or directory"),
        ("SyntaxError", "invalid syntax (train.py, line 3)"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: '/data/coco.yaml'"),
        ("KeyError", "'optimizer'"),
        ("DatasetNotFound", "no images in /data/coco"),
    ],
)
def test_the_same_exception_before_the_first_step_is_given_up_after_the_second_time(kind: str, message: str) -> None:
    told = life()
    began = told.now
    waits_and_looks(raises(told, kind, message))
    raises(told, kind, message)
    assert told.told() == ["Launch", "Retry", "Launch", "GiveUp"]
    assert told.job.reason is not None
    assert f"{kind}: {message}" in told.job.reason
    assert "before its first step in the same way twice" in told.job.reason
    assert told.now.seconds_since(began) <= 40


def test_a_usage_error_is_given_up_after_the_second_time() -> None:
    told = life()
    for _ in range(2):
        told.started().silence(1).prints("train.py: error: argument --device: invalid choice: 'cuda:x'").exits(2)
        if told.phase() is Phase.BACKOFF:
            waits_and_looks(told)
    assert told.told() == ["Launch", "Retry", "Launch", "GiveUp"]
    assert told.job.reason is not None
    assert "argument --device: invalid choice" in told.job.reason


def test_a_command_that_is_missing_is_given_up_after_the_second_time() -> None:
    told = life()
    waits_and_looks(told.started(None).exits(error="[Errno 2] No such file or directory: '/opt/python'"))
    told.started(None).exits(error="[Errno 2] No such file or directory: '/opt/python'")
    assert told.told() == ["Launch", "Retry", "Launch", "GiveUp"]


def test_a_traceback_in_the_output_counts_where_no_agent_reports_it() -> None:
    told = life()
    for _ in range(2):
        told.started().silence(1).prints("ModuleNotFoundError: No module named 'jax'").exits(1)
        if told.phase() is Phase.BACKOFF:
            waits_and_looks(told)
    assert told.told() == ["Launch", "Retry", "Launch", "GiveUp"]


def test_another_exception_each_time_is_tried_on() -> None:
    told = life()
    for name in ("a", "b", "c"):
        waits_and_looks(raises(told, "KeyError", repr(name)))
    assert told.told().count("Launch") == 4


def test_an_address_or_a_time_in_the_message_makes_no_other_failure() -> None:
    told = life()
    waits_and_looks(raises(told, "TypeError", "<Model object at 0x7f3a12> is not callable"))
    raises(told, "TypeError", "<Model object at 0x7fffe0> is not callable")
    assert isinstance(told.last, de.GiveUp)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ConnectionError", "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded"),
        ("URLError", "<urlopen error [Errno -3] Temporary failure in name resolution>"),
        ("DistNetworkError", "The server socket has failed to listen on any local network address. EADDRINUSE"),
        ("OSError", "[Errno 28] No space left on device"),
        ("OSError", "[Errno 5] Input/output error: '/data/a.jpg'"),
        ("OSError", "[Errno 24] Too many open files"),
        ("RuntimeError", "No HIP GPUs are available"),
        ("RuntimeError", "CUDA error: unknown error"),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("MemoryError", ""),
        ("RuntimeError", "NCCL error in: ProcessGroupNCCL.cpp:1025, unhandled system error"),
        ("TimeoutError", "[Errno 110] Connection timed out"),
    ],
)
def test_what_may_be_over_at_the_next_try_is_tried_again(kind: str, message: str) -> None:
    told = life()
    waits_and_looks(raises(told, kind, message))
    raises(told, kind, message)
    assert told.phase() is Phase.BACKOFF, told.job.reason


def test_an_exception_that_was_raised_from_a_lost_connection_is_tried_again() -> None:
    lost = "urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='h', port=443)\n\nDuring handling:\n\n"
    told = life()
    waits_and_looks(raises(told, "OSError", "cannot load the model 'tiny'", caused_by=lost))
    raises(told, "OSError", "cannot load the model 'tiny'", caused_by=lost)
    assert told.phase() is Phase.BACKOFF, told.job.reason


@pytest.mark.parametrize("signal", [9, 11, 15])
def test_a_signal_is_tried_again(signal: int) -> None:
    told = life()
    waits_and_looks(told.started().silence(1).exits(signal=signal))
    told.started().silence(1).exits(signal=signal)
    assert told.phase() is Phase.BACKOFF


def test_a_plain_status_without_a_reason_is_tried_again() -> None:
    told = life()
    waits_and_looks(told.started().silence(1).prints("loading the data").exits(1))
    told.started().silence(1).prints("loading the data").exits(1)
    assert told.phase() is Phase.BACKOFF


def test_the_same_exception_after_a_step_is_no_failed_start() -> None:
    told = life()
    for steps in (50, 90):
        told.training(steps).says(ev.AgentEvent.EXCEPTION, type="KeyError", message="'x'", traceback=FRAME).exits(1)
        assert told.phase() is Phase.BACKOFF
        assert not any(trial.start_failure for trial in told.job.course.trials)
        waits_and_looks(told)


def test_a_long_life_that_nobody_could_follow_is_no_failed_start() -> None:
    told = life()
    for _ in range(2):
        raises(told, "KeyError", "'x'", after_s=4000)
        assert told.phase() is Phase.BACKOFF, told.job.reason
        waits_and_looks(told)


def test_a_long_start_that_is_followed_is_one() -> None:
    told = life()
    for _ in range(2):
        told.started().stage(Stage.SETUP)
        raises(told, "KeyError", "'x'", after_s=500)
        if told.phase() is Phase.BACKOFF:
            waits_and_looks(told)
    assert told.phase() is Phase.FAILED


def test_progress_in_between_makes_it_the_first_time_again() -> None:
    told = life()
    waits_and_looks(raises(told, "KeyError", "'x'"))
    told.training(50).exits(signal=9)
    waits_and_looks(waits_and_looks(told).started().exits(signal=9))
    raises(told, "KeyError", "'x'")
    assert told.phase() is Phase.BACKOFF


def test_a_person_who_starts_it_again_has_it_tried_twice_again() -> None:
    told = life()
    waits_and_looks(raises(told, "KeyError", "'x'"))
    raises(told, "KeyError", "'x'").asks(ev.Ask.START).looks().silence(1)
    waits_and_looks(raises(told, "KeyError", "'x'"))
    raises(told, "KeyError", "'x'")
    assert told.told() == ["Launch", "Retry", "Launch", "GiveUp", "Launch", "Retry", "Launch", "GiveUp"]


def test_a_status_that_is_always_retried_is_never_in_vain() -> None:
    told = life(limits=Limits(budget=Budget(always_retry_exit_codes=(2,))))
    for _ in range(4):
        waits_and_looks(told.started().prints("train.py: error: busy").exits(2))
    assert told.told().count("Launch") == 5


# --- a resume that cannot be made ---------------------------------------------------------------------------------


def with_two_checkpoints(context: RemedyContext) -> Life:
    told = life()
    told.context = context
    told.training(100).saves("50.pt", 50).silence(1).saves("90.pt", 90).silence(1).exits(signal=9)
    return waits_and_looks(told)


def test_a_resume_command_that_loads_no_checkpoint_is_at_fault_after_an_older_one_failed_too() -> None:
    told = with_two_checkpoints(RemedyContext(resume_command=True))
    began, tried = told.now, []
    while told.phase() is not Phase.FAILED:
        start = told.present().resume_from
        assert start is not None
        tried.append(start.path)
        raises(told, "RuntimeError", "Error(s) in loading state_dict for Net: Missing key(s): 'fc.bias'", after_s=2)
        if told.phase() is Phase.BACKOFF:
            waits_and_looks(told)
    assert tried == ["90.pt", "90.pt", "50.pt"]
    assert told.job.reason is not None
    assert "the resume command is at fault: without it the training made steps" in told.job.reason
    assert "Missing key(s)" in told.job.reason
    assert told.now.seconds_since(began) <= 40


def test_an_older_checkpoint_that_can_be_loaded_goes_on() -> None:
    told = with_two_checkpoints(RemedyContext())
    waits_and_looks(raises(told, "KeyError", "'epoch'"))
    waits_and_looks(raises(told, "KeyError", "'epoch'"))
    start = told.present().resume_from
    assert start is not None
    assert start.path == "50.pt"
    told.started().steps(51, 200)
    assert told.phase() is Phase.RUNNING


def test_a_resume_that_does_not_even_run_takes_no_older_checkpoint() -> None:
    told = with_two_checkpoints(RemedyContext(resume_command=True))
    waits_and_looks(raises(told, "ModuleNotFoundError", "No module named 'timmm'"))
    raises(told, "ModuleNotFoundError", "No module named 'timmm'")
    assert told.phase() is Phase.FAILED
    assert all(trial.remedy != "older_generation" for trial in told.job.course.trials)
    assert told.job.name == JOB
