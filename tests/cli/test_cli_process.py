"""The command as a process of its own: light, quiet in pipes, and clear about the other supervisorctl."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from view_by_hand import FakeView, serving

from supervisor.cli.unprinted import explaining_unprinted

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RUN = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from supervisor.cli.main import main; sys.argv[0] = "
HEAVY = (
    "rich",
    "msgspec",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "http.client",
    "asyncio",
    "supervisor.config",
    "supervisor.core.moments",
    "supervisor.core.readings",
)


@pytest.fixture
def view(tmp_path: Path) -> FakeView:
    return FakeView(folder=tmp_path)


@pytest.fixture
def path(view: FakeView) -> Iterator[Path]:
    with serving(view) as where:
        yield where


def environment(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8", **more}


def run(
    *words: str, program: str = "supervisorctl", code: str = "main()", **more: str
) -> subprocess.CompletedProcess[str]:
    whole = f"{RUN}{program!r}; {code}"
    return subprocess.run(
        [sys.executable, "-I", "-c", whole, *words],
        capture_output=True, text=True, timeout=120, env=environment(**more), check=False,
    )  # fmt: skip


ALONE = {"ROCM_SUPERVISOR_ALLOW_COLLISION": "1"}


def test_the_version_is_printed_by_a_command_and_by_the_option_that_every_tool_has() -> None:
    command, option = run("version", **ALONE), run("--version", **ALONE)
    assert (option.returncode, option.stdout) == (0, command.stdout)
    assert option.stdout.startswith("rocm-supervisor ")


def test_an_output_that_cannot_be_written_is_one_line_and_a_status() -> None:
    words = "the output could not be written: No space left on device"
    for given, expected in (
        ("version", f"error: {words}\n"),
        ("--help", f"error: {words}\n"),
        ("--json version", f'"message": "{words}"'),
    ):
        code = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); main()"
        done = run(*given.split(), code=code, **ALONE)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert expected in done.stderr


def test_an_error_of_what_a_command_does_with_files_is_not_taken_for_one_of_its_output() -> None:
    with pytest.raises(OSError, match="No space left"), explaining_unprinted([]), Path("/dev/full").open("wb") as full:
        full.write(b"x" * 100_000)


def test_status_imports_nothing_that_it_does_not_need(path: Path) -> None:
    code = "import atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
    done = run("--socket", str(path), "status", code=code, **ALONE)
    assert done.returncode == 0, done.stderr
    assert not set(done.stderr.split()) & set(HEAVY)


def test_the_overview_imports_no_command() -> None:
    code = "import atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
    done = run("--help", code=code, **ALONE)
    assert "supervisor.cli.doctor.command" not in done.stderr.split()
    assert "doctor" in done.stdout


def test_a_reader_that_goes_away_is_no_traceback(path: Path) -> None:
    line = f"{sys.executable} -I -c \"{RUN}'supervisorctl'; main()\" --socket {path} history | true"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=120, env=environment(**ALONE), check=False
    )
    assert "Traceback" not in done.stderr


def test_following_goes_on_until_it_is_interrupted(path: Path, view: FakeView) -> None:
    file = view.folder / "output.txt"
    file.write_text("one\n")
    code = f"{RUN}'supervisorctl'; main()"
    # A suite that runs in the background has SIGINT ignored, and its children would inherit that.
    python = ["env", "--default-signal=INT", sys.executable, "-u", "-I", "-c", code]
    following = subprocess.Popen(
        [*python, "--socket", str(path), "logs", "-f", "yolo"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**ALONE),
    )  # fmt: skip
    try:
        assert following.stdout is not None
        assert following.stdout.readline() == "one\n"
        with file.open("a") as stream:
            stream.write("two\n")
        assert following.stdout.readline() == "two\n"
        following.send_signal(signal.SIGINT)
        _, errors = following.communicate(timeout=120)
        assert "Traceback" not in errors
    finally:
        following.kill()
        following.wait()


class TestCollision:
    """Beside the Supervisor project's distribution, as `pip install supervisor` leaves it."""

    @pytest.fixture
    def beside(self, tmp_path: Path) -> str:
        (tmp_path / "site-packages/supervisor-4.3.0.dist-info").mkdir(parents=True)
        return f"sys.path.append({str(tmp_path / 'site-packages')!r}); main()"

    def test_the_shared_name_refuses_and_says_what_to_do(self, path: Path, beside: str) -> None:
        done = run("--socket", str(path), "status", code=beside)
        assert (done.returncode, done.stdout) == (2, "")
        assert "supervisord.org" in done.stderr
        assert len(done.stderr.splitlines()) == 1

    def test_the_own_name_warns_and_works(self, path: Path, beside: str) -> None:
        done = run("--socket", str(path), "version", program="rocm-supervisorctl", code=beside)
        assert (done.returncode, done.stdout) == (0, "rocm-supervisor 0.1.0\n")
        assert "supervisord.org" in done.stderr

    def test_who_wants_both_is_left_alone(self, path: Path, beside: str) -> None:
        done = run("--socket", str(path), "version", code=beside, **ALONE)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_who_may_not_connect_is_shown_which_group_to_join(path: Path) -> None:
    path.parent.chmod(0o755)
    loaded = "import grp, os, supervisor.cli.status"  # what nobody could not read afterwards
    code = f"{loaded}; os.setgroups([]); os.setgid(65534); os.setuid(65534); main()"
    done = run("--socket", str(path), "status", code=code, **ALONE)
    assert done.returncode == 5
    assert "permission denied" in done.stderr
    assert "join the group: sudo usermod -aG root" in done.stderr
    history = run("--socket", str(path), "history", code=code.replace("status", "history"), **ALONE)
    assert (history.returncode, "join the group" in history.stderr) == (5, True)
