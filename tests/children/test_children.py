"""Children begin, end and are reported while a file system hangs under files of the daemon, and take nothing of it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from supervisor import programs
from supervisor.children.child import Child
from supervisor.children.keeper import Keeper
from supervisor.children.posix_spawn import Program
from supervisor.children.running_limit import RunningLimit
from supervisor.children.start import PIPE, STDOUT, start
from tests.rigs.hanging_fs import HangingFs

ROOT = Path(__file__).resolve().parents[2]
SHORT_S = 1.0
LONG_S = 60.0
TRUE = "/bin/true"


@pytest.fixture(scope="module")
def keeper() -> Keeper:
    return Keeper()


def child_of(*argv: str, cwd: str | None = None) -> Child:
    return Child(Program(path=argv[0], argv=argv, env=dict(os.environ), cwd=cwd, new_session=True))


def null_files() -> list[int]:
    """Return the null device, open three times; the process ends soon after."""
    return [os.open(os.devnull, os.O_RDWR) for _ in range(3)]


# --- what a child gets, and what is known of it -----------------------------------------------------------------------


def test_a_child_has_the_files_that_it_is_given_and_no_other(tmp_path: Path, keeper: Keeper) -> None:
    with (tmp_path / "kept").open("w") as ours, (tmp_path / "printed").open("w") as printed:
        os.set_inheritable(ours.fileno(), True)
        child = child_of("/bin/sh", "-c", "ls /proc/self/fd; echo $PWD; exit 3", cwd="/usr")
        assert keeper.start(child, [printed.fileno()] * 3, LONG_S)
        assert child.wait(LONG_S) == 3
    # 3 is the folder that `ls` reads.
    assert (tmp_path / "printed").read_text().split() == ["0", "1", "2", "3", "/usr"]


def test_pipes_lead_to_the_child_and_back() -> None:
    child = start(("/bin/sh", "-c", "read word; echo $word; echo $word >&2"), stdin=PIPE, stdout=PIPE, stderr=STDOUT)
    assert child.stdin is not None
    child.stdin.write(b"word\n")
    assert programs.read_output(child, RunningLimit(LONG_S), 100).stdout == b"word\nword\n"
    assert child.returncode == 0
    child.close_pipes()


@pytest.mark.parametrize(
    ("command", "cwd", "missing"),
    [
        (("no-such-program",), None, "no-such-program"),
        (("/nowhere/program",), None, "/nowhere/program"),
        ((TRUE,), "/nowhere", "/nowhere"),
    ],
)
def test_what_is_missing_is_named(command: tuple[str, ...], cwd: str | None, missing: str) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        start(command, cwd=cwd)
    assert raised.value.filename == missing


def test_a_child_is_killed_with_its_group_and_reports_the_signal() -> None:
    child = start(("/bin/sh", "-c", "sleep 1000 & echo $!; wait"), stdout=PIPE, new_session=True)
    assert child.poll() is None
    assert child.stdout is not None
    below = int(child.stdout.readline())
    child.kill_group()
    assert child.wait(LONG_S) == -9
    assert child.stdout.read() == b"", "its own child has ended, too"
    child.close_pipes()
    child.kill()  # does nothing: the id may be another's by now
    assert not Path(f"/proc/{child.pid}").exists()
    assert below > 0


def test_a_child_that_asks_for_it_outlives_its_start_and_ends_with_the_daemon() -> None:
    """PR_SET_PDEATHSIG comes when the thread ends that the kernel takes for the parent; the prover asks for it."""
    program = """
import sys, time
from supervisor.children.start import PIPE, keep_apart, start
keep_apart()
asks = "import ctypes, time; ctypes.CDLL(None).prctl(1, 9); print('asked', flush=True); time.sleep(1000)"
child = start((sys.executable, "-c", asks), stdout=PIPE)
child.stdout.readline()
for _ in range(20):
    assert start(("/bin/true",)).wait() == 0
assert child.poll() is None
print(child.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        (sys.executable, "-c", program), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdout is not None
        pid = int(daemon.stdout.readline())
        daemon.kill()
    end = time.perf_counter() + LONG_S
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text():
        assert time.perf_counter() < end, "it outlived the daemon"


def test_hundreds_of_children_leave_no_descriptor_no_thread_and_no_zombie(keeper: Keeper) -> None:
    files = null_files()

    def run_children(number: int) -> None:
        for _ in range(number):
            child = child_of(TRUE)
            assert keeper.start(child, files, LONG_S)
            assert child.wait(LONG_S) == 0

    run_children(10)
    before = len(list(Path("/proc/self/fd").iterdir()))
    threads = threading.active_count()
    run_children(200)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert threading.active_count() <= threads + 1, "the thread of the last may just be ending"
    zombies = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in zombies if "(true)" in Path(f"/proc/{pid}/stat").read_text()]


class Garbage:
    """An open file that only the garbage collector finds."""

    def __init__(self) -> None:
        self.file = open(os.devnull)  # noqa: PTH123, SIM115 - the collector closes it
        self.itself = self


def test_no_file_is_lost_to_a_collector_that_runs_while_a_child_is_started() -> None:
    program = """
import gc, os, sys
from supervisor.children.keeper import Keeper
sys.path.insert(0, "tests/children")
from test_children import Garbage, child_of, null_files
keeper, files = Keeper(), null_files()
before = len(os.listdir("/proc/self/fd"))
for number in range(120):
    gc.disable()
    Garbage()
    gc.set_threshold(gc.get_count()[0] + number % 60)  # whichever thread makes that many containers more
    gc.enable()
    child = child_of("/bin/true")
    keeper.start(child, files, 60.0)
    child.wait(60.0)
gc.collect()
print(len(os.listdir("/proc/self/fd")) - before)
"""
    done = subprocess.run(
        (sys.executable, "-W", "ignore", "-c", program), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"


# --- a file system that hangs -------------------------------------------------------------------------------------

STARTER = """
import sys, time
from supervisor.children.child import Child
from supervisor.children.running_limit import RunningLimit
from supervisor.children.posix_spawn import Program
from supervisor.children.keeper import Keeper
keeper = Keeper() if sys.argv[1] == "apart" else None
record = open(sys.argv[2], "w")
devices = [open("/dev/null", "r+") for _ in range(3)]
print("open", flush=True)
sys.stdin.readline()
child = Child(Program(path="/bin/true", argv=["true"], env={}, cwd=None, new_session=False))
files = [device.fileno() for device in devices]
if keeper is not None:
    begun = keeper.start(child, files, 60.0)
else:
    import threading
    threading.Thread(target=child.begin, args=(files,), daemon=True).start()
    begun = child.wait_until_begun(1.0)
print("begun" if begun else "not begun", child.wait(60.0) if begun else None, flush=True)
sys.stdin.readline()
"""


within_seconds = pytest.mark.calm(reason="limits of seconds beside a disk that hangs")


@pytest.mark.mounts
@within_seconds
@pytest.mark.parametrize(
    ("how", "result"),
    [
        pytest.param("apart", "begun 0", id="apart from the files"),
        pytest.param("with them", "not begun None", id="with a copy of each: no lock is held meanwhile"),
    ],
)
def test_a_child_begins_while_a_file_of_the_daemon_cannot_be_closed(far: HangingFs, how: str, result: str) -> None:
    with subprocess.Popen(
        (sys.executable, "-c", STARTER, how, str(far.at / "record")),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        far.hang()
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{result}\n"
        far.go_on()
        process.stdin.close()


@pytest.mark.mounts
@within_seconds
def test_a_program_that_cannot_begin_holds_up_no_other_and_never_runs(
    far: HangingFs, tmp_path: Path, keeper: Keeper
) -> None:
    ran = tmp_path / "ran"
    program = far.real / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    files = null_files()
    far.hang()
    stuck = [child_of(str(far.at / "program")), child_of(TRUE, cwd=str(far.at))]
    for child in stuck:
        assert not keeper.start(child, files, SHORT_S)
    other = child_of(TRUE)
    assert keeper.start(other, files, LONG_S)
    assert other.wait(LONG_S) == 0
    far.go_on()
    again = child_of(TRUE, cwd=str(far.at))
    assert keeper.start(again, files, LONG_S)
    assert again.wait(LONG_S) == 0
    for child in stuck:
        assert child.pid == 0 or child.wait(LONG_S) == -9
    assert not ran.exists()


@pytest.mark.mounts
@within_seconds
def test_a_program_whose_start_is_stuck_is_not_started_again_until_that_has_ended(far: HangingFs) -> None:
    """Each would keep a thread, and a process that no signal ends."""
    (far.real / "program").write_text("#!/bin/sh\n")
    (far.real / "program").chmod(0o755)
    far.hang(beyond_sigkill=True)
    with pytest.raises(TimeoutError, match="did not begin within"):
        start((str(far.at / "program"),))
    threads = threading.active_count()
    with pytest.raises(TimeoutError, match="an earlier start of it"):
        start((str(far.at / "program"),))
    assert threading.active_count() == threads
    far.go_on()
    end = time.perf_counter() + LONG_S
    while time.perf_counter() < end:
        try:
            child = start((str(far.at / "program"),))
        except TimeoutError:
            continue
        assert child.wait(LONG_S) == 0
        return
    pytest.fail("it was never started again")


# --- the one place ------------------------------------------------------------------------------------------------

NOT_THE_DAEMON = ("agent", "children", "cli", "demo", "web")
STARTS = {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"}
STARTS_OF_OS = {"fork", "forkpty", "popen", "system", "posix_spawn", "posix_spawnp", "spawnv", "spawnve", "spawnlp"}
OTHER_PROCESSES = ("runner/shim.py", "runner/priority.py", "runner/standby_shim.py")
"""They run in the shim, which has no file of the record."""


def starts_in(path: Path) -> list[str]:
    """Return the calls in a file that start a process."""
    called = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    attributes = [func for func in called if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name)]
    return [
        f"{path.name}:{func.lineno}"
        for func in attributes
        if isinstance(func.value, ast.Name)
        and func.attr in {"subprocess": STARTS, "os": STARTS_OF_OS}.get(func.value.id, set())
    ]


def test_the_daemon_starts_children_in_one_place_only() -> None:
    package = ROOT / "supervisor"
    paths = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in NOT_THE_DAEMON]
    assert len(paths) > 200
    found = {str(path.relative_to(package)): starts_in(path) for path in paths}
    others = {name: calls for name, calls in found.items() if calls and name not in OTHER_PROCESSES}
    assert others == {}, "use supervisor.children.start or supervisor.programs.run"
    assert starts_in(package / "cli/demo.py"), "the test finds those that there are"
