"""`supervisorctl top`: what keys do, what a frame shows at any size, and a real terminal over the daemon's restart."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from view_by_hand import FREEZE, YOLO, FakeView, serving

from supervisor.cli.app import App
from supervisor.cli.main import cli
from supervisor.cli.table import cells
from supervisor.cli.top.braille import curve
from supervisor.cli.top.frame import Line, compose
from supervisor.cli.top.state import DETAILS, HELP, Answer, TopState, press, read_keys, take
from supervisor.control.listen import bind
from supervisor.control.server import ControlServer

NOW = 1_763_164_920.0
GPU: dict[str, Any] = {
    "gpu": "0000:0a:00.0", "gpu_busy_percent": 97.0, "edge_c": 60.0, "junction_c": 83.0, "memory_c": None,
    "runtime_status": "active", "vram_used_bytes": 4_300_000_000, "vram_total_bytes": 6_000_000_000,
    "power_w": 150.0, "name": "Radeon RX 5600 XT",
}  # fmt: skip


def job(name: str, **changes: object) -> dict[str, Any]:
    built = msgspec.to_builtins(msgspec.structs.replace(YOLO, name=name, **changes))
    assert isinstance(built, dict)
    return built


def answer(*jobs: dict[str, Any], gpus: tuple[dict[str, Any], ...] = (GPU,), **changes: Any) -> Answer:
    daemon = {"version": "0.1.0", "uptime_s": 93_784.0, "problem": None}
    incident = msgspec.to_builtins(FREEZE)
    given_ = Answer(
        status={"daemon": daemon, "jobs": list(jobs), "gpus": list(gpus)},
        incidents=(incident,),
        output=("epoch 3", "7/50 loss 2.31"),
        output_of=jobs[0]["name"] if jobs else None,
        answered_unix_s=NOW,
    )
    return replace(given_, **changes)


def text_of(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def typed(state: TopState, *keys: str) -> TopState:
    for key in keys:
        after = press(state, key)
        assert after is not None
        state = after
    return state


YOLO_JOB = job("yolo", epoch=2, epochs=50, loss=2.31, steps_per_s=18.2, step=80_000, eta=NOW + 7_200)
TWO = take(TopState(), answer(YOLO_JOB, job("resnet", phase="backoff", reason="stall")))


def test_the_overview_has_trainings_gpu_incident_loss_and_output() -> None:
    lines = text_of(compose(TWO, NOW, 110, 20))
    assert len(lines) == 20
    screen = "\n".join(lines)
    for part in ("> yolo ", "resnet", "3/50", "18.2", "in 2 h", "97 %", "83 C", "4.3 GB of 6.0 GB",
                 "yolo-2, 2 min ago: resumed, 2321 steps to redo", "loss yolo", "7/50 loss", "q quit"):  # fmt: skip
        assert part in screen, part


def test_forty_columns_and_twelve_rows_still_say_what_counts() -> None:
    lines = text_of(compose(TWO, NOW, 40, 12))
    assert (len(lines), max(map(cells, lines)) <= 40) == (12, True)
    screen = "\n".join(lines)
    for part in ("yolo", "running", "18.2", "resnet", "backoff", "97 %", "yolo-2", "loss yolo", "7/50 loss", "q quit"):
        assert part in screen, part
    help_text = text_of(compose(typed(TWO, "?"), NOW, 40, 12))[1:]
    assert [line for line in help_text if line.endswith("…")] == []


@given(
    st.integers(1, 200),
    st.integers(1, 60),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from(["overview", DETAILS, HELP]),
)
def test_a_frame_has_the_rows_and_cells_of_its_screen_and_shows_the_selection(
    columns: int, rows: int, jobs: int, gpus: int, page: str
) -> None:
    names = [f"job-{number}" for number in range(jobs)]
    filled = take(TopState(page=page), answer(*(job(name) for name in names), gpus=(GPU,) * gpus))
    state = replace(filled, selected=names[-1] if names else None)
    lines = text_of(compose(state, NOW, columns, rows))
    assert len(lines) == rows
    assert all(cells(line) <= columns for line in lines)
    if names and page == "overview" and rows >= 12 and columns >= 40:
        assert any(line.startswith(f"> {names[-1]}") for line in lines)


def test_text_of_a_training_cannot_write_to_the_terminal() -> None:
    hostile = "\x1b]0;title\x07\x1b[2Jx\x9b31m"
    state = take(TopState(), answer(job(f"yolo{hostile}", reason=hostile, flags=[hostile]), output=(hostile,)))
    for page in ("overview", DETAILS):
        screen = "".join(text_of(compose(replace(state, page=page), NOW, 120, 30)))
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", screen)


def test_keys_of_nvitop_and_htop() -> None:
    assert typed(TWO, "down").selected == typed(TWO, "j").selected == typed(TWO, "end").selected == "resnet"
    assert typed(TWO, "j", "j", "up").selected == typed(TWO, "j", "g").selected == "yolo"
    assert typed(TWO, "j", "enter").page == DETAILS
    assert typed(TWO, "enter", "escape").page == "overview"
    assert typed(TWO, "?").page == HELP
    assert press(TWO, "q") is None
    assert press(typed(TWO, "enter"), "q") is None


def test_the_filter_is_typed_kept_and_dropped() -> None:
    filtered = typed(TWO, "/", "R", "e", "q", "x", "backspace", "backspace", "s", "enter")
    assert (filtered.filter, [item["name"] for item in filtered.jobs]) == ("Res", ["resnet"])
    assert filtered.job is not None
    assert typed(filtered, "escape").filter == ""
    nothing = typed(TWO, "/", "z")
    assert any("no training has this name" in line for line in text_of(compose(nothing, NOW, 80, 20)))
    assert typed(nothing, "enter", "enter", "j").page == "overview"


def test_bytes_of_a_terminal_are_keys() -> None:
    assert read_keys(b"\x1b[A\x1bOBjq") == ["up", "down", "j", "q"]
    assert read_keys(b"\x1b") == ["escape"]
    assert read_keys("/ä\r".encode()) == ["/", "ä", "enter"]
    assert read_keys(b"\x1b[1;5Cx\x7f") == ["x", "backspace"]


@given(st.binary(max_size=60))
def test_no_bytes_end_the_view_by_accident(typed_bytes: bytes) -> None:
    state: TopState | None = TWO
    for key in read_keys(typed_bytes):
        if state is not None:
            state = press(state, key)
    assert state is not None or b"q" in typed_bytes or b"\x03" in typed_bytes


def test_while_the_daemon_is_away_the_last_answer_stays_with_its_age() -> None:
    away = take(TWO, Answer(problem="connection refused"))
    lines = text_of(compose(away, NOW + 12, 100, 20))
    assert "no answer from the daemon, last answer 12 s ago: connection refused" in lines[0]
    assert any("yolo" in line for line in lines[1:])
    assert away.losses["yolo"] == (2.31, None)
    back = take(away, answer(YOLO_JOB))
    assert back.answer.problem is None
    assert back.losses == {"yolo": (2.31, None, 2.31)}


def test_the_curve_has_two_values_a_character_and_gaps_where_nothing_is_known() -> None:
    assert curve([0, 1, 2, 3], 10) == "⡠⠊"
    assert curve([1.0, None, float("nan"), 1.0], 10) == "⠄⠠"
    assert curve([None, None], 10) == curve([], 10) == ""
    assert len(curve(list(range(500)), 30)) == 30


class Terminal:
    """A pseudo-terminal with the command in it."""

    def __init__(self, *words: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", PYTHONPATH=str(Path(__file__).parents[2]))
            os.execv(sys.executable, [sys.executable, "-m", "supervisor.cli", *words])
        self.resize(24, 80)
        self.screen = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, wanted: Callable[[str], bool], limit_s: float = 30.0) -> str:
        """Read until what was written since the last call is as wanted."""
        deadline = time.perf_counter() + limit_s
        seen = ""
        while not wanted(seen):
            assert time.perf_counter() < deadline, seen
            if select.select([self.fd], [], [], 0.2)[0]:
                seen += os.read(self.fd, 65536).decode(errors="replace")
        return seen

    def end(self) -> tuple[str, int]:
        """Return what is written until the end, and the exit status."""
        rest = ""
        while True:
            try:
                part = os.read(self.fd, 65536)
            except OSError:
                break
            if not part:
                break
            rest += part.decode(errors="replace")
        os.close(self.fd)
        return rest, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def daemon_at(path: Path) -> Iterator[None]:
    server = ControlServer(FakeView(), bind(path), unlink=True)
    server.start()
    try:
        yield
    finally:
        server.stop()


@pytest.mark.slow
def test_a_real_terminal_shows_it_over_a_restart_of_the_daemon_and_is_restored(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    with daemon_at(socket):
        terminal = Terminal("--socket", str(socket), "top", "--interval", "0.2")
        terminal.until(lambda seen: "\x1b[?1049h" in seen and "yolo" in seen)
        os.write(terminal.fd, b"?")
        terminal.until(lambda seen: "stops nothing" in seen)
        os.write(terminal.fd, b"?")
        terminal.resize(12, 40)
        os.kill(terminal.pid, signal.SIGWINCH)
        terminal.until(lambda seen: "\x1b[12;1H" in seen.rpartition("\x1b[2J")[2])
    terminal.until(lambda seen: "no answer from" in seen)
    with daemon_at(socket):
        terminal.until(lambda seen: "rocm-supervisor 0.1.0" in seen)
    os.write(terminal.fd, b"q")
    rest, status = terminal.end()
    assert "\x1b[?25h\x1b[?1049l" in rest
    assert status == 0


def test_without_a_terminal_one_frame_is_printed() -> None:
    with serving(FakeView()) as socket:
        done = CliRunner().invoke(cli, ["--socket", str(socket), "top"], obj=App())
    assert done.exit_code == 0
    assert "yolo" in done.stdout
    assert "\x1b" not in done.stdout


def test_without_a_terminal_what_the_daemon_cannot_answer_is_an_error() -> None:
    with serving(FakeView(record_defect=RuntimeError("the record"))) as socket:
        done = CliRunner().invoke(cli, ["--socket", str(socket), "top"], obj=App())
    assert done.exit_code != 0
    assert done.stderr
