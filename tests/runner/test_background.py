"""A command that leaves its training in the background and ends, as `nohup python train.py &` in a script does."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts_by_hand import Attempts, gone, pids_in, until

from supervisor.core import attempt_files as names
from supervisor.runner import shim

CLAIMING = """
import os, struct
file = os.open('run/recorder.bin', os.O_RDWR)
os.pwrite(file, struct.pack('<Iiq', os.getpid(), 0, 0), 24)
"""
NOTING = "import os, sys, time; open('pids', 'a').write(f'{os.getpid()}\\n'); open('ready', 'w')\n"
WAITING = NOTING + "while not os.path.exists('go'): time.sleep(0.005)\n"
HELPING = NOTING + "time.sleep(60)\n"


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Attempts]:
    with Attempts(tmp_path / "state") as made:
        yield made


def launch(runs: Attempts, script: str) -> Path:
    """Start a shell's script in the attempt's folder."""
    folder = runs.prepare(["sh", "-c", script], save_s=60)
    task = json.loads((folder / names.LAUNCH).read_text())
    task["cwd"] = str(folder)
    (folder / names.LAUNCH).write_text(json.dumps(task))
    runs.launcher.launch("job", folder)
    return folder


def behind(code: str, wrapper: str = "nohup setsid") -> str:
    """Words of a shell that start Python in the background."""
    return f"{wrapper} {sys.executable} -c {shlex.quote(code)} &"


def command_is_over(runs: Attempts, folder: Path) -> bool:
    command = runs.note(folder).training_pid
    return command is not None and gone(command)


@pytest.mark.parametrize("code", [CLAIMING + WAITING + "sys.exit(7)", WAITING + "sys.exit(7)"])
@pytest.mark.parametrize("wrapper", ["", "nohup setsid"])
def test_a_training_in_the_background_is_the_attempt_until_it_ends(runs: Attempts, code: str, wrapper: str) -> None:
    """Whether or not it has come to its first step when the command ends, its status is the attempt's."""
    folder = launch(runs, behind(code, wrapper))
    until((folder / "ready").exists, "the training has set up")
    until(lambda: command_is_over(runs, folder), "the command has ended")
    assert not (folder / names.EXIT).exists()
    assert not any(gone(pid) for pid in pids_in(folder / "pids"))
    (folder / "go").touch()
    assert runs.exit(folder).code == 7


def test_one_that_has_ended_before_the_end_of_its_command_is_seen_gives_the_attempt_its_status(runs: Attempts) -> None:
    """As on a busy machine, where the shim runs again when both are over."""
    other = "import os, time\nwhile not os.path.exists('over'): time.sleep(0.005)"
    becoming = f" exec {sys.executable} -c {shlex.quote(other)}"
    folder = launch(runs, behind(CLAIMING + WAITING + "sys.exit(7)", "") + becoming)
    until((folder / "ready").exists, "the training has set up")
    os.kill(runs.note(folder).pid, signal.SIGSTOP)
    (folder / "go").touch()
    until(lambda: all(gone(pid) for pid in pids_in(folder / "pids")), "the training has ended")
    (folder / "over").touch()
    until(lambda: command_is_over(runs, folder), "the command has ended")
    os.kill(runs.note(folder).pid, signal.SIGCONT)
    assert runs.exit(folder).code == 7


def test_the_recorder_says_which_is_the_training_and_which_a_helper(runs: Attempts) -> None:
    """The helper, which began last, ends with the training, and its end is not the training's."""
    training = CLAIMING + WAITING + "sys.exit(7)"
    helper = "import os, time\nwhile not os.path.exists('ready'): time.sleep(0.005)\n" + HELPING
    folder = launch(runs, behind(training) + " " + behind(helper))
    until(lambda: (folder / "pids").exists() and len(pids_in(folder / "pids")) == 2, "both run")
    (folder / "go").touch()
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["leftovers"]) == (7, 1)
    assert all(gone(pid) for pid in pids_in(folder / "pids"))


REPORTING = """
import json, os
with open('run/agent.jsonl', 'a') as file:
    file.write(json.dumps({'event': 'trains', 'pid': os.getpid()}) + '\\n')
"""
WAITING_LONGER = NOTING + "while not os.path.exists('end'): time.sleep(0.005)\n"


@pytest.mark.parametrize("last", ["&", ""])
def test_a_further_training_is_the_attempt_after_the_one_that_was_followed(runs: Attempts, last: str) -> None:
    """Each began with `&`, or the one that is followed is waited for by the shell alone; a helper is ended at last."""
    first = behind(CLAIMING + WAITING + "sys.exit(0)", "").removesuffix("&") + last
    script = f"{behind(REPORTING + WAITING_LONGER + 'sys.exit(7)', '')} {behind(HELPING, '')} {first}"
    folder = launch(runs, script)
    until(lambda: (folder / "pids").exists() and len(pids_in(folder / "pids")) == 3, "all run")
    (folder / "go").touch()
    until(lambda: sum(map(gone, pids_in(folder / "pids"))) == 1, "the one that was followed has ended")
    until(lambda: command_is_over(runs, folder), "the command has ended")
    (folder / "end").touch()
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["leftovers"]) == (7, 1)
    assert all(gone(pid) for pid in pids_in(folder / "pids"))


def test_a_further_training_that_has_ended_before_that_is_seen_gives_the_attempt_its_status(runs: Attempts) -> None:
    """As on a busy machine, where the shim runs again when both are over; the kernel gives it the older one first."""
    first = behind(CLAIMING + WAITING + "sys.exit(0)", "")
    folder = launch(runs, f"{behind(REPORTING + WAITING_LONGER + 'sys.exit(7)', '')} {behind(HELPING, '')} {first}")
    until(lambda: (folder / "pids").exists() and len(pids_in(folder / "pids")) == 3, "all run")
    until(lambda: command_is_over(runs, folder), "the command has ended")
    os.kill(runs.note(folder).pid, signal.SIGSTOP)
    for ended, file in enumerate(("go", "end"), 1):
        (folder / file).touch()
        until(lambda ended=ended: sum(map(gone, pids_in(folder / "pids"))) == ended, "a training has ended")  # type: ignore[misc]
    os.kill(runs.note(folder).pid, signal.SIGCONT)
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["leftovers"]) == (7, 1)


def test_a_further_training_is_not_gone_on_with_after_a_stop(runs: Attempts) -> None:
    """The first ends well because it was asked to; the second, which passes over one order, gets another."""
    first = "import signal, sys; signal.signal(15, lambda *_: sys.exit(0))\n" + CLAIMING + HELPING
    second = "import signal; signal.signal(15, lambda *_: signal.signal(15, signal.SIG_DFL))\n" + REPORTING
    folder = launch(runs, f"{behind(second + WAITING_LONGER, '')} {behind(first, '')}")
    until(lambda: (folder / "pids").exists() and len(pids_in(folder / "pids")) == 2, "both run")
    until(lambda: command_is_over(runs, folder), "the command has ended")
    runs.signal(folder, names.SHIM_END)
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["leftovers"]) == (0, 1)
    assert all(gone(pid) for pid in pids_in(folder / "pids"))


def test_a_training_that_its_command_leaves_after_a_stop_is_ended_and_gives_the_status(runs: Attempts) -> None:
    """A shell that traps the order; its training, which passes over one, gets another."""
    training = "import signal; signal.signal(15, lambda *_: signal.signal(15, signal.SIG_DFL))\n" + CLAIMING
    waits = "while [ ! -e end ]; do sleep 0.01; done"
    folder = launch(runs, f"trap 'exit 0' TERM; {behind(training + WAITING_LONGER, '')} {waits}")
    until((folder / "ready").exists, "the training has set up")
    runs.signal(folder, names.SHIM_END)
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["signal"], facts["leftovers"]) == (None, signal.SIGTERM, 1)


def test_a_further_training_ends_with_one_that_failed(runs: Attempts) -> None:
    """The next attempt starts both."""
    first, second = CLAIMING + WAITING + "sys.exit(3)", REPORTING + WAITING_LONGER
    folder = launch(runs, f"{behind(second, '')} {behind(first, '')}")
    until(lambda: (folder / "pids").exists() and len(pids_in(folder / "pids")) == 2, "both run")
    (folder / "go").touch()
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["leftovers"]) == (3, 1)


@pytest.mark.parametrize("report", ["", "{", '{"event": "trains"}', '{"event": "trains", "of": PID, "ended": true}'])
def test_what_has_not_reported_that_it_trains_is_no_further_training(runs: Attempts, report: str) -> None:
    other = REPORTING if report.endswith("true}") else "import os\n"
    other += f"open('run/agent.jsonl', 'a').write({report!r}.replace('PID', str(os.getpid())) + '\\n')\n" + HELPING
    folder = launch(runs, f"{behind(other, '')} {behind(CLAIMING + WAITING + 'sys.exit(0)', '')}")
    until(lambda: (folder / "pids").exists() and len(pids_in(folder / "pids")) == 2, "both run")
    (folder / "go").touch()
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["leftovers"]) == (0, 1)


def test_a_further_training_that_makes_no_step_is_ended_after_its_time(runs: Attempts) -> None:
    first, second = CLAIMING + WAITING + "sys.exit(0)", REPORTING + HELPING
    folder = runs.prepare(["sh", "-c", f"cd {runs.state / 'jobs' / 'job' / '1'}; {behind(second)} {behind(first)}"])
    with subprocess.Popen([*impatient(folder), "3"]):
        until(lambda: (folder / "pids").exists() and len(pids_in(folder / "pids")) == 2, "both run")
        (folder / "go").touch()
        facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["leftovers"]) == (0, 1)


def test_a_helper_that_fails_does_not_end_the_training_in_the_background(runs: Attempts) -> None:
    """Neither has claimed the recorder yet when the helper, which began last, has failed."""
    helper = "import os, sys, time\nwhile not os.path.exists('ready'): time.sleep(0.005)\nsys.exit(1)"
    folder = launch(runs, behind(WAITING + CLAIMING + "sys.exit(0)") + f" {behind(helper)} echo $! > helper")
    until((folder / "ready").exists, "the training has set up")
    until(lambda: (folder / "helper").exists() and gone(pids_in(folder / "helper")[0]), "the helper has failed")
    (folder / "go").touch()
    assert runs.exit(folder).code == 0


def test_what_a_training_that_is_over_leaves_is_ended(runs: Attempts) -> None:
    train = f"{sys.executable} -c {shlex.quote(CLAIMING)};"
    folder = launch(runs, f"{behind(HELPING)} while [ ! -e ready ]; do sleep 0.01; done; {train}")
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["leftovers"]) == (0, 1)
    assert all(gone(pid) for pid in pids_in(folder / "pids"))


def test_a_program_without_an_agent_is_ended_with_the_command(runs: Attempts) -> None:
    folder = launch(runs, "sleep 60 & sleep 60 & exit 0")
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["leftovers"]) == (0, 2)


def test_a_program_that_puts_itself_in_the_background_is_ended_and_counted(runs: Attempts) -> None:
    """As python-daemon does; a child that stays in the session is a helper of its program, and none of these."""
    helper = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {HELPING!r}])\n"
    daemonize = "import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
    waits = "import os, time\nwhile not os.path.exists('pids'): time.sleep(0.005)\n"
    folder = runs.prepare([sys.executable, "-c", helper + waits + CLAIMING + daemonize + HELPING])
    task = json.loads((folder / names.LAUNCH).read_text())
    (folder / names.LAUNCH).write_text(json.dumps({**task, "cwd": str(folder)}))
    runs.launcher.launch("job", folder)
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["leftovers"], facts["in_background"]) == (0, 2, 1)
    assert all(gone(pid) for pid in pids_in(folder / "pids"))


def test_a_program_of_another_language_that_puts_itself_in_the_background_is_counted_too(runs: Attempts) -> None:
    apart = "setsid sh -c 'touch apart; exec sleep 60' & while [ ! -e apart ]; do sleep 0.01; done;"
    folder = launch(runs, f"{apart} sleep 60 & exit 0")
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["in_background"]) == (0, 1)


def test_the_keeper_of_torch_s_shared_memory_is_no_program_in_the_background(runs: Attempts) -> None:
    """As with `set_sharing_strategy("file_system")`, which NequIP asks for: it outlives the loader's workers."""
    keeper = f"cp {shutil.which('sleep')} torch_shm_manager; setsid sh -c 'touch apart; exec ./torch_shm_manager 60' &"
    folder = launch(runs, f"{keeper} while [ ! -e apart ]; do sleep 0.01; done; sleep 0.2; exit 0")
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["leftovers"], facts["in_background"]) == (0, 1, 0)


def test_a_command_that_failed_takes_what_it_has_left_with_it(runs: Attempts) -> None:
    folder = launch(runs, behind(CLAIMING + HELPING) + " while [ ! -e ready ]; do sleep 0.01; done; exit 3")
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["leftovers"]) == (3, 1)


def test_a_training_in_the_background_can_be_stopped(runs: Attempts) -> None:
    folder = launch(runs, behind(HELPING))
    until((folder / "ready").exists, "the training has set up")
    until(lambda: command_is_over(runs, folder), "the command has ended")
    runs.signal(folder, names.SHIM_END)
    assert runs.exit(folder).signal == signal.SIGTERM


IMPATIENT = """
import signal, sys
sys.path.append(sys.argv[1])
import background, shim
background.EXEC_TRIES, shim.CLAIM_S = 1, float(sys.argv[3])
look = background.find_training
def look_and_note(*what):
    found = look(*what)
    open(sys.argv[2] + '/looked', 'w').close()
    return found
background.find_training = look_and_note
signal.pthread_sigmask(signal.SIG_BLOCK, shim.WATCHED)
shim._set_process(shim.PR_SET_CHILD_SUBREAPER, 1)
sys.exit(shim.attempt(sys.argv[2]))
"""


def impatient(folder: Path) -> list[str]:
    """Return the command of a shim that looks once what a shell becomes; the seconds until a claim follow.

    It notes that in a file: on a busy machine it may look long after its command has ended.
    """
    return [sys.executable, "-c", IMPATIENT, str(Path(shim.__file__).parent), str(folder)]


def test_a_script_in_the_background_that_has_not_come_to_its_training_is_waited_for(runs: Attempts) -> None:
    """As one that copies its data first."""
    prepare = "touch ready; while [ ! -e go ]; do sleep 0.01; done"
    script = f"{prepare}; {sys.executable} -c {shlex.quote(CLAIMING + 'import sys; sys.exit(7)')}; exit $?"
    folder = runs.prepare(["sh", "-c", f"nohup sh -c {shlex.quote(script)} &"])
    task = json.loads((folder / names.LAUNCH).read_text())
    task["cwd"] = str(folder)
    (folder / names.LAUNCH).write_text(json.dumps(task))
    with subprocess.Popen([*impatient(folder), "60"]):
        until((folder / "ready").exists, "the script runs")
        until((folder / "looked").exists, "the shim has looked behind its command")
        (folder / "go").touch()
        assert runs.exit(folder).code == 7


@pytest.mark.parametrize("launcher", ["tmux", "screen", "prted"])
def test_a_terminals_server_that_has_not_started_the_training_yet_is_waited_for(runs: Attempts, launcher: str) -> None:
    """`tmux new-session -d` ends at once, and on a busy machine its server has not come to the program then."""
    prepare = "touch ready; while [ ! -e go ]; do sleep 0.01; done"
    script = f"{prepare}; {sys.executable} -c {shlex.quote(CLAIMING + 'import sys; sys.exit(7)')}; exit $?"
    begin = f"cp $(readlink -f /bin/sh) {launcher}; setsid ./{launcher} -c {shlex.quote(script)} &"
    folder = runs.prepare(["sh", "-c", begin + " while [ ! -e ready ]; do sleep 0.01; done"])
    task = json.loads((folder / names.LAUNCH).read_text())
    task["cwd"] = str(folder)
    (folder / names.LAUNCH).write_text(json.dumps(task))
    with subprocess.Popen([*impatient(folder), "60"]):
        until((folder / "ready").exists, "the server runs")
        until((folder / "looked").exists, "the shim has looked behind its command")
        (folder / "go").touch()
        assert runs.exit(folder).code == 7


@pytest.mark.parametrize(("code", "status"), [(HELPING, 0), (NOTING + CLAIMING + "time.sleep(2); sys.exit(7)", 7)])
def test_what_has_not_begun_to_train_in_its_time_is_ended(runs: Attempts, code: str, status: int) -> None:
    """Then the status is the command's, which is over for long; a training that has begun goes on."""
    folder = runs.prepare(["sh", "-c", f"cd {os.fspath(runs.state / 'jobs' / 'job' / '1')}; {behind(code)}"])
    subprocess.run([*impatient(folder), "0.5"], check=True, timeout=60)
    facts = runs.exit_facts(folder)
    assert (facts["exit_code"], facts["leftovers"]) == (status, 1 - bool(status))
