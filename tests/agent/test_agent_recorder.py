"""The flight recorder and who may write it, through the calls that a script can make itself."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import pytest
from agent_by_hand import Attempt, wait_for

from supervisor.core import attempt_files as at

STEPS = "import rocm_agent, sys\nfor n in range(int(sys.argv[1])): rocm_agent.step(loss=n / 2)\n"


def test_every_step_is_recorded_in_order(attempt: Attempt, python: Path) -> None:
    attempt.make_recorder()
    assert attempt.run([python, "-c", STEPS, "3"]).code == 0
    records = attempt.records()
    assert [record.step for record in records] == [1, 2, 3]
    assert [record.loss for record in records] == [0.0, 0.5, 1.0]
    assert [record.known for record in records] == [at.KNOWN_LOSS] * 3
    assert sorted(record.monotonic_ns for record in records) == [record.monotonic_ns for record in records]
    (claimed,) = attempt.list_reports("claimed")
    pid, _, since_ns = attempt.header(at.CLAIM_OFFSET, at.CLAIM)
    assert pid == claimed["pid"]
    assert 0 < since_ns < records[0].monotonic_ns
    assert attempt.stage() == "exiting"


def test_an_absent_recorder_is_completed(attempt: Attempt, python: Path) -> None:
    assert attempt.run([python, "-c", STEPS, "2"]).code == 0
    size = at.HEADER_BYTES + at.CAPACITY_DEFAULT * at.RECORD.size
    found = attempt.recorder().stat()
    assert found.st_size == size
    assert found.st_blocks * 512 >= size, "a hole in the file would be SIGBUS on a full disk"
    assert attempt.header(0, at.IDENTITY) == (at.MAGIC, 4096, 72, at.CAPACITY_DEFAULT, 0)
    assert len(attempt.records()) == 2


@pytest.mark.parametrize("content", [b"", b"garbage" * 9, b"\0" * 9000])
def test_a_damaged_recorder_is_made_again(attempt: Attempt, python: Path, content: bytes) -> None:
    attempt.recorder().write_bytes(content)
    assert attempt.run([python, "-c", STEPS, "2"]).code == 0
    assert [record.step for record in attempt.records()] == [1, 2]


def test_a_link_in_the_place_of_the_recorder_leads_to_no_other_file(
    attempt: Attempt, python: Path, tmp_path: Path
) -> None:
    """The training goes on unrecorded, and the file that the link leads to is as it was."""
    other = tmp_path / "thesis.txt"
    other.write_text("years of work")
    attempt.recorder().unlink(missing_ok=True)
    attempt.recorder().symlink_to(other)
    assert attempt.run([python, "-c", STEPS, "2"]).code == 0
    assert other.read_text() == "years of work"


def test_the_ring_keeps_the_newest_and_counts_all(attempt: Attempt, python: Path) -> None:
    attempt.make_recorder(capacity=8)
    assert attempt.run([python, "-c", STEPS, "21"]).code == 0
    assert attempt.head() == 21
    assert [record.step for record in attempt.records()] == list(range(14, 22))


def test_a_later_process_continues_after_the_head(attempt: Attempt, python: Path) -> None:
    attempt.make_recorder()
    for _ in range(2):
        assert attempt.run([python, "-c", STEPS, "2"]).code == 0
    assert [record.step for record in attempt.records()] == [1, 2, 1, 2]
    assert [record.sequence for record in attempt.records()] == [1, 2, 3, 4]
    assert len({claimed["pid"] for claimed in attempt.list_reports("claimed")}) == 2


def test_unknown_is_not_zero_and_nan_stays_nan(attempt: Attempt, python: Path) -> None:
    attempt.make_recorder()
    program = (
        "import rocm_agent as a\n"
        "a.step()\n"
        "a.step(loss=float('nan'), epoch=0, lr=0.0)\n"
        "a.step(loss=float('inf'), step=70, epoch=3, lr=1e300)\n"
        "a.step(loss=1, lr=float('nan'))\n"
    )
    assert attempt.run([python, "-c", program]).code == 0
    nothing, nan, inf, last = attempt.records()
    assert nothing.known == 0
    assert nan.known == at.KNOWN_EPOCH | at.KNOWN_LOSS | at.KNOWN_LR
    assert math.isnan(nan.loss)
    assert math.isinf(inf.loss)
    assert (inf.step, inf.epoch) == (70, 3)
    assert 3e38 < inf.lr < math.inf, "a double that no single-precision float holds becomes the largest"
    assert last.step == 71
    assert math.isnan(last.lr)
    assert not attempt.failures()


def test_nonsense_from_the_script_is_reported_once_and_never_raised(attempt: Attempt, python: Path) -> None:
    program = "import rocm_agent as a\nfor _ in range(3): a.step(loss='much'); a.stage('lunch')\nprint('fine')"
    assert attempt.run([python, "-c", program]) == (0, "fine\n")
    assert sorted(reported["where"] for reported in attempt.list_reports("hook_failed")) == [
        "rocm_agent.script.stage",
        "rocm_agent.script.step",
    ]


def test_each_rank_has_its_own_recorder(attempt: Attempt, python: Path) -> None:
    for rank in (0, 2):
        assert attempt.run([python, "-c", STEPS, "2"], RANK=str(rank), WORLD_SIZE="3").code == 0
    assert len(attempt.records()) == 2
    assert len(attempt.records(rank=2)) == 2
    assert attempt.header(0, at.IDENTITY, rank=2)[4] == 2
    assert [(report["rank"], report["world_size"]) for report in attempt.list_reports("claimed")] == [(0, 3), (2, 3)]


def test_local_rank_counts_where_rank_is_not_set(attempt: Attempt, python: Path) -> None:
    assert attempt.run([python, "-c", STEPS, "1"], LOCAL_RANK="1").code == 0
    assert attempt.run([python, "-c", STEPS, "1"], LOCAL_RANK="-1").code == 0
    assert attempt.head(rank=1) == 1
    assert attempt.head() == 1


FORKED = """
import os, rocm_agent, sys
rocm_agent.step()
child = os.fork()
rocm_agent.step()
if child == 0:
    rocm_agent.step()
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.readline()
os._exit(0)
"""


def test_a_forked_child_is_silent_and_holds_no_claim_when_its_parent_dies(attempt: Attempt, python: Path) -> None:
    attempt.make_recorder()
    process = attempt.start([python, "-c", FORKED])
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        wait_for(lambda: attempt.head() >= 2)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=120)
        assert attempt.head() == 2, "the parent's two; the child is silent"
        assert attempt.run([python, "-c", STEPS, "1"]).code == 0
        assert attempt.head() == 3, "a later process claims although the child lives"
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate(timeout=120)


def test_a_child_forked_by_a_launcher_is_the_training(attempt: Attempt, python: Path) -> None:
    program = "import os, rocm_agent\nif os.fork() == 0:\n    rocm_agent.step(); os._exit(0)\nos.wait()"
    assert attempt.run([python, "-c", program]).code == 0
    assert attempt.head() == 1


SPAWNS = """
import rocm_agent, subprocess, sys
rocm_agent.step(loss=1)
child = "import rocm_agent; rocm_agent.step(loss=9); rocm_agent.stage('ended')"
subprocess.run([sys.executable, "-c", child], check=True)
rocm_agent.step(loss=2)
"""


def test_a_second_process_is_silent_while_the_first_lives(attempt: Attempt, python: Path) -> None:
    assert attempt.run([python, "-c", SPAWNS]).code == 0
    assert [record.loss for record in attempt.records()] == [1.0, 2.0]
    assert attempt.stage() == "exiting"
    assert len(attempt.list_reports("claimed")) == 1
    assert len(attempt.list_reports("alive")) == 2


MULTIPROCESSING = """
import multiprocessing as mp, rocm_agent
def work(_): rocm_agent.step()
if __name__ == "__main__":
    rocm_agent.step()
    with mp.get_context("spawn").Pool(1) as pool: pool.map(work, range(2))
"""


def test_multiprocessings_helpers_are_not_announced(attempt: Attempt, python: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(MULTIPROCESSING)
    assert attempt.run([python, tmp_path / "program.py"]).code == 0
    assert attempt.head() == 1
    assert len(attempt.list_reports("alive")) == 1


SAVES = """
import rocm_agent, sys
for n in range(1, 9):
    rocm_agent.step()
    if rocm_agent.save_requested():
        rocm_agent.checkpoint_saved("w/n%d.pt" % n, epoch=0)
    print(n, flush=True)
"""


def test_a_script_reports_what_lies_inside_a_step_and_its_next_step_ends_that(attempt: Attempt, python: Path) -> None:
    program = "import os, rocm_agent as a\na.step()\na.stage('data_wait')\n"
    assert attempt.run([python, "-c", program + "os._exit(0)\n"]).code == 0
    assert attempt.stage() == "step"
    aside, whole, since_ns = attempt.header(at.ASIDE_OFFSET, at.ASIDE)
    assert (at.ASIDES[aside], whole) == ("data_wait", 0)
    assert since_ns > 0
    assert attempt.run([python, "-c", program + "a.step()\nos._exit(0)\n"]).code == 0
    assert attempt.header(at.ASIDE_OFFSET, at.ASIDE)[0] == 0


def test_a_wait_goes_on_in_the_header_while_it_is_noted_that_all_stages_are_reported(
    attempt: Attempt, python: Path
) -> None:
    """A loader's wait is written straight into the header."""
    program = (
        "import os\nfrom rocm_agent import recorder\n"
        f"own = recorder.open_recorder({str(attempt.folder / 'own')!r}, 0)\n"
        "own.halves[recorder.ASIDE_HALF] = 1\nown.reports_all_stages(complete=True)\nprint(own.aside)\nos._exit(0)\n"
    )
    finished = attempt.run([python, "-u", "-c", program])
    assert finished == (0, "1\n")


def test_a_script_that_asks_saves_on_command_and_goes_on(attempt: Attempt, python: Path) -> None:
    attempt.make_recorder()
    attempt.command(at.COMMAND_SAVE, 7)
    finished = attempt.run([python, "-c", SAVES])
    assert finished == (0, "".join(f"{n}\n" for n in range(1, 9)))
    assert attempt.answer() == (at.ANSWER_SAVED, 7)
    (saved,) = attempt.list_reports("checkpoint_saved")
    assert saved["paths"] == [str(attempt.folder / "w" / "n1.pt")]
    assert (saved["epoch"], saved["step"], saved["requested"]) == (0, 1, True)


def test_save_and_stop_ends_the_process_as_sigterm_does(attempt: Attempt, python: Path) -> None:
    attempt.make_recorder()
    attempt.command(at.COMMAND_SAVE_AND_STOP, 8)
    finished = attempt.run([python, "-c", SAVES])
    assert finished == (-signal.SIGTERM, "")
    assert attempt.answer() == (at.ANSWER_SAVED, 8)


def test_a_handler_of_the_scripts_own_runs_at_the_stop(attempt: Attempt, python: Path) -> None:
    attempt.make_recorder()
    attempt.command(at.COMMAND_SAVE_AND_STOP, 8)
    handler = "import signal\ndef end(*_): raise RuntimeError('handled')\nsignal.signal(signal.SIGTERM, end)\n"
    finished = attempt.run([python, "-c", handler + SAVES])
    assert finished.code == 1
    assert "RuntimeError: handled" in finished.output


def test_a_command_is_served_once(attempt: Attempt, python: Path) -> None:
    attempt.make_recorder()
    attempt.command(at.COMMAND_SAVE, 7)
    for _ in range(2):
        assert attempt.run([python, "-c", SAVES]).code == 0
    assert len(attempt.list_reports("checkpoint_saved")) == 1


def test_a_script_that_never_asks_is_known_to_save_nothing(attempt: Attempt, python: Path) -> None:
    attempt.make_recorder()
    attempt.command(at.COMMAND_SAVE_AND_STOP, 9)
    assert attempt.run([python, "-c", STEPS, "4"]).code == 0
    assert attempt.answer() == (at.ANSWER_CANNOT, 9)


def test_the_resume_variable_reaches_the_script(attempt: Attempt, python: Path) -> None:
    program = "import rocm_agent; print(rocm_agent.resume_from())"
    assert attempt.run([python, "-c", program], **{at.ENV_RESUME_FROM: "/a/b.pt"}).output == "/a/b.pt\n"
    assert attempt.run([python, "-c", program]).output == "None\n"


def test_unsupervised_every_call_does_nothing(attempt: Attempt, python: Path) -> None:
    program = (
        "import rocm_agent as a; a.step(loss=1); a.stage('validate'); a.checkpoint_saved('x');"
        "print(a.save_requested() or False, a.resume_from())"
    )
    assert attempt.run([python, "-c", program], **{at.ENV_FOLDER: ""}) == (0, "False None\n")
    assert list((attempt.folder / at.RUN).iterdir()) == []


HOLDS = "import rocm_agent, sys\nrocm_agent.step()\nsys.stdin.read()"


def test_who_was_refused_goes_on_unrecorded_and_the_next_may_claim(attempt: Attempt, python: Path) -> None:
    holder = attempt.start([python, "-c", HOLDS])
    try:
        wait_for(lambda: attempt.head() == 1)
        assert attempt.run([python, "-c", STEPS, "3"]).code == 0
        assert attempt.head() == 1
    finally:
        holder.communicate(timeout=120)
    assert attempt.run([python, "-c", STEPS, "3"]).code == 0
    assert attempt.head() == 4
