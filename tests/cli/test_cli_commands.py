"""The commands against a real control server: what people read, what programs read, and how each call ends."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result
from view_by_hand import FREEZE, YOLO, FakeView, serving

from supervisor.cli.app import App
from supervisor.cli.main import cli
from supervisor.control import record_types, types
from supervisor.control.client import Client, ControlError
from supervisor.control.present import gpu_status, host_status
from supervisor.core.events import Ask
from supervisor.core.moments import Moment
from supervisor.core.readings import DiskReading, GpuReading, HostReading
from supervisor.core.reports.strides import Stride, Strides
from supervisor.core.reports.timeline import Life

NOW = 1_763_165_520.0


def silent_gpu(gpu: str, **known: Any) -> types.GpuStatus:
    """What is answered of a GPU of which little is known."""
    status = gpu_status(GpuReading(at=Moment(0.0, NOW), gpu=gpu, source="", **known))
    return msgspec.structs.replace(status, at=None, source=None)


"""12 minutes after the freeze."""
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil\nnext\rline"

FULL = types.JobStatus(
    name="yolo",
    phase="running",
    stage="step",
    since=NOW - 600,
    attempt=3,
    pid=5000,
    epoch=1,
    epochs=50,
    step=80_400,
    steps_total=4_116_250,
    steps_per_s=18.26,
    last_step_at=NOW,
    eta=NOW + 223_200,
    loss=1.23456,
    restarts=1,
    hooked=True,
    flags=["vram_high: 5.05 of 6.00 GB used"],
)
CARD = gpu_status(
    GpuReading(
        gpu="0000:0a:00.0",
        name="Radeon RX 5600 XT",
        source="sysfs",
        at=Moment(0.0, NOW - 1),
        gpu_busy_percent=99.0,
        vram_used_bytes=5_050_000_000,
        vram_total_bytes=6_000_000_000,
        edge_c=77.0,
        junction_c=88.0,
        power_w=100.0,
    )
)
WATCHED = [
    types.WatchedStatus(
        rule="stall",
        group="steps",
        what="no step, in stage step",
        unit="s",
        now=6.0,
        limit=8.0,
        share=0.75,
        severity="critical",
        learned=True,
    ),
    types.WatchedStatus(
        rule="thermal",
        group="gpus",
        what="hottest sensor of 0a:00",
        unit="C",
        now=101.0,
        limit=100.0,
        share=1.0,
        held_s=12.0,
        hold_s=30.0,
    ),
    types.WatchedStatus(
        rule="fragmentation",
        group="memory",
        what="retried allocations",
        now=4.0,
        limit=3.0,
        share=1.0,
        lacks="a full card",
    ),
    types.WatchedStatus(
        rule="disk_low",
        group="storage",
        what="space left on /data",
        unit="bytes",
        now=1_000_000_000,
        limit=200_000_000,
        share=0.2,
        below=True,
        severity="critical",
    ),
    types.WatchedStatus(
        rule="gpu_idle",
        group="steps",
        what="every GPU idle, and no step",
        unit="s",
        now=30.0,
        limit=30.0,
        share=1.0,
        reached=True,
        severity="critical",
        shadow=True,
    ),
    types.WatchedStatus(
        rule="fp32_fallback", group="pace", what="half precision asked for, single used", reached=True
    ),
    types.WatchedStatus(
        rule="crash", group="process", what="the process ends otherwise than a training ends", severity="critical"
    ),
    types.WatchedStatus(rule="fan", group="gpus", what="its fans", not_watched="it trains on the CPU"),
    types.WatchedStatus(
        rule="power", group="gpus", what="power", enabled=False, not_watched="the rule is switched off"
    ),
    types.WatchedStatus(
        rule="milestone", group="pace", what="half is done", unit="steps", now=90_000.0, limit=100_000.0, share=0.9,
        severity="info",
    ),
]  # fmt: skip
"""In the daemon's order: the nearest first."""
HOST = host_status(
    HostReading(
        at=Moment(0.0, NOW),
        memory_total_bytes=31_000_000_000,
        memory_available_bytes=12_000_000_000,
        load_1m=4.2,
        disks=(DiskReading(path="/data", free_bytes=200_000_000_000, total_bytes=1_000_000_000_000),),
    )
)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is UTC, so that the snapshots are the same everywhere."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.delenv("ROCM_SUPERVISOR_CONFIG", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def view(tmp_path: Path) -> FakeView:
    return FakeView(folder=tmp_path)


@pytest.fixture
def path(view: FakeView) -> Iterator[Path]:
    with serving(view) as where:
        yield where


def call(path: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--socket", str(path), *words], obj=App(now=lambda: NOW))


def lines(result: Result) -> list[str]:
    return result.stdout.splitlines()


class TestStatus:
    def test_it_shows_jobs_gpus_and_machine_in_columns(self, path: Path, view: FakeView) -> None:
        view.jobs = [FULL, types.JobStatus(name="b", phase="pending")]
        view.gpus, view.host = [CARD], HOST
        result = call(path, "status")
        assert result.exit_code == 0
        assert lines(result) == [
            "daemon 0.1.0, pid 4711, up 1 d 2 h",
            "",
            "JOB   PHASE    STAGE  ATTEMPT  EPOCH           STEP  STEPS/S   LOSS          ETA  RESTARTS  WHY",
            "yolo  running  step         3   2/50  80400/4116250    18.26  1.235  in 2 d 14 h         1",
            "b     pending  -            0      -              -        -      -            -         0",
            "  yolo: vram_high: 5.05 of 6.00 GB used",
            "",
            "GPU            USE    VRAM      OF  TEMP  POWER     READ  NAME",
            "0000:0a:00.0  99 %  5.0 GB  6.0 GB  88 C  100 W  1 s ago  Radeon RX 5600 XT",
            "",
            "host  memory 12.0 GB free of 31.0 GB, load 4.2, /data 200 GB free",
        ]

    @pytest.mark.parametrize(
        ("phase", "code"),
        [("running", 0), ("starting", 0), ("backoff", 0), ("finished", 0), ("failed", 3), ("stopped", 3)],
    )
    def test_it_exits_with_3_where_a_job_is_down(self, path: Path, view: FakeView, phase: str, code: int) -> None:
        view.jobs = [types.JobStatus(name="a", phase="running"), types.JobStatus(name="b", phase=phase)]
        assert call(path, "status").exit_code == code
        assert call(path, "status", "a").exit_code == 0
        assert call(path, "status", "b").exit_code == code

    def test_a_process_that_runs_for_long_and_reports_no_step_is_not_starting(self, path: Path, view: FakeView) -> None:
        young = types.JobStatus(name="young", phase="starting", pid=7, since=NOW - 60)
        view.jobs = [young, msgspec.structs.replace(young, name="old", phase="running", since=NOW - 7200)]
        lines = {line.split()[0]: line for line in call(path, "status").stdout.splitlines() if line.strip()}
        assert "running, steps not reported" in lines["old"]
        assert "starting" in lines["young"]

    def test_a_training_in_a_compiled_loop_runs_and_its_steps_are_not_seen(self, path: Path, view: FakeView) -> None:
        first = types.JobStatus(name="first", phase="running", stage="loop", pid=7, since=NOW - 7200, hooked=True)
        view.jobs = [first, msgspec.structs.replace(first, name="later", attempt_steps=3, last_step_at=NOW - 900)]
        lines = call(path, "status").stdout.splitlines()
        assert sum("running, steps not seen" in line for line in lines) == 2
        assert not any("last step" in line for line in lines), "a call that lasts is no news"

    def test_it_hides_neither_silence_nor_an_unkillable_process(self, path: Path, view: FakeView) -> None:
        quiet = msgspec.structs.replace(FULL, flags=[], last_step_at=NOW - 90)
        stuck = types.JobStatus(name="stuck", phase="killing", unkillable=True)
        imports = types.JobStatus(name="imports", phase="starting", pid=8)
        view.jobs = [quiet, types.JobStatus(name="bare", phase="running", pid=7), imports, stuck]
        view.daemon = msgspec.structs.replace(view.daemon, problem="the database cannot be written: disk full")
        text = call(path, "status").stdout
        assert "problem: the database cannot be written" in text
        assert "yolo: last step 1 min ago" in text
        assert "bare: no reports from the training" in text
        assert "imports: no reports" not in text, "it may still make its first one"
        assert "stuck: SIGKILL does not end its process" in text

    def test_of_one_job_what_is_near_is_shown_by_what_it_is_about(self, path: Path, view: FakeView) -> None:
        view.jobs = [msgspec.structs.replace(FULL, flags=[], watched=WATCHED)]
        assert lines(call(path, "status", "yolo"))[4:] == [
            "",
            "GROUP   RULE             NOW          LIMIT  % OF LIMIT  ACTION  CHECK",
            "steps   stall            6 s  8 s (learned)        75 %  stop    no step, in stage step",
            "        gpu_idle        30 s           30 s       100 %  shadow  every GPU idle, and no step",
            "gpus    thermal        101 C          100 C       100 %  warn    hottest sensor of 0a:00; "
            "held for 12 s of 30 s",
            "memory  fragmentation      4              3       100 %  warn    retried allocations; "
            "waits for: a full card",
            "pace    fp32_fallback      -              -         yes  warn    half precision asked for, single used",
            "5 of 10 gauges shown; all: supervisorctl status yolo --all",
            "in shadow: gpu_idle",
            "switched off: power",
        ]

    def test_all_that_is_watched_is_shown_where_it_is_asked_for(self, path: Path, view: FakeView) -> None:
        view.jobs = [msgspec.structs.replace(FULL, flags=[], watched=WATCHED)]
        text = lines(call(path, "status", "yolo", "--all"))[5:]
        assert len(text) == 1 + len(WATCHED)
        assert [" ".join(item.split()) for item in text[3:7]] == [
            "gpus thermal 101 C 100 C 100 % warn hottest sensor of 0a:00; held for 12 s of 30 s",
            "fan - - - - its fans; not watched: it trains on the CPU",
            "power - - - off power; not watched: the rule is switched off",
            "memory fragmentation 4 3 100 % warn retried allocations; waits for: a full card",
        ]
        assert text[9].split()[:7] == ["milestone", "90000", "steps", "100000", "steps", "90", "%"]
        assert text[10].split()[:6] == ["process", "crash", "-", "-", "-", "stop"]

    def test_where_nothing_is_near_it_says_so_and_without_an_attempt_nothing(self, path: Path, view: FakeView) -> None:
        view.jobs = [msgspec.structs.replace(FULL, watched=WATCHED[3:4])]
        assert lines(call(path, "status", "yolo"))[-2:] == [
            "no gauge is at 50 % of its limit or above",
            "0 of 1 gauges shown; all: supervisorctl status yolo --all",
        ]
        view.jobs = [types.JobStatus(name="yolo", phase="pending")]
        assert "gauge" not in call(path, "status", "yolo").stdout

    def test_programs_get_all_that_is_watched_and_everything_is_of_one_job(self, path: Path, view: FakeView) -> None:
        view.jobs = [msgspec.structs.replace(FULL, watched=WATCHED)]
        reported = json.loads(call(path, "--json", "status", "yolo").stdout)["jobs"][0]["watched"]
        assert len(reported) == len(WATCHED)
        assert (reported[1]["hold_s"], reported[2]["lacks"], reported[4]["reached"]) == (30.0, "a full card", True)
        result = call(path, "status", "--all")
        assert (result.exit_code, "try: supervisorctl status JOB --all" in result.stderr) == (2, True)

    def test_a_gpu_that_sleeps_or_is_silent_is_not_at_zero(self, path: Path, view: FakeView) -> None:
        asleep = silent_gpu("a", runtime_status="suspended")
        view.gpus = [asleep, silent_gpu("b", gpu_busy_percent=0.0)]
        text = lines(call(path, "status"))[-2:]
        assert text[0].split() == ["a", "asleep", "-", "-", "-", "-", "-", "-"]
        assert text[1].split()[:3] == ["b", "0", "%"]

    @pytest.mark.parametrize("words", [("--json", "status"), ("status", "--json")])
    def test_programs_get_what_the_daemon_reported(self, path: Path, view: FakeView, words: tuple[str, ...]) -> None:
        view.jobs = [FULL]
        answer = json.loads(call(path, *words).stdout)
        assert answer["schema"] == 1
        assert answer["jobs"][0]["eta"] == NOW + 223_200
        assert answer["host"] is None

    def test_an_unknown_job_is_named_with_the_known_ones(self, path: Path) -> None:
        result = call(path, "status", "yol")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "try: yolo" in result.stderr

    def test_hostile_strings_do_not_reach_the_terminal(self, path: Path, view: FakeView) -> None:
        view.jobs = [types.JobStatus(name="yolo", phase="backoff", reason=HOSTILE, stage=HOSTILE, flags=[HOSTILE])]
        view.gpus = [silent_gpu("a", name=HOSTILE)]
        for words in (("status",), ("--json", "status")):
            out = call(path, *words).stdout
            assert not set(out) & {"\x1b", "\x07", "\u202e", "\r"}
            assert "owned" not in out
            assert "evil" in out


class TestHistory:
    def test_it_reads_like_a_story(self, path: Path, view: FakeView) -> None:
        gave_up = record_types.IncidentEntry(
            id="yolo-7",
            job="yolo",
            attempt=7,
            at=NOW - 30,
            rule="crash",
            severity="critical",
            fault="oom_gpu",
            message="exit code 1: out of memory",
            decision="give_up",
            outcome="gave_up",
            reason="5 restarts in a row without progress (budget 5)",
            lost_steps=0,
        )
        view.history = [gave_up, FREEZE]
        assert lines(call(path, "history")) == [
            "30 s ago (2025-11-15 00:11:30)  yolo, attempt 7",
            "      seen  crash (oom_gpu): exit code 1: out of memory",
            "      done  given up: 5 restarts in a row without progress (budget 5)",
            "      cost  no step lost",
            "      more  supervisorctl show yolo-7",
            "",
            "12 min ago (2025-11-15 00:00:00)  yolo, attempt 2",
            "      seen  stall: no step for 61 s in stage step (limit 60 s), last step 80321",
            "      done  stopped, resumed from epoch 1, step 78000 (weights/last.pt)",
            "      cost  2321 steps to redo, 1 min 45 s down",
            "      more  supervisorctl show yolo-2",
        ]

    def test_history_lists_outages_of_the_daemon_among_the_incidents(self, path: Path, view: FakeView) -> None:
        at = NOW - 600
        view.absences = [record_types.OutageEntry(job="yolo", attempt=3, at=at, until=at + 275)]
        assert lines(call(path, "history"))[:4] == [
            "10 min ago (2025-11-15 00:02:00)  yolo, attempt 3",
            "    outage  daemon not running 00:02:00 - 00:06:35 (4 min 35 s)",
            "",
            "12 min ago (2025-11-15 00:00:00)  yolo, attempt 2",
        ]
        assert len(lines(call(path, "history", "-n", "1"))) == 2
        (outage,) = json.loads(call(path, "history", "--json").stdout)["outages"]
        assert (outage["job"], outage["until"] - outage["at"]) == ("yolo", 275)
        assert json.loads(call(path, "history", "--since", "5min", "--json").stdout)["outages"] == []

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"outcome": "open", "resumed_from": None}, "stopped, still open"),
            ({"outcome": "restarted", "resumed_from": None}, "stopped, restarted from the beginning"),
            (
                {"outcome": "restarted", "resumed_from": None, "went_on_step": 80},
                "stopped, restarted; went on from step 80 by itself",
            ),
            (
                {"outcome": "restarted", "resumed_from": None, "loads_itself": True, "went_on_step": 0},
                "stopped, restarted from the beginning",
            ),
            (
                {"outcome": "restarted", "resumed_from": None, "loads_itself": True},
                "stopped, restarted to load its own checkpoint; the step that it went on from is not known",
            ),
            (
                {"outcome": "restarted", "resumed_from": None, "loads_itself": True, "resumed_at": None},
                "stopped, restarted to load its own checkpoint; not running again yet",
            ),
            (
                {"outcome": "resumed", "own_file": "/runs/d/epoch_8.pt", "went_on_step": 1990},
                "stopped, relaunched to resume from epoch 1, step 78000 (weights/last.pt), but the training loaded "
                "step 1990 (d/epoch_8.pt) by itself",
            ),
            (
                {"outcome": "resumed_later"},
                "stopped, its program trained again what comes before, then resumed from epoch 1, step 78000 "
                "(weights/last.pt)",
            ),
            ({"outcome": "stopped"}, "stopped, then stopped by the user"),
            ({"outcome": "gave_up", "reason": "none is proven"}, "stopped, given up: none is proven"),
            (
                {"resumed_at": None, "confirmed": None},
                "stopped, relaunched to resume from epoch 1, step 78000 (weights/last.pt); not running again yet",
            ),
            (
                {"decision": "retry", "rule": "launch", "outcome": "overtaken"},
                "not started, restarted, and ended before its first step (see the next incident)",
            ),
            ({"decision": "retry"}, "process exited, resumed from epoch 1, step 78000 (weights/last.pt)"),
            ({"resumed_from": record_types.ResumedFrom(path="/d/x.pt")}, "stopped, resumed from d/x.pt"),
        ],
    )
    def test_every_outcome_has_its_sentence(
        self, path: Path, view: FakeView, changes: dict[str, object], sentence: str
    ) -> None:
        view.history = [msgspec.structs.replace(FREEZE, **changes)]
        assert f"      done  {sentence}" in lines(call(path, "history"))

    def test_a_quiet_night_is_shown_as_one(self, path: Path, view: FakeView) -> None:
        view.history = []
        assert call(path, "history", "--shadow").stdout == "no rule in shadow has raised a flag\n"
        noted = record_types.ShadowEntry(
            job="yolo", attempt=2, at=1_763_164_800.0, rule="stall", message="no step for 61 s"
        )
        view.shadowed = [noted]
        assert lines(call(path, "history", "yolo", "--shadow"))[1] == " would act  stall: no step for 61 s"
        assert json.loads(call(path, "history", "--shadow", "--json").stdout)["flags"][0]["rule"] == "stall"
        assert call(path, "history").stdout == "no incident is recorded\n"

    def test_only_what_happened_since_is_reported(self, path: Path) -> None:
        ago_s = NOW - FREEZE.at
        assert ago_s == 720
        assert "stall" in call(path, "history", "--since", "13min").stdout
        assert call(path, "history", "--since", "11 min").stdout.startswith("no incident is recorded since")
        assert json.loads(call(path, "history", "--since", "1h", "--json").stdout)["incidents"]
        assert not json.loads(call(path, "history", "--since", "2999-01-01", "--json").stdout)["incidents"]
        refused = call(path, "history", "--since", "yesterday")
        assert refused.exit_code == 2
        assert "write 90min, 8h, 2d or 2026-01-31" in refused.stderr

    def test_a_job_that_nobody_knows_is_no_quiet_night(self, path: Path) -> None:
        result = call(path, "history", "yolo2")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "no job 'yolo2' is configured" in result.stderr

    def test_programs_get_every_field(self, path: Path) -> None:
        (incident,) = json.loads(call(path, "history", "--json").stdout)["incidents"]
        assert incident == msgspec.to_builtins(FREEZE)

    def test_colour_is_for_terminals_and_for_who_wants_it(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "\x1b" not in call(path, "history").stdout
        assert "\x1b[32m" in call(path, "--color", "always", "history").stdout
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in call(path, "history").stdout


class TestShow:
    def test_it_tells_the_story_and_names_the_evidence(self, path: Path, view: FakeView, tmp_path: Path) -> None:
        (tmp_path / "evidence/stacks").mkdir(parents=True)
        (tmp_path / "evidence/stacks/5000.txt").write_text("x" * 1500)
        view.history = [msgspec.structs.replace(FREEZE, evidence=str(tmp_path / "evidence"))]
        result = call(path, "show", "yolo-2")
        assert result.exit_code == 0
        assert lines(result)[-4:] == [
            "2025-11-15 00:00:01   +1 s  decision  stop",
            "",
            f"evidence in {tmp_path}/evidence",
            "    1.5 kB  stacks/5000.txt",
        ]

    def test_the_daemon_hands_out_evidence_that_nobody_else_may_read(
        self, path: Path, view: FakeView, tmp_path: Path
    ) -> None:
        folder = tmp_path / "1" / "evidence" / "yolo-2"
        (folder / "triage").mkdir(parents=True)
        (folder / "kernel.txt").write_text("ring gfx timeout\n")
        (folder / "triage" / "report.txt").write_text("data: the batch\n")
        (folder / "secret").symlink_to("/etc/passwd")
        view.history = [msgspec.structs.replace(FREEZE, evidence=str(folder))]
        assert "  data: the batch" in lines(call(path, "show", "yolo-2"))
        assert [line.split()[-1] for line in lines(call(path, "evidence", "yolo-2"))] == [
            f"{folder}/kernel.txt",
            f"{folder}/triage/report.txt",
        ]
        for name in ("../../../x", "/etc/passwd", "secret", ""):
            with pytest.raises(ControlError) as refused:
                Client(path).get("/v1/incidents/yolo-2/evidence/file", name=name)
            assert refused.value.code == "no_evidence"

    def test_what_stands_behind_it_is_reported_in_words(self, path: Path, view: FakeView) -> None:
        diagnosis = record_types.Diagnosis(
            ruled_out=["a crash"], causes=["\x1b[31ma deadlock", "a disk"], advice=["workers=0"]
        )
        view.history = [msgspec.structs.replace(FREEZE, diagnosis=diagnosis)]
        reported = lines(call(path, "show", "yolo-2"))
        first = reported.index(" ruled out  a crash")
        assert reported[first + 1 : first + 4] == [
            "    likely  a deadlock",
            "    likely  a disk",
            "       try  workers=0",
        ]
        answer = json.loads(call(path, "history", "--json").stdout)
        assert answer["incidents"][0]["diagnosis"]["advice"] == ["workers=0"]

    def test_an_unknown_incident_is_a_failure_with_a_remedy(self, path: Path) -> None:
        result = call(path, "show", "yolo-9")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "supervisorctl history lists them" in result.stderr
        assert call(path, "show", "../../etc/passwd").exit_code == 1


class TestWishes:
    @pytest.mark.parametrize(
        ("words", "ask", "fresh"),
        [
            (("start", "yolo"), Ask.START, False),
            (("start", "yolo", "--fresh"), Ask.START, True),
            (("stop", "yolo"), Ask.STOP, False),
            (("restart", "yolo"), Ask.RESTART, False),
        ],
    )
    def test_a_request_is_passed_on(
        self, path: Path, view: FakeView, words: tuple[str, ...], ask: Ask, fresh: bool
    ) -> None:
        result = call(path, *words)
        assert (result.exit_code, result.stdout) == (0, f"yolo: {ask.value} requested\n")
        assert view.asked == [("yolo", ask, f"uid {os.getuid()}", fresh)]

    def test_a_request_that_is_turned_down_exits_with_5(self, path: Path, view: FakeView) -> None:
        view.refusal = "yolo is running already"
        result = call(path, "start", "yolo")
        assert (result.exit_code, result.stdout) == (5, "")
        assert "yolo is running already" in result.stderr

    def test_a_job_that_is_not_configured_is_not_asked_for(self, path: Path, view: FakeView) -> None:
        assert call(path, "stop", "../yolo").exit_code == 1
        assert view.asked == []

    def test_stopping_waits_until_nothing_runs(self, path: Path, view: FakeView) -> None:
        def obey() -> None:
            while not view.asked:
                time.sleep(0.01)
            view.jobs = [types.JobStatus(name="yolo", phase="stopping", pid=5000)]
            view.jobs = [types.JobStatus(name="yolo", phase="stopped")]

        daemon = threading.Thread(target=obey)
        daemon.start()
        result = call(path, "stop", "yolo", "--wait")
        daemon.join()
        assert (result.exit_code, result.stdout) == (0, "yolo: stopped\n")

    def test_waiting_for_a_start_takes_an_old_failure_for_what_it_is(self, path: Path, view: FakeView) -> None:
        view.jobs = [types.JobStatus(name="yolo", phase="failed", since=NOW - 99, attempt=3, reason="old")]

        def obey() -> None:
            while not view.asked:
                time.sleep(0.01)
            time.sleep(0.15)  # the old failure is still what the status says
            view.jobs = [types.JobStatus(name="yolo", phase="failed", since=NOW, attempt=4, reason="command not found")]

        daemon = threading.Thread(target=obey)
        daemon.start()
        result = call(path, "start", "yolo", "--wait")
        daemon.join()
        assert result.exit_code == 1
        assert "yolo is failed: command not found" in result.stderr

    def test_waiting_for_a_restart_wants_a_new_attempt(self, path: Path, view: FakeView) -> None:
        result = call(path, "restart", "yolo", "--wait", "--timeout", "0.2")
        assert result.exit_code == 1
        assert "still running after 0.2 s" in result.stderr
        view.jobs = [msgspec.structs.replace(YOLO, attempt=3)]

    def test_programs_get_the_answer(self, path: Path) -> None:
        assert json.loads(call(path, "--json", "stop", "yolo").stdout)["ask"] == "stop"


class TestLogs:
    def test_the_last_lines_are_printed_harmlessly(self, path: Path, view: FakeView) -> None:
        (view.folder / "output.txt").write_text(f"one\ntwo\n{HOSTILE}\n")
        result = call(path, "logs", "-n", "3", "yolo")
        assert result.stdout == "two\nevil\nnextline\n"

    def test_long_output_is_not_cut(self, path: Path, view: FakeView) -> None:
        (view.folder / "output.txt").write_text("x" * 9000 + "\n")
        assert len(call(path, "logs", "yolo").stdout) == 9001


class TestTheRest:
    def test_an_account_names_the_time_the_ratio_and_the_costs(self, path: Path, view: FakeView) -> None:
        began = 1_763_164_500.0
        stride = Stride(first_unix_s=began + 60, last_unix_s=began + 260, step_first=1, step_last=1001)
        entered = ((began + 1, "setup"), (began + 60, "step"))
        view.lives = (
            Life(
                number=1,
                launched_unix_s=began,
                ended_unix_s=began + 300,
                resume_step=0,
                from_beginning=True,
                entered=entered,
                strides=Strides([stride]),
                cause="stall",
            ),
            Life(
                number=2,
                launched_unix_s=began + 310,
                ended_unix_s=None,
                resume_step=501,
                entered=((began + 310, "setup"),),
            ),
        )
        shown = call(path, "account", "yolo").stdout.splitlines()
        assert shown[0].startswith("yolo: 6 min 40 s since its first launch; effective training time 25.0%")
        assert any(
            line.split() == ["1", "min", "40", "s", "25.0%", "1", "min", "40", "s", "training"] for line in shown
        )
        assert shown[-1].split() == ["4", "min", "1", "stall"]
        answer = json.loads(call(path, "account", "yolo", "--json").stdout)
        assert answer["lifetime"]["cost_s"] == {"stall": 100 + 50 + 90}
        assert sum(answer["lifetime"]["seconds"].values()) == 400

    def test_what_is_known_of_neither_time_is_named_once(self, path: Path, view: FakeView) -> None:
        began = 1_763_164_500.0
        view.lives = (Life(number=1, launched_unix_s=began, ended_unix_s=None, resume_step=0),)
        (head, *_) = call(path, "account", "yolo").stdout.splitlines()
        assert head.endswith(" since its first launch; effective training time not available")

    def test_a_job_that_was_never_launched_has_no_account(self, path: Path, view: FakeView) -> None:
        assert call(path, "account", "yolo").stdout == "yolo has never been launched\n"

    def test_remedies_are_reported_in_force_tried_and_learned(self, path: Path, view: FakeView) -> None:
        assert call(path, "remedies").stdout == "no remedy is recorded\n"
        held = record_types.RemedyInForce(
            job="yolo", remedy="half_batch", cause="oom_gpu", attempt=3, what="half the batch", applied="batch 4 -> 2"
        )
        tried = record_types.RemedyTried(
            job="yolo", attempt=3, at=NOW - 720, cause="oom_gpu", remedy="half_batch", step=35, outcome="helped",
            reason=f"allocator passed over {HOSTILE}",
        )  # fmt: skip
        learned = record_types.RemedyLearned(cause="oom_gpu", remedy="half_batch", helped=2, failed=1)
        view.report_of_remedies = record_types.RemedyReport(in_force=[held], tried=[tried], learned=[learned])
        shown = call(path, "remedies", "yolo").stdout
        lines = [line.split() for line in shown.splitlines()]
        assert lines[2][:3] == ["yolo", "half_batch", "oom_gpu"]
        assert shown.splitlines()[2].endswith("half the batch: batch 4 -> 2")
        assert lines[6][:9] == ["yolo", "12", "min", "ago", "3", "oom_gpu", "35", "half_batch", "helped"]
        assert lines[-1] == ["oom_gpu", "half_batch", "2", "1"]
        assert not any(item in shown for item in "\x1b\x07\u202e")
        assert json.loads(call(path, "remedies", "--json").stdout)["tried"][0]["step"] == 35
        assert call(path, "remedies", "none-such").exit_code == 1

    def test_status_and_history_say_what_a_retry_was_given(self, path: Path, view: FakeView) -> None:
        given = {"cause": "stall", "remedy": "no_workers", "remedy_why": "the same stall at the same place"}
        view.history = [msgspec.structs.replace(FREEZE, **given)]
        view.jobs = [msgspec.structs.replace(FULL, remedies=["no_workers against stall: loader workers 4 -> 0"])]
        assert "remedy  no_workers against stall: the same stall at the same place" in call(path, "history").stdout
        assert "yolo: remedy no_workers against stall: loader workers 4 -> 0" in call(path, "status").stdout
        view.jobs = [msgspec.structs.replace(FULL, standby="ready")]
        assert "yolo: standby interpreter for the next attempt: ready" in call(path, "status").stdout

    def test_checkpoints_stand_in_columns(self, path: Path, view: FakeView) -> None:
        view.saved = [
            record_types.CheckpointEntry(
                path="/s/17/last.pt",
                saved_at=NOW - 90,
                size_bytes=6_250_000,
                epoch=1,
                step=82_325,
                verdict="proven",
                source="/d/last.pt",
                kept_by="newest, best",
            ),
            record_types.CheckpointEntry(
                path="/s/16/a.pt",
                saved_at=NOW - 190,
                size_bytes=1,
                step=80_000,
                kind="snapshot",
                source="/d/a.pt",
                kept_by="",
            ),
            record_types.CheckpointEntry(
                path="/d/best.pt", saved_at=NOW - 9000, size_bytes=0, verdict="rejected", reason="empty file"
            ),
        ]
        assert lines(call(path, "checkpoints", "yolo", "--all")) == [
            "FILE           EPOCH   STEP      SAVED    SIZE  KIND        VERDICT       KEPT BY       WHY",
            "/s/17/last.pt      2  82325  1 min ago  6.2 MB  checkpoint  proven        newest, best",
            "/s/16/a.pt         -  80000  3 min ago     1 B  snapshot    not verified  pruned",
            "/d/best.pt         -      -    2 h ago     0 B  checkpoint  rejected      training      empty file",
        ]
        assert lines(call(path, "checkpoints", "yolo", "-n", "1"))[1:] == [
            "/s/17/last.pt      2  82325  1 min ago  6.2 MB  checkpoint  proven   newest, best",
            "1 more and 1 pruned: --all shows them",
        ]
        assert len(json.loads(call(path, "--json", "checkpoints", "yolo").stdout)["checkpoints"]) == 3
        view.saved = [view.saved[0], msgspec.structs.replace(view.saved[0], path="/s/17/weights/best.pt")]
        first, _, *rows = lines(call(path, "checkpoints", "yolo"))
        assert first == "in /s/17:"
        assert [row.split()[0] for row in rows] == ["last.pt", "weights/best.pt"]
        view.saved = []
        assert call(path, "checkpoints", "yolo").stdout == "yolo has saved no checkpoint yet\n"

    def test_a_file_that_was_written_again_is_not_shown_as_it_was(self, path: Path, view: FakeView) -> None:
        cut = record_types.CheckpointEntry(path="/d/last.pt", saved_at=NOW - 90, size_bytes=1, verdict="rejected")
        kept = {"source": "/d/last.pt", "verdict": "proven", "kept_by": "newest"}
        view.saved = [msgspec.structs.replace(cut, path="/s/17/last.pt", saved_at=NOW - 30, **kept), cut]
        first, *rows = lines(call(path, "checkpoints", "yolo"))[1:]
        assert first.split()[0] == "/s/17/last.pt"
        assert rows == ["1 replaced: --all shows them"]
        assert "rejected  replaced" in call(path, "checkpoints", "yolo", "--all").stdout
        view.saved = [msgspec.structs.replace(cut, path="/s/17/last.pt", saved_at=NOW - 99, **kept), cut]
        assert lines(call(path, "checkpoints", "yolo"))[-1].endswith("training")

    def test_a_reload_says_what_came_of_each_change(self, path: Path, view: FakeView) -> None:
        view.report = types.ReloadReport(applied=["jobs.yolo.grace_s: 30.0 -> 60.0"], needs_restart=["x: 1 -> 2"])
        assert lines(call(path, "reload")) == ["applied: jobs.yolo.grace_s: 30.0 -> 60.0", "needs a restart: x: 1 -> 2"]
        view.report = types.ReloadReport(problems=["config.toml: telemetry.interval_s: is not allowed"])
        result = call(path, "reload")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "telemetry.interval_s" in result.stderr
        view.report = types.ReloadReport()
        assert call(path, "reload").stdout == "nothing changed\n"

    def test_a_dry_run_of_a_reload_says_what_would_come_of_each_change(self, path: Path, view: FakeView) -> None:
        view.report = types.ReloadReport(applied=["jobs.yolo.grace_s: 30.0 -> 60.0"], needs_restart=["x: 1 -> 2"])
        expected = ["would be applied: jobs.yolo.grace_s: 30.0 -> 60.0", "needs a restart: x: 1 -> 2"]
        assert lines(call(path, "reload", "--dry-run")) == expected
        view.report = types.ReloadReport(problems=["config.toml: telemetry.interval_s: is not allowed"])
        assert call(path, "reload", "--dry-run").exit_code == 1
        view.report = types.ReloadReport()
        assert call(path, "reload", "--dry-run").stdout == "nothing would change\n"
        assert view.dry_runs == [True, True, True]
        call(path, "reload")
        assert view.dry_runs[-1] is False

    @pytest.mark.slow
    def test_config_check_exits_with_1_for_errors_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "c.toml"
        file.write_text("[jobs.a]\ncommand = ['x']\ncwd = '/nonexistent'\n")
        result = call(tmp_path, "config", "check", str(file))
        assert (result.exit_code, result.stdout) == (0, f"{file}: ok, jobs: 1, alerts: 0\n")
        assert "warning: jobs.a.cwd" in result.stderr
        file.write_text("[telemetry]\ninterval_s = 0\nsource = []\n")
        result = call(tmp_path, "--config", str(file), "config", "check")
        assert (result.exit_code, result.stdout) == (1, "")
        assert len(result.stderr.splitlines()) == 2
        answer = json.loads(call(tmp_path, "--json", "config", "check", str(file)).stdout)
        assert [problem["key"] for problem in answer["problems"]] == ["telemetry.source", "telemetry.interval_s"]

    def test_names_of_jobs_and_incidents_are_completed(self, path: Path, view: FakeView, tmp_path: Path) -> None:
        def offered(socket: Path, *words: str, incomplete: str = "") -> list[str]:
            shell = BashComplete(cli, {}, "rocm-supervisorctl", "_COMPLETE")
            found = shell.get_completions(["--config", str(config), "--socket", str(socket), *words], incomplete)
            return [item.value for item in found]

        config = tmp_path / "c.toml"
        config.write_text("[jobs.night]\ncommand = ['x']\n[jobs.noon]\ncommand = ['x']\n")
        view.jobs = [YOLO, msgspec.structs.replace(YOLO, name="resnet")]
        assert offered(path, "status") == ["resnet", "yolo"]
        assert offered(path, "stop", incomplete="y") == ["yolo"]
        assert offered(path, "show", incomplete="yo") == [FREEZE.id]
        assert offered(tmp_path / "away", "logs", incomplete="no") == ["noon"]
        assert offered(tmp_path / "away", "show") == []
        config.write_text("[jobs")
        assert offered(tmp_path / "away", "logs") == []

    @pytest.mark.slow
    def test_doctor_asks_the_daemon_where_there_is_one(self, path: Path, view: FakeView, tmp_path: Path) -> None:
        config = tmp_path / "c.toml"
        config.write_text(f"[supervisor]\nstate_dir = '{tmp_path}'\n[jobs.a]\ncommand = ['x']\n")
        view.lines = [types.DoctorLine(name="kernel log", level="fail", found="closed", remedy="give CAP_SYSLOG")]
        result = call(path, "--config", str(config), "doctor")
        assert result.exit_code == 1
        assert "fail  kernel log  closed" in " ".join(result.stdout.split()).replace(
            "fail kernel log", "fail  kernel log "
        )
        assert "try: give CAP_SYSLOG" in result.stdout
        view.lines = [types.DoctorLine(name="kernel log", level="ok", found="read")]
        found = json.loads(call(path, "--config", str(config), "--json", "doctor").stdout)["lines"]
        levels = {match["name"]: match["level"] for match in found}
        assert levels["daemon"] == levels["kernel log"] == levels["config"] == levels["disk"] == "ok"

    @pytest.mark.slow
    def test_doctor_looks_by_itself_where_there_is_no_daemon(self, tmp_path: Path) -> None:
        config = tmp_path / "c.toml"
        config.write_text(
            f"[supervisor]\nstate_dir = '{tmp_path}'\nlauncher = 'direct'\n[telemetry]\nsources = ['sysfs']"
        )
        result = call(tmp_path / "s", "--config", str(config), "--json", "doctor")
        found = {line["name"]: line for line in json.loads(result.stdout)["lines"]}
        assert result.exit_code == 1
        assert found["daemon"]["level"] == "fail"
        assert found["launcher"]["level"] == "ok"
        assert {"python", "sqlite", "config", "disk", "devices", "kernel log", "source sysfs"} <= found.keys()

    def test_help_is_there_in_every_way(self, path: Path) -> None:
        for words in (("--help",), ("help",), ("help", "status"), ("status", "-h"), ("help", "exit-codes")):
            result = call(path, *words)
            assert (result.exit_code, result.stderr) == (0, "")
            assert result.stdout
        assert call(path, "help", "nonsense").exit_code == 2

    @pytest.mark.slow
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_completion_is_printed_for_each_shell(self, path: Path, shell: str) -> None:
        result = CliRunner().invoke(cli, ["completion", shell], prog_name="rocm-supervisorctl")
        assert "_ROCM_SUPERVISORCTL_COMPLETE" in result.stdout

    def test_the_agent_lies_where_agent_path_says(self, path: Path) -> None:
        assert (Path(call(path, "agent-path").stdout.strip()) / "sitecustomize.py").is_file()


class TestErrors:
    @pytest.mark.parametrize(
        "words",
        [("status",), ("start", "a"), ("stop", "a"), ("restart", "a"), ("reload",), ("logs", "-f", "a")],
    )
    def test_no_daemon_is_reported_on_stderr_and_exits_with_4(self, tmp_path: Path, words: tuple[str, ...]) -> None:
        result = call(tmp_path / "absent", *words)
        assert (result.exit_code, result.stdout) == (4, "")
        assert "no daemon is running: there is no socket" in result.stderr
        assert "systemctl start rocm-supervisor" in result.stderr

    def test_with_json_errors_are_objects(self, tmp_path: Path) -> None:
        error = json.loads(call(tmp_path / "absent", "--json", "status").stderr)
        assert (error["schema"], error["error"]["code"]) == (1, "not_running")
        assert json.loads(call(tmp_path, "--json", "statsu").stderr)["error"]["code"] == "usage"
        assert json.loads(call(tmp_path, "--json", "logs").stderr)["error"]["code"] == "usage"

    def test_a_wrong_command_line_exits_with_2_and_says_what_was_meant(self, path: Path) -> None:
        result = call(path, "statsu")
        assert result.exit_code == 2
        assert "did you mean 'status'?" in result.stderr
        assert call(path, "history", "-n", "0").exit_code == 2

    @pytest.mark.parametrize("verb", ["reread", "update", "tail", "fg"])
    def test_commands_of_the_other_supervisor_are_recognised(self, path: Path, verb: str) -> None:
        result = call(path, verb)
        assert result.exit_code == 2
        assert "supervisord.org" in result.stderr
