"""What users and trainings get wrong: it is said clearly, it disturbs nothing else, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from house import PATIENCE_S, House

from tests.rigs.no_threads import BEYOND_ALL_MEMORY

STOP_TRYING = "[jobs.one.budget]\nrestarts = 1\nbackoff_s = [0.0]\n"


def test_five_mistakes_in_the_configuration_are_reported_at_once_and_nothing_starts(home: House) -> None:
    marker = home.folder / "started"
    home.write(
        f'[jobs.one]\ncommand = ["touch", "{marker}"]\ngrace_s = -1\nworkdir = "/tmp"\nrules.stal.limit_s = 3\n'
        '[jobs."bad name"]\ncommand = []\n[telemetry]\ninterval_s = "often"\n'
    )
    home.code_copies = None
    done = home.start(wait=False)
    assert done.wait(PATIENCE_S) == 78
    output = home.log.read_text()
    for key in ("jobs.one.grace_s", "jobs.one.workdir", "jobs.one.rules.stal", "bad name", "telemetry.interval_s"):
        assert key in output
    assert not marker.exists()
    assert not home.state.exists()


def test_a_mistake_that_was_made_since_does_not_keep_the_daemon_from_starting_again(home: House) -> None:
    """The machine boots after somebody broke the file: what was last in force goes on, and status says so."""
    under_systemd = {"STATE_DIRECTORY": str(home.state)}
    home.write(home.by_hand("one", "--steps", "100000"))
    home.start(env=under_systemd)
    home.step("one", 5)
    home.kill()
    good = home.config.read_text()
    home.config.write_text(good.replace("[jobs.one]", "[jobs.one]\ngracious_s = 3"))
    assert home.start(wait=False).wait(PATIENCE_S) == 78
    home.start(env=under_systemd)
    status = home.status()
    assert status is not None
    assert "gracious_s" in status["daemon"]["problem"]
    assert "last-good.toml" in status["daemon"]["problem"]
    home.step("one", 20, attempt=1)
    home.config.write_text(good)
    assert home.ctl("reload").returncode == 0
    status = home.status()
    assert status is not None
    assert status["daemon"]["problem"] is None


def test_a_command_that_does_not_exist_is_given_up_by_its_name(home: House) -> None:
    home.write(home.job_of("one", ["/no/such/python", "train.py"]) + STOP_TRYING)
    home.start()
    job = home.phase("one", "failed")
    assert "/no/such/python" in job["reason"]
    shown = home.ctl("status")
    assert shown.returncode == 3
    assert "/no/such/python" in shown.stdout


def test_a_script_that_ends_well_without_training_has_finished(home: House) -> None:
    home.write(home.job_of("one", ["/bin/echo", "nothing to do"]))
    home.start()
    assert home.phase("one", "finished")["attempt"] == 1
    assert "nothing to do" in home.ctl("logs", "one").stdout
    assert home.incidents() == []


def test_a_training_that_cannot_be_hooked_is_supervised_all_the_same(home: House) -> None:
    loop = f"while [ ! -e {home.folder}/end ]; do echo working; sleep 0.1; done; exit 3"
    home.write(home.job_of("one", ["/bin/sh", "-c", loop], stall="limit_s = 1") + STOP_TRYING)
    home.start()
    home.until(lambda: home.job("one")["pid"] is not None, 20, "the loop to run")
    assert home.job("one")["hooked"] is False
    (home.folder / "end").touch()
    job = home.phase("one", "failed")
    assert "status 3" in job["reason"]
    assert [incident["rule"] for incident in home.incidents("one")] == ["crash", "crash"]


def test_what_a_training_forks_is_gone_once_it_is_stopped(home: House) -> None:
    forks = (
        "import os, sys, time, pathlib\n"
        "for n in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        f"        pathlib.Path({str(home.folder)!r}, 'daemon%d' % n).write_text(str(os.getpid()))\n"
        "        time.sleep(1000)\n"
        "time.sleep(1000)\n"
    )
    home.write(home.job_of("one", [sys.executable, "-c", forks]))
    home.start()
    notes = [home.folder / f"daemon{n}" for n in range(3)]
    home.until(lambda: all(note.exists() and note.read_text() for note in notes), 20, "three daemons to be forked")
    pids = [int(note.read_text()) for note in notes]
    assert home.ctl("stop", "one", "--wait").returncode == 0
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_a_flood_of_output_neither_slows_the_daemon_nor_fills_the_disk(home: House) -> None:
    flood = home.job_of("flood", ["/bin/sh", "-c", "exec yes a line of output that never ends"])
    home.write(f"[retention]\noutput_limit_mb = 2\n{flood}")
    home.start()
    raw = home.state / "jobs" / "flood" / "1" / "run" / "output.log"
    home.until(lambda: raw.exists() and raw.stat().st_size > 200_000_000, 60, "200 MB of output")
    home.until(lambda: home.client.get("/v1/status")["jobs"][0]["pid"] is not None, 2, "an answer")
    assert home.ctl("stop", "flood", "--wait").returncode == 0
    used = sum(path.stat().st_blocks * 512 for path in raw.parent.rglob("*") if path.is_file())
    assert used < 60_000_000


def test_escape_sequences_and_broken_text_reach_no_terminal(home: House) -> None:
    code = (
        "import sys\n"
        "sys.stdout.buffer.write(b'\\x1b]0;owned\\x07\\x1b[31mred\\x1b[0m \\xff\\xfe \\x9b31m tail\\n')\n"
        "sys.stdout.buffer.flush()\n"
        "raise SystemExit('RuntimeError: \\x1b[2J\\x1b]52;c;AAAA\\x07 gone')\n"
    )
    home.write(home.job_of("one", [sys.executable, "-c", code]) + STOP_TRYING)
    home.start()
    home.phase("one", "failed")
    for words in (("logs", "one"), ("history",), ("status",), ("--json", "history"), ("show", "one-1")):
        done = home.ctl(*words)
        raw = [item for item in done.stdout if (ord(item) < 32 and item not in "\n\t") or 0x7F <= ord(item) < 0xA0]
        assert raw == [], (words, done.stdout)
    assert "tail" in home.ctl("logs", "one").stdout


@pytest.mark.parametrize("harm", ["scribbled", "cut"])
def test_a_recorder_that_is_destroyed_while_it_is_used_costs_no_daemon(home: House, harm: str) -> None:
    """A cut file ends its training by SIGBUS, which is a crash like any other; a scribbled one is only unreadable."""
    home.write(home.by_hand("one", "--steps", "300", stall="limit_s = 4"))
    home.start()
    home.step("one", 60)
    recorder = home.state / "jobs" / "one" / "1" / "run" / "recorder.bin"
    if harm == "cut":
        os.truncate(recorder, 100)
    else:
        with recorder.open("r+b") as file:
            file.write(os.urandom(100_000))
    job = home.phase("one", "finished", limit_s=60)
    assert home.steps_made("one")[-1] == 300
    assert job["attempt"] <= 2


def test_a_second_daemon_on_the_same_state_is_refused_with_the_pid_of_the_first(home: House) -> None:
    home.write(home.by_hand("one"))
    first = home.start()
    home.step("one", 3)
    status, printed = home.run_daemon(home.config)
    assert status == 69
    assert str(first.pid) in printed
    assert home.job("one")["phase"] == "running"


def test_a_second_daemon_on_the_same_database_is_refused_whatever_its_state_directory(home: House) -> None:
    home.write(home.by_hand("one"))
    home.start()
    home.step("one", 5)
    other = home.folder / "other.toml"
    (home.folder / "link").symlink_to(home.state)
    database = f"sqlite:///{home.folder / 'link' / 'supervisor.db'}"
    other.write_text(f'[supervisor]\nstate_dir = "{home.folder / "other"}"\ndatabase = "{database}"\n')
    status, printed = home.run_daemon(other)
    assert status == 69
    assert home.daemon is not None
    assert f"is written by another rocm-supervisord (pid {home.daemon.pid})" in printed
    assert "supervisor.database" in printed


@pytest.mark.parametrize(
    "make",
    [
        lambda state: state.write_text(""),
        lambda state: state.symlink_to(state.with_name("nowhere")),
        os.mkfifo,
        lambda state: state.symlink_to(state),
    ],
    ids=["a file", "a link to nothing", "a pipe", "a link to itself"],
)
def test_a_state_directory_that_is_none_is_refused_with_a_line(home: House, make: Callable[[Path], object]) -> None:
    home.write(home.by_hand("one"))
    make(home.state)
    status, printed = home.run_daemon(home.config)
    assert (status, len(printed.splitlines())) == (69, 1), printed
    assert "it is not a folder, set supervisor.state_dir to one" in printed


def test_garbage_on_the_socket_is_answered_or_dropped_and_nothing_else_happens(home: House) -> None:
    home.write(home.by_hand("one"))
    home.start()
    home.step("one", 3)
    held = []
    for content in (
        b"\x00\xff" * 5000,
        b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 200_000,
        b"POST /v1/jobs/one/stop HTTP/1.1\r\nHost: daemon\r\nContent-Length: 99999999999\r\n\r\n",
        b'POST /v1/jobs/one/start HTTP/1.1\r\nHost: daemon\r\nContent-Length: 9\r\n\r\n{"fresh":',
        b"",
    ):
        item = socket.socket(socket.AF_UNIX)
        item.settimeout(60)
        item.connect(str(home.state / "control.sock"))
        with contextlib.suppress(OSError):  # hanging up on it is an answer
            item.sendall(content)
        held.append(item)
    job = home.job("one")
    assert job["phase"] == "running"
    home.step("one", job["step"] + 10)
    for item in held:
        item.close()


@pytest.mark.parametrize("harm", ["empty", "truncated", "nans"])
def test_a_bad_newest_checkpoint_is_passed_over_for_the_one_before(home: House, harm: str) -> None:
    home.write(home.by_hand("one", "--wound", f"{harm}:60"))
    home.start()
    incident = home.resumed("one")
    assert (incident["rule"], incident["last_step"], incident["resumed_from"]["step"]) == ("crash", 59, 50)
    listed = json.loads(home.ctl("--json", "checkpoints", "one").stdout)["checkpoints"]
    bad = next(item for item in listed if item["path"].endswith("state-000060.safetensors"))
    assert bad["verdict"] == "rejected"
    assert bad["reason"]


def test_where_every_checkpoint_is_bad_the_job_is_given_up_and_says_why(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "all:60", table="checkpoints = { keep = false }"))
    home.start()
    job = home.phase("one", "failed")
    assert "none of the saved checkpoints is proven" in job["reason"]
    assert "state-000050.safetensors" in job["reason"]
    assert home.incident("one")["outcome"] == "gave_up"
    assert home.training_pids() == []


def test_where_every_file_is_destroyed_the_generations_are_left(home: House) -> None:
    # Over a second from the save at step 50 until they are destroyed: time enough to capture it, on a slow disk too.
    home.write(home.by_hand("one", "--wound", "all:74", "--every-s", "0.05"))
    home.start()
    incident = home.resumed("one")
    assert incident["resumed_from"]["step"] == 50
    assert Path(incident["resumed_from"]["source"]).name == "state-000050.safetensors"


def test_the_daemon_answers_signals_while_a_training_is_suspended(home: House) -> None:
    """SIGSTOP is the nearest thing to a process stuck in the kernel: SIGTERM does nothing, SIGKILL does."""
    home.write(home.by_hand("one", table="save_s = 0.5"))
    home.start()
    pid = home.step("one", 30)["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert home.stop() == 0
    assert home.training_pids() == []


def test_a_daemon_without_room_for_its_threads_says_so_in_a_line_and_leaves_it_to_systemd_to_try_again(
    home: House,
) -> None:
    home.write("")
    no_threads = f"import sys, threading; threading.stack_size({BEYOND_ALL_MEMORY})"
    code = f"{no_threads}; from supervisor.daemon.main import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "--config", str(home.config)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 69, done.stderr
    assert done.stderr.splitlines()[-1].startswith("rocm-supervisord: this machine lacks room for another thread; ")
    assert "Traceback" not in done.stderr
