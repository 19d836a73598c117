"""A start that fails twice in the same way before its first step is given up; what may be over next time is tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import ResumePoint
from supervisor.core.job import Limits, Phase
from supervisor.core.readings import Stage
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.context import RemedyContext
from supervisor.core.start_failure import is_passing

from .stories import JOB, Life, life

FRAME = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    import timmm\n'


def raises(
    timeline: Life, kind: str, message: str, *, after_s: float = 8.0, caused_by: str = "", frame: str = FRAME
) -> Life:
    """The program ends with an exception before its first step, as the agent reports it."""
    timeline.started().says(ev.AgentEvent.ALIVE).silence(after_s)
    timeline.says(
        ev.AgentEvent.EXCEPTION, type=kind, message=message, traceback=f"{caused_by}{frame}{kind}: {message}\n"
    )
    return timeline.exits(1)


def waits_and_looks(timeline: Life) -> Life:
    """The wait before the next try passes."""
    assert timeline.phase() is Phase.BACKOFF, timeline.job.reason
    assert timeline.job.retry is not None
    return timeline.silence(max(0.0, timeline.job.retry.not_before.seconds_since(timeline.now)) + 0.1).looks()


@pytest.mark.parametrize(
    ("frame", "where"),
    [
        (FRAME, ' (File "train.py", line 3, in <module>)'),
        (FRAME + '  File "net.py", line 9, in load\n    x\n', ' (File "net.py", line 9, in load)'),
        (FRAME + "  File of weights is missing\n", ' (File "train.py", line 3, in <module>)'),
        ("", ""),
    ],
)
def test_a_start_is_the_same_by_its_exception_and_the_innermost_place_of_it(frame: str, where: str) -> None:
    timeline = raises(life(), "KeyError", "'epoch'", frame=frame)
    assert timeline.job.course.trials[-1].start_failure == f"KeyError: 'epoch'{where}"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ModuleNotFoundError", "No module named 'timmm'"),
        ("ImportError", "libcudart.so.12: cannot open shared object file: No such file or directory"),
        ("SyntaxError", "invalid syntax (train.py, line 3)"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: '/data/coco.yaml'"),
        ("KeyError", "'optimizer'"),
        ("DatasetNotFound", "no images in /data/coco"),
        ("UnpicklingError", "load failed, see https://pytorch.org/docs/stable/generated/torch.load.html for the types"),
    ],
)
def test_the_same_exception_before_the_first_step_is_given_up_after_the_second_time(kind: str, message: str) -> None:
    timeline = life()
    began = timeline.now
    waits_and_looks(raises(timeline, kind, message))
    raises(timeline, kind, message)
    assert timeline.read_decisions() == ["Launch", "Retry", "Launch", "GiveUp"]
    assert timeline.job.reason is not None
    assert f"{kind}: {message}" in timeline.job.reason
    assert "before its first step in the same way twice" in timeline.job.reason
    assert timeline.now.seconds_since(began) <= 40


def test_a_training_that_no_longer_starts_has_a_file_at_fault_that_it_reads_by_itself() -> None:
    """As Keras' BackupAndRestore, which loads what it saved without being told, where the disk has cut that."""
    timeline = life()
    timeline.started().stage(Stage.STEP).steps(1, 400)
    waits_and_looks(timeline.exits(signal=9))
    waits_and_looks(raises(timeline, "JSONDecodeError", "Expecting value: line 1 column 13 (char 12)"))
    raises(timeline, "JSONDecodeError", "Expecting value: line 1 column 13 (char 12)")
    assert timeline.read_decisions()[-2:] == ["Launch", "GiveUp"]
    reason = timeline.job.reason
    assert reason is not None
    assert "in the same way twice, where it had made steps before: a file that the program reads by itself" in reason
    assert "the program or its command line is at fault" not in reason
    assert 'File "train.py", line 3, in <module>' in reason


def stepped() -> Life:
    """A training that had made steps, and was killed."""
    timeline = life()
    timeline.started().stage(Stage.STEP).steps(1, 400)
    return waits_and_looks(timeline.exits(signal=9))


def test_a_program_that_was_changed_since_it_trained_is_at_fault_itself() -> None:
    timeline = stepped()
    waits_and_looks(raises(timeline, "SyntaxError", "train.py"))
    raises(timeline, "SyntaxError", "train.py")
    assert timeline.job.reason is not None
    assert "the program or its command line is at fault" in timeline.job.reason


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ModuleNotFoundError", "No module named 'torch'"),
        ("ImportError", "libtorch_hip.so: cannot open shared object file: No such file or directory"),
    ],
)
def test_a_module_that_an_upgrade_has_removed_is_waited_for_some_minutes(kind: str, message: str) -> None:
    """As `pip install -U torch` does under a training that lives, which is killed meanwhile."""
    timeline = stepped()
    began = timeline.now
    while timeline.phase() is not Phase.FAILED:
        raises(timeline, kind, message)
        if timeline.phase() is Phase.BACKOFF:
            waits_and_looks(timeline)
    assert 120 <= timeline.now.seconds_since(began) <= 300
    assert timeline.job.reason is not None
    assert "in the same way 5 times: the program or its command line is at fault" in timeline.job.reason


def test_a_module_that_is_there_again_lets_it_go_on() -> None:
    timeline = stepped()
    for _ in range(3):
        waits_and_looks(raises(timeline, "ModuleNotFoundError", "No module named 'torch'"))
    timeline.started().stage(Stage.STEP).steps(401, 500)
    assert timeline.phase() is Phase.RUNNING


def test_a_command_that_was_executed_before_is_waited_for_some_minutes() -> None:
    timeline = stepped()
    began = timeline.now
    while timeline.phase() is not Phase.FAILED:
        timeline.fails_to_launch(f"{ABSENT}: there is no /home/me/venv/bin/yolo")
        if timeline.phase() is Phase.BACKOFF:
            waits_and_looks(timeline)
    assert 90 <= timeline.now.seconds_since(began) <= 240
    assert timeline.job.reason is not None
    assert "the command could not be executed 5 times" in timeline.job.reason


def test_a_usage_error_is_given_up_after_the_second_time() -> None:
    timeline = life()
    for _ in range(2):
        timeline.started().silence(1).prints("train.py: error: argument --device: invalid choice: 'cuda:x'").exits(2)
        if timeline.phase() is Phase.BACKOFF:
            waits_and_looks(timeline)
    assert timeline.read_decisions() == ["Launch", "Retry", "Launch", "GiveUp"]
    assert timeline.job.reason is not None
    assert "argument --device: invalid choice" in timeline.job.reason


def test_a_command_that_is_missing_is_given_up_after_the_second_time() -> None:
    timeline = life()
    waits_and_looks(timeline.started(None).exits(error="[Errno 2] No such file or directory: '/opt/python'"))
    timeline.started(None).exits(error="[Errno 2] No such file or directory: '/opt/python'")
    assert timeline.read_decisions() == ["Launch", "Retry", "Launch", "GiveUp"]


ABSENT = "night: command '/home/me/venv/bin/yolo' of the job: No such file or directory"
MISSPELLED = (
    "night: command 'pyhton' of the job: not found; use an absolute path or add its directory to the job's PATH"
)


@pytest.mark.parametrize(
    "error",
    [
        MISSPELLED,
        f"{ABSENT}: there is no /home/me/venv/bin/yolo",
        "night: command '/opt/rocm/network/train.sh' of the job: Permission denied: make it executable (`chmod +x`)",
        "night: command './a' of the job: Exec format error: begin it with a line such as `#!/bin/sh`",
        "night: cwd '/home/me/rnu' of the job: No such file or directory: there is no /home/me/rnu",
    ],
)
def test_a_command_that_cannot_be_executed_is_given_up_after_the_second_time(error: str) -> None:
    timeline = life()
    began = timeline.now
    waits_and_looks(timeline.fails_to_launch(error)).fails_to_launch(error)
    assert timeline.read_decisions() == ["Launch", "Retry", "Launch", "GiveUp"]
    assert timeline.job.reason is not None
    assert error in timeline.job.reason
    assert "correct `command`, `cwd` or PATH of the job" in timeline.job.reason
    assert f"`supervisorctl start {JOB}`" in timeline.job.reason
    assert timeline.now.seconds_since(began) <= 10


def test_a_folder_whose_disk_may_be_mounted_later_is_waited_for_some_minutes() -> None:
    error = f"{ABSENT} (is its disk mounted?): there is no folder /home/me"
    timeline = with_two_checkpoints(RemedyContext())
    began = timeline.now
    while timeline.phase() is not Phase.FAILED:
        start = timeline.present().resume_from
        assert start is not None
        assert start.path == "90.pt", "no older checkpoint mounts a disk"
        timeline.fails_to_launch(error)
        if timeline.phase() is Phase.BACKOFF:
            waits_and_looks(timeline)
    assert 90 <= timeline.now.seconds_since(began) <= 240
    assert timeline.job.reason is not None
    assert "the command could not be executed 5 times" in timeline.job.reason


def test_a_disk_that_was_mounted_meanwhile_lets_it_go_on() -> None:
    error = f"{ABSENT} (is its disk mounted?): there is no folder /home/me"
    timeline = with_two_checkpoints(RemedyContext())
    for _ in range(3):
        waits_and_looks(timeline.fails_to_launch(error))
    timeline.started().steps(91, 200)
    assert timeline.phase() is Phase.RUNNING


@pytest.mark.parametrize("reason", ["Input/output error", "Stale file handle", "Text file busy"])
def test_a_disk_that_fails_under_the_command_is_tried_on(reason: str) -> None:
    timeline = life()
    for _ in range(3):
        waits_and_looks(timeline.fails_to_launch(f"night: command '/home/me/a' of the job: {reason}"))
    assert timeline.phase() is not Phase.FAILED


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (127, "sh: 1: pyhton: not found"),
        (126, "bash: line 1: /opt/rocm/network/train.sh: Permission denied"),
        (127, "env: 'pyhton': No such file or directory"),
        (2, "python: can't open file '/opt/rocm/train.py': [Errno 2] No such file or directory"),
        (1, "/opt/rocm/bin/python: can't find '__main__' module in '/opt/rocm/timeout'"),
    ],
)
def test_a_program_that_a_shell_or_python_does_not_find_is_given_up_with_what_to_do(code: int, line: str) -> None:
    timeline = life()
    waits_and_looks(timeline.started().silence(1).prints(line).exits(code))
    timeline.started().silence(1).prints(line).exits(code)
    assert timeline.read_decisions() == ["Launch", "Retry", "Launch", "GiveUp"]
    assert timeline.job.reason is not None
    assert line in timeline.job.reason
    assert timeline.job.incident is not None
    flag = timeline.job.incident.flag
    assert flag.fault == "command_missing"
    assert flag.diagnosis is not None
    assert "correct `command`" in flag.diagnosis.advice[0]


def test_a_program_on_a_disk_that_fails_is_tried_on() -> None:
    timeline = life()
    for _ in range(3):
        waits_and_looks(timeline.started().silence(1).prints("sh: 1: /home/me/a: Input/output error").exits(126))
    assert timeline.phase() is not Phase.FAILED


def test_a_traceback_in_the_output_counts_where_no_agent_reports_it() -> None:
    timeline = life()
    for _ in range(2):
        timeline.started().silence(1).prints("ModuleNotFoundError: No module named 'jax'").exits(1)
        if timeline.phase() is Phase.BACKOFF:
            waits_and_looks(timeline)
    assert timeline.read_decisions() == ["Launch", "Retry", "Launch", "GiveUp"]


@pytest.mark.parametrize(
    ("message", "may_pass"),
    [
        ('OSError: no central directory (File "/opt/rocm/lib/http/x.py", line 8, in load); last output: done', False),
        ('OSError: no central directory (File "/opt/rocm/li; last output: done', False),
        ('OSError: no central directory (File "/opt/x.py", line 8, in load); last output: connection refused', True),
    ],
)
def test_where_something_was_raised_says_nothing_of_what_it_is(message: str, may_pass: bool) -> None:
    assert is_passing(message) is may_pass


def test_another_exception_each_time_is_tried_on() -> None:
    timeline = life()
    for name in ("a", "b", "c"):
        waits_and_looks(raises(timeline, "KeyError", repr(name)))
    assert timeline.read_decisions().count("Launch") == 4


def test_the_same_exception_from_another_line_is_another_failure() -> None:
    timeline = life()
    for line in (3, 40, 51):
        waits_and_looks(raises(timeline, "KeyError", "'lr'", frame=FRAME.replace("line 3", f"line {line}")))
    assert timeline.read_decisions().count("Launch") == 4


def test_an_address_or_a_time_in_the_message_makes_no_other_failure() -> None:
    timeline = life()
    waits_and_looks(raises(timeline, "TypeError", "<Model object at 0x7f3a12> is not callable"))
    raises(timeline, "TypeError", "<Model object at 0x7fffe0> is not callable")
    assert isinstance(timeline.last, de.GiveUp)


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
    timeline = life()
    waits_and_looks(raises(timeline, kind, message))
    raises(timeline, kind, message)
    assert timeline.phase() is Phase.BACKOFF, timeline.job.reason


OF_AN_ACTOR = """\x1b[36mray::Trainer.load()\x1b[39m (pid={pid}, ip=192.0.2.2)
  File "/opt/rocm-5.2/train.py", line 9, in load
    state = load(path, lock=True)
{inner}
"""


@pytest.mark.parametrize("pid", [31111, 1875])
@pytest.mark.parametrize(
    ("inner", "may_pass"),
    [("RuntimeError: failed finding central directory", False), ("ConnectionError: connection refused", True)],
)
def test_of_what_another_process_raised_neither_its_source_nor_its_number_counts(
    inner: str, may_pass: bool, pid: int
) -> None:
    timeline = raises(life(), "RayTaskError(RuntimeError)", OF_AN_ACTOR.format(pid=pid, inner=inner), frame="")
    place = ' (File "/opt/rocm-5.2/train.py", line 9, in load)'
    assert timeline.job.incident is not None
    assert timeline.job.incident.flag.message == f"{inner} (quoted by RayTaskError(RuntimeError)){place}"
    assert timeline.job.course.trials[-1].start_failure == (None if may_pass else f"{inner}{place}")


def test_an_exception_that_was_raised_from_a_lost_connection_is_tried_again() -> None:
    lost = "urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='h', port=443)\n\nDuring handling:\n\n"
    timeline = life()
    waits_and_looks(raises(timeline, "OSError", "cannot load the model 'tiny'", caused_by=lost))
    raises(timeline, "OSError", "cannot load the model 'tiny'", caused_by=lost)
    assert timeline.phase() is Phase.BACKOFF, timeline.job.reason


@pytest.mark.parametrize("signal", [9, 11, 15])
def test_a_signal_is_tried_again(signal: int) -> None:
    timeline = life()
    waits_and_looks(timeline.started().silence(1).exits(signal=signal))
    timeline.started().silence(1).exits(signal=signal)
    assert timeline.phase() is Phase.BACKOFF


def test_a_plain_status_without_a_reason_is_tried_again() -> None:
    timeline = life()
    waits_and_looks(timeline.started().silence(1).prints("loading the data").exits(1))
    timeline.started().silence(1).prints("loading the data").exits(1)
    assert timeline.phase() is Phase.BACKOFF


def test_the_same_exception_after_a_step_is_no_failed_start() -> None:
    timeline = life()
    for steps in (50, 90):
        timeline.training(steps).says(ev.AgentEvent.EXCEPTION, type="KeyError", message="'x'", traceback=FRAME).exits(1)
        assert timeline.phase() is Phase.BACKOFF
        assert not any(trial.start_failure for trial in timeline.job.course.trials)
        waits_and_looks(timeline)


def test_a_long_life_that_nobody_could_follow_is_no_failed_start() -> None:
    timeline = life()
    for _ in range(2):
        raises(timeline, "KeyError", "'x'", after_s=4000)
        assert timeline.phase() is Phase.BACKOFF, timeline.job.reason
        waits_and_looks(timeline)


@pytest.mark.parametrize(("shown", "last"), [(0, "GiveUp"), (3, "Retry")])
def test_a_progress_bar_that_stands_at_nothing_shows_no_step(shown: int, last: str) -> None:
    """As alpha-zero-general's, which draws one of the games that it plays before the first step of its optimizer."""
    timeline = life()
    for _ in range(2):
        if timeline.phase() is Phase.BACKOFF:
            waits_and_looks(timeline)
        timeline.started()
        for step in (*range(shown + 1), 0):
            of: dict[str, Any] = {"at": timeline.now, "job": JOB, "attempt": timeline.attempt}
            timeline.put(ev.OutputSeen(new_bytes=9, last_line=f"{step}/100", progress_step=step, **of))
        raises(timeline, "AttributeError", "'numpy.ndarray' object has no attribute 'tostring'")
    assert timeline.read_decisions()[-1] == last


def test_a_long_start_that_is_followed_is_one() -> None:
    timeline = life()
    for _ in range(2):
        timeline.started().stage(Stage.SETUP)
        raises(timeline, "KeyError", "'x'", after_s=500)
        if timeline.phase() is Phase.BACKOFF:
            waits_and_looks(timeline)
    assert timeline.phase() is Phase.FAILED


def test_progress_in_between_makes_it_the_first_time_again() -> None:
    timeline = life()
    waits_and_looks(raises(timeline, "KeyError", "'x'"))
    timeline.training(50).exits(signal=9)
    waits_and_looks(waits_and_looks(timeline).started().exits(signal=9))
    raises(timeline, "KeyError", "'x'")
    assert timeline.phase() is Phase.BACKOFF


def test_a_person_who_starts_it_again_has_it_tried_twice_again() -> None:
    timeline = life()
    waits_and_looks(raises(timeline, "KeyError", "'x'"))
    raises(timeline, "KeyError", "'x'").asks(ev.Ask.START).looks().silence(1)
    waits_and_looks(raises(timeline, "KeyError", "'x'"))
    raises(timeline, "KeyError", "'x'")
    assert timeline.read_decisions() == ["Launch", "Retry", "Launch", "GiveUp", "Launch", "Retry", "Launch", "GiveUp"]


def test_a_status_that_is_always_retried_is_never_in_vain() -> None:
    timeline = life(limits=Limits(budget=Budget(always_retry_exit_codes=(2,))))
    for _ in range(4):
        waits_and_looks(timeline.started().prints("train.py: error: busy").exits(2))
    assert timeline.read_decisions().count("Launch") == 5


# --- a resume that cannot be made ---------------------------------------------------------------------------------


def with_two_checkpoints(context: RemedyContext, kind: str = "checkpoint") -> Life:
    timeline = life()
    timeline.context = context
    timeline.training(100).saves("50.pt", 50).silence(1).saves("90.pt", 90).silence(1).exits(signal=9)
    timeline.saved = [replace(checkpoint, kind=kind) for checkpoint in timeline.saved]
    return waits_and_looks(timeline)


def test_a_resume_command_that_loads_no_checkpoint_is_at_fault_after_an_older_one_failed_too() -> None:
    timeline = with_two_checkpoints(RemedyContext(resume_command=True))
    began, tried = timeline.now, []
    while timeline.phase() is not Phase.FAILED:
        start = timeline.present().resume_from
        assert start is not None
        tried.append(start.path)
        raises(timeline, "RuntimeError", "Error(s) in loading state_dict for Net: Missing key(s): 'fc.bias'", after_s=2)
        if timeline.phase() is Phase.BACKOFF:
            waits_and_looks(timeline)
    assert tried == ["90.pt", "90.pt", "50.pt"]
    assert timeline.job.reason is not None
    assert "the resume command is at fault: without it the training made steps" in timeline.job.reason
    assert "Missing key(s)" in timeline.job.reason
    assert timeline.now.seconds_since(began) <= 40


@pytest.mark.parametrize(
    ("kind", "newer_set_aside", "advised"),
    [("checkpoint", False, True), ("checkpoint", True, False), ("snapshot", False, False)],
)
def test_where_nothing_gives_a_program_its_checkpoint_its_own_last_save_may_be_at_fault(
    kind: str, newer_set_aside: bool, advised: bool
) -> None:
    """SpeechBrain takes its newest folder, whatever the job resumes from; a save that was cut short ends each start."""
    timeline = with_two_checkpoints(RemedyContext(loads_itself=True, newer_set_aside=newer_set_aside), kind)
    while timeline.phase() is not Phase.FAILED:
        raises(timeline, "RuntimeError", "PytorchStreamReader failed reading zip archive", after_s=2)
        if timeline.phase() is Phase.BACKOFF:
            waits_and_looks(timeline)
    assert timeline.job.reason is not None
    assert "the way it is resumed is at fault: without it the training made steps; or a file" in timeline.job.reason
    assert "most likely its own last save; remove or replace that" in timeline.job.reason
    named = ", or set resume.set_newer_aside, which moves what checkpoints.paths finds" in timeline.job.reason
    assert named is advised, "not what is set already, nor what moves nothing for a snapshot"


def test_a_load_that_torch_refuses_for_its_classes_is_given_up_with_the_setting_that_allows_it() -> None:
    timeline = with_two_checkpoints(RemedyContext(resume_command=True))
    while timeline.phase() is not Phase.FAILED:
        raises(
            timeline, "UnpicklingError", "Weights only load failed. This file can still be loaded, to do so", after_s=2
        )
        if timeline.phase() is Phase.BACKOFF:
            waits_and_looks(timeline)
    assert timeline.job.reason is not None
    assert "without it the training made steps; torch 2.6 and later load tensors alone" in timeline.job.reason
    assert 'set env = { TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD = "1" } in the job' in timeline.job.reason


def test_that_a_program_needs_other_files_is_known_until_it_starts_from_the_beginning() -> None:
    timeline = with_two_checkpoints(RemedyContext(resume_command=True))
    raises(timeline, "FileNotFoundError", "No such file or directory: '/g/000001/config.json'")
    known = [timeline.job.needs_others]
    timeline.silence(10)
    point = ResumePoint(checkpoint=timeline.saved[0], possible=True, reason="proven", needs_others=True)
    timeline.put(ev.ResumePointFound(at=timeline.now, job=JOB, attempt=timeline.attempt, point=point))
    known.append(timeline.job.needs_others)
    waits_and_looks(timeline.started().steps(91, 140).exits(signal=9))
    known.append(timeline.job.needs_others)
    timeline.started().steps(91, 140).exits(signal=9).asks(ev.Ask.START, fresh=True).silence(1)
    assert timeline.present().resume_from is None
    known.append(timeline.job.needs_others)
    assert known == [False, True, True, False], "the second search, by another daemon perhaps, has seen nothing of it"


def test_an_older_checkpoint_that_can_be_loaded_goes_on() -> None:
    timeline = with_two_checkpoints(RemedyContext())
    waits_and_looks(raises(timeline, "KeyError", "'epoch'"))
    waits_and_looks(raises(timeline, "KeyError", "'epoch'"))
    start = timeline.present().resume_from
    assert start is not None
    assert start.path == "50.pt"
    timeline.started().steps(51, 200)
    assert timeline.phase() is Phase.RUNNING


@pytest.mark.parametrize(("source", "in_place"), [("/runs/tiny/weights/last.pt", True), (None, False)])
def test_after_a_start_that_failed_from_a_copy_the_file_is_given_in_its_own_place(
    source: str | None, in_place: bool
) -> None:
    """YOLOv6 that finds no args.yaml above its checkpoint goes on with its defaults, and fails by those."""
    timeline = with_two_checkpoints(RemedyContext(resume_command=True))
    given = replace(timeline.saved[-1], source=source)
    timeline.job = replace(timeline.job, attempt=replace(timeline.present(), resume_from=given))
    assert not timeline.job.resumes_in_place
    waits_and_looks(raises(timeline, "AssertionError", "no data set: coco.yaml"))
    assert timeline.job.resumes_in_place is in_place
    timeline.started().steps(101, 200)
    waits_and_looks(timeline.exits(signal=9))
    assert timeline.job.resumes_in_place is in_place, "it is not tried again with each fault"


@pytest.mark.parametrize(("is_put_back", "resumed"), [(True, "90.pt"), (False, "50.pt")])
def test_a_generation_is_put_into_its_own_place_before_an_older_one_is_taken(is_put_back: bool, resumed: str) -> None:
    """Killed while it saved: the program loads its own damaged file, and has not tried the generation."""
    timeline = with_two_checkpoints(RemedyContext(resume_command=True, loads_itself=True, is_put_back=is_put_back))
    waits_and_looks(timeline.started().steps(91, 110).exits(signal=9))
    given = replace(timeline.saved[-1], source="/runs/tiny/last.pt")
    timeline.job = replace(timeline.job, attempt=replace(timeline.present(), resume_from=given))
    waits_and_looks(raises(timeline, "OSError", "Invalid argument"))
    start = timeline.present().resume_from
    assert start is not None
    assert start.path == resumed
    assert timeline.job.resumes_in_place


def test_a_training_that_a_signal_ended_before_its_first_step_may_start_from_a_copy() -> None:
    timeline = with_two_checkpoints(RemedyContext(resume_command=True))
    given = replace(timeline.saved[-1], source="/runs/tiny/weights/last.pt")
    timeline.job = replace(timeline.job, attempt=replace(timeline.present(), resume_from=given))
    waits_and_looks(timeline.started().silence(8).exits(signal=9))
    assert not timeline.job.resumes_in_place


def test_a_resume_that_does_not_even_run_takes_no_older_checkpoint() -> None:
    timeline = with_two_checkpoints(RemedyContext(resume_command=True))
    waits_and_looks(raises(timeline, "SyntaxError", "invalid syntax (resume.py, line 3)"))
    raises(timeline, "SyntaxError", "invalid syntax (resume.py, line 3)")
    assert timeline.phase() is Phase.FAILED
    assert all(trial.remedy != "older_generation" for trial in timeline.job.course.trials)
    assert timeline.job.name == JOB
