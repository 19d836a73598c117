"""The record answers the same, asked through the daemon or read by the command line while the daemon is away."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from clocks_by_hand import START, HandClock

from supervisor.alerts.channels.webhook import WebhookSettings
from supervisor.cli.app import App
from supervisor.cli.errors import CliError
from supervisor.cli.estimate import KEPT, keep_estimate
from supervisor.cli.main import cli
from supervisor.control import types
from supervisor.control.client import Client
from supervisor.control.listen import bind
from supervisor.control.record_view import CLEARED, READS
from supervisor.control.server import ControlServer
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.incident import Incident
from supervisor.core.job import Attempt, Job, Phase
from supervisor.core.memory.estimate import estimate as estimate_memory
from supervisor.core.memory.kept import KeptEstimate
from supervisor.core.memory.points import Point
from supervisor.core.moments import Moment
from supervisor.core.remedies.spec import InForce
from supervisor.core.remedies.trials import Course, Trial
from supervisor.core.stats.histogram import Histogram
from supervisor.core.stats.learned_limits import Learned
from supervisor.daemon.alerts.alerting import Announcer, Receivers
from supervisor.daemon.api import RECORD_LIMIT_S, DaemonView, ViewDeps
from supervisor.daemon.inbox import Inbox
from supervisor.daemon.job_state import JobState
from supervisor.daemon.jobs.forget import ForgetJobs
from supervisor.daemon.loop import Loop
from supervisor.daemon.metrics import MetricsCollector, MetricsDeps
from supervisor.daemon.record.commit_thread import CommitThread
from supervisor.daemon.record.kept_estimates import KeptEstimates
from supervisor.daemon.stop_requests import StopRequests
from supervisor.daemon.telemetry import NewestReadings
from supervisor.daemon.threads import Threads
from supervisor.daemon.training_counts import Counts
from supervisor.daemon.tunes.tuner import Tuner
from supervisor.store.archive import Archive
from supervisor.store.store import NewAlert, Store

STALL = RedFlag(rule="stall", severity=Severity.CRITICAL, at=START, message="no step for 61 s")
POINT = Checkpoint(
    path="/d/weights/last.pt",
    fingerprint=Fingerprint(size_bytes=6, modified_ns=1_700_000_000_000_000_000, inode=7),
    step=78,
    verdict=Verdict.PROVEN,
)


class Untouched:
    """A loop's record and hands: a job that is stopped needs neither."""

    unsettled_turn = None

    def is_settled(self, turn: int, now: Moment) -> bool:
        return True

    def event(self, event: ev.Event, job_state: JobState | None) -> None: ...
    def decision(self, before: Job, after: Job, decision: de.Decision) -> None: ...
    def job(self, before: Job, after: Job, event: ev.Event) -> None: ...
    def keep_learned(self, job: str, setting: str, learned: Learned) -> None: ...
    def act(self, decision: de.Decision, job: Job, history: History | None) -> None: ...
    def noticed(self, event: ev.Event, job: Job) -> None: ...

    @contextmanager
    def turn(self, now: Moment) -> Iterator[None]:
        yield

    def learned(self, job: str, setting: str) -> Learned:
        return Learned.of_plain(None)

    def search(self, job: Job, history: History | None) -> None: ...


class House:
    """A state directory with a record of everything that can be asked for, and a daemon that can be away."""

    def __init__(self, folder: Path) -> None:
        self.clock = HandClock()
        self.clock.sleep(720.0)
        self.running: list[Path] = []
        self.awaited: list[float] = []
        """How long each answer would wait for the record."""
        self.state = folder / "state"
        self.evidence = self.state / "jobs/night/1/evidence/night-1"
        self.evidence.mkdir(parents=True)
        (self.evidence / "stacks.txt").write_text("File train.py, line 3\n")
        (self.state / "jobs/night/2").mkdir()
        (self.state / "jobs/night/2/output.txt").write_text("epoch 1\nepoch 2\n")
        (self.state / "jobs/night/current").symlink_to("2")
        self.config = folder / "config.toml"
        self.config.write_text(
            f"[supervisor]\nstate_dir = '{self.state}'\n[jobs.night]\ncommand = ['true']\n"
            "[alerts.phone]\nurl = 'https://hooks.example/T0'\n"
        )
        self.job = Job(
            name="night",
            since=START,
            phase=Phase.STOPPED,
            attempt=Attempt(number=2, launched_at=START, last_step=90),
            course=Course(in_force=(InForce(remedy="half_batch", cause="oom", attempt=2),)),
        )
        self.socket = folder / "control.sock"
        self.database = self.state / "supervisor.db"
        self._record()

    def _record(self) -> None:
        store = Store.open(f"sqlite:///{self.database}", START, "boot")
        incident = Incident(
            id="night-1", job="night", attempt=1, flag=STALL, decision="stop", last_step=90, evidence=str(self.evidence)
        )
        later = replace(STALL, at=START.plus(10))
        shadow = de.Note(at=START, job="night", attempt=1, flag=STALL)
        launch = de.Launch(at=START, job="night", attempt=1, resume_from=None, reason="started")
        with store.turn(START):
            store.save_job(self.job)
            store.save_job(Job(name="older", since=START, phase=Phase.STOPPED))
            store.open_attempt(launch, str(self.evidence.parent.parent))
            store.record_flag("night", 1, STALL)
            for decision in (launch, shadow):
                store.record_decision(decision)
            store.save_incident(incident.relaunched(POINT))
            store.save_incident(Incident(id="night-2", job="night", attempt=2, flag=later, decision="kill"))
            store.save_checkpoint("night", 1, POINT, START)
            store.save_trial("night", Trial(attempt=2, at=START, cause="oom", remedy="half_batch", step=90))
            store.queue_alert(NewAlert(id="msg_1", sink="phone", type="test", job="night", body=b"{}"), START)
        store.close(START)

    def leave_old_job(self) -> Path:
        """Add everything that a job leaves which was removed from the configuration; return its folder."""
        folder = self.state / "jobs/older"
        for name in ("1/run", "1/evidence/older-1", "snapshots", "generations/7"):
            (folder / name).mkdir(parents=True)
        for name, size in (("1/output.txt", 10_000), ("1/evidence/older-1/a", 20_000), ("generations/7/a.pt", 50_000)):
            (folder / name).write_bytes(b"x" * size)
        (folder / "1/run/elsewhere").symlink_to("/etc")
        store = Store.open(f"sqlite:///{self.database}", START, "boot")
        with store.turn(START):
            store.save_incident(Incident(id="older-1", job="older", attempt=1, flag=STALL, decision="kill"))
            store.save_checkpoint("older", 1, POINT, START)
            store.set_note("learned limits of older: a setting", "{}")
            store.set_note("learned limits of older-two: a setting", "{}")
        store.close(START)
        return folder

    @contextmanager
    def daemon(self) -> Iterator[None]:
        """A daemon with its deciding thread, at the socket."""
        inbox, hands = Inbox(), Untouched()
        loop = Loop(self.clock, inbox, hands, hands)
        loop.job_states["night"] = JobState(job=self.job, rules=())
        receivers = Receivers(
            {"phone": WebhookSettings(url="https://hooks.example/T0")}, inbox.put, self.clock, lambda _: None
        )
        announcer = Announcer(
            store=Store.open(f"sqlite:///{self.database}", START, "boot"),
            host="here",
            floors=lambda: receivers.floors,
            problems=lambda: receivers.problems,
            warnings=lambda: receivers.warnings,
            jobs=lambda: [job_state.job for job_state in loop.job_states.values()],
        )
        requests = StopRequests(self.state, Threads(self.clock, inbox.put))
        self.forget_jobs = forget_jobs = ForgetJobs(
            clock=self.clock,
            inbox=inbox,
            loop=loop,
            store=announcer.store,
            commits=CommitThread(announcer.store, Threads(self.clock, inbox.put), lambda: None, self.clock),
            jobs=self.state / "jobs",
            requests=requests,
            alive=lambda _, folder: folder in self.running,
        )
        deps = ViewDeps(
            clock=self.clock,
            inbox=inbox,
            loop=loop,
            newest=NewestReadings(),
            archive=Archive(self.database),
            state=self.state,
            database=str(self.database),
            problem=lambda: None,
            announcer=announcer,
            reload=types.ReloadReport,
            preview_reload=types.ReloadReport,
            doctor=lambda: (),
            forget=forget_jobs.forget,
            known=self._metrics(inbox, loop, announcer).known,
            tuner=Tuner(self.clock, self.state, lambda _: None),
            await_record=self.awaited.append,
            requests=requests,
            estimates=KeptEstimates(announcer.store, {"night": ["true"]}.get),
            not_configured=list,
        )
        end = threading.Event()
        thread = threading.Thread(target=lambda: loop.run(end.is_set))
        thread.start()
        server = ControlServer(DaemonView(deps), bind(self.socket), unlink=True)
        server.start()
        try:
            yield
        finally:
            server.stop()
            end.set()
            thread.join(120)
            announcer.store.close(START)
            assert not thread.is_alive()

    def _metrics(self, inbox: Inbox, loop: Loop, announcer: Announcer) -> MetricsCollector:
        deps = MetricsDeps(
            clock=self.clock,
            inbox=inbox,
            states=loop.job_states,
            counts=Counts(loop.job_states),
            readings=lambda: ((), None),
            sources=lambda: (),
            archive=Archive(self.database),
            store_problem=lambda: None,
            database_writes=Histogram().known,
            unit=lambda job, attempt: None,
            receivers=lambda: tuple(announcer.floors()),
            interval_s=lambda: 1.0,
        )
        return MetricsCollector(deps)

    def ask(self, route: str, **query: str | int) -> object:
        """Return the body, or what the refusal says; and leave it to the command line where it is from."""
        app = App(config_given=self.config, socket_given=self.socket, now=lambda: self.clock.now().unix_s)
        try:
            answer = app.get_recorded(route, **query)
        except CliError as error:
            return (error.code, str(error), error.remedy)
        assert app.reads_offline is not self.socket.exists()
        return answer


QUESTIONS: tuple[tuple[str, dict[str, str | int]], ...] = (
    ("/v1/incidents", {}),
    ("/v1/incidents", {"job": "night", "limit": 1}),
    ("/v1/incidents", {"job": "older"}),
    ("/v1/incidents", {"job": "nothing"}),
    ("/v1/incidents", {"limit": "many"}),
    ("/v1/incidents/night-1", {}),
    ("/v1/incidents/night-9", {}),
    ("/v1/incidents/night-1/evidence", {}),
    ("/v1/incidents/night-2/evidence", {}),
    ("/v1/incidents/night-1/evidence/file", {"name": "stacks.txt", "limit": 8}),
    ("/v1/incidents/night-1/evidence/file", {"name": "absent.txt"}),
    ("/v1/shadows", {"job": "night"}),
    ("/v1/shadows", {"job": "nothing"}),
    ("/v1/remedies", {}),
    ("/v1/remedies", {"job": "night"}),
    ("/v1/remedies", {"job": "nothing"}),
    ("/v1/alerts", {"limit": 5}),
    ("/v1/disk", {}),
    ("/v1/jobs/night/checkpoints", {}),
    ("/v1/jobs/older/checkpoints", {}),
    ("/v1/jobs/%6Eothing/checkpoints", {}),
    ("/v1/jobs/night/account", {}),
    ("/v1/jobs/nothing/account", {}),
    ("/v1/jobs/night/output", {"lines": 1}),
    ("/v1/jobs/night/output", {"after": 8, "attempt": 2}),
    ("/v1/jobs/night/output", {"after": 8, "attempt": 1}),
    ("/v1/jobs/older/output", {}),
    ("/v1/jobs/../output", {}),
)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_the_record_answers_the_same_with_and_without_a_daemon(house: House) -> None:
    with house.daemon():
        asked = [house.ask(route, **query) for route, query in QUESTIONS]
    for (route, query), body in zip(QUESTIONS, asked, strict=True):
        assert house.ask(route, **query) == body, route


def test_every_question_about_the_record_is_compared(house: House) -> None:
    answered = {read.route for read in READS if any(_asks(read.route, route) for route, _ in QUESTIONS)}
    assert answered == {read.route for read in READS}


def _asks(pattern: str, route: str) -> bool:
    parts = list(zip(pattern.split("/"), route.split("/"), strict=False))
    return pattern.count("/") == route.count("/") and all(p == r or p.startswith("{") for p, r in parts)


def test_the_answers_are_those_of_the_record(house: House) -> None:
    def of(route: str, **query: str | int) -> Any:
        return house.ask(route, **query)

    assert [entry["id"] for entry in of("/v1/incidents")["incidents"]] == ["night-2", "night-1"]
    assert of("/v1/incidents/night-1/evidence")["files"] == [{"name": "stacks.txt", "size_bytes": 22}]
    assert of("/v1/remedies")["in_force"][0]["remedy"] == "half_batch"
    assert of("/v1/alerts")["receivers"][0]["waiting"] == 1
    assert of("/v1/jobs/night/output", lines=1)["text"] == "epoch 2\n"
    assert of("/v1/jobs/night/account")["lifetime"]["began"] == START.unix_s
    nothing = "no job 'nothing' is configured or recorded"
    assert of("/v1/jobs/nothing/account") == ("no_such_job", nothing, "one of: night, older")


def test_an_answer_of_the_record_waits_for_what_is_on_its_way_to_the_file_and_a_status_does_not(house: House) -> None:
    with house.daemon():
        client = Client(house.socket)
        client.get("/v1/status")
        assert house.awaited == []
        client.get("/v1/incidents")
        assert house.awaited == [RECORD_LIMIT_S]


def probed(batch: int, device: str = "cuda") -> Point:
    return Point(
        device=device,
        batch=batch,
        configured=64,
        weights_bytes=10_000_000,
        gradient_bytes=10_000_000,
        optimizer_bytes=20_000_000,
        graph_bytes=40_000_000 + batch * 10_000_000,
        update_bytes=60_000_000,
        reserved_bytes=None,
        other_bytes=0,
        card_bytes=1 << 30,
        torch="2.12.0",
    )


def test_an_estimate_is_kept_for_the_remedies_of_the_same_command_until_that_is_another(house: House) -> None:
    app = App(config_given=house.config, socket_given=house.socket)
    points = [probed(4), probed(32)]
    found = replace(estimate_memory(points, 64, None), largest_micro_batch=90)
    with house.daemon():
        assert keep_estimate(app, "night", ["true"], found, points, ran=True) == KEPT
        other = keep_estimate(app, "night", ["false"], replace(found, largest_micro_batch=1), points, ran=True)
        assert other == "not kept for remedies: night has another command here"
        counted = [probed(2, "cpu"), probed(4, "cpu")]
        assert keep_estimate(app, "night", ["true"], found, counted, ran=False) is None, "no GPU was measured"
    assert (keep_estimate(app, "night", ["true"], found, points, ran=True) or "").startswith("not kept for remedies: ")

    store = Store.open(f"sqlite:///{house.database}", START, "boot")
    kept = KeptEstimate(torch="2.12.0", card_bytes=1 << 30, configured=64, largest=90, ran=True)
    assert KeptEstimates(store, {"night": ["true"]}.get).find("night") == kept
    assert KeptEstimates(store, {"night": ["true", "--batch", "8"]}.get).find("night") is None
    assert KeptEstimates(store, {"day": ["true"]}.get).find("day") is None
    store.close(START)


def test_metrics_hold_the_state_of_the_job_and_what_is_recorded(house: House) -> None:
    with house.daemon():
        lines = call(house, "metrics").stdout.splitlines()
    assert 'rocm_supervisor_training_phase{training="night",phase="stopped"} 1' in lines
    assert 'rocm_supervisor_alerts_waiting{sink="phone"} 1' in lines
    assert 'rocm_supervisor_alerts_retrying{sink="phone"} 0' in lines
    proven = 'rocm_supervisor_training_last_proven_checkpoint_timestamp_seconds{training="night"} 1700000000.0'
    assert proven in lines
    assert not [line for line in lines if line.startswith("rocm_supervisor_training_loss")]
    assert call(house, "metrics").exit_code == 4


def test_evidence_that_was_removed_is_distinguished_from_evidence_that_may_not_be_read(house: House) -> None:
    (house.evidence / "stacks.txt").unlink()
    house.evidence.rmdir()
    gone = ("no_evidence", f"{house.evidence}: No such file or directory", CLEARED)
    assert house.ask("/v1/incidents/night-1/evidence") == gone
    house.evidence.symlink_to("/etc")
    refused: Any = house.ask("/v1/incidents/night-1/evidence")
    assert refused[0] == "unreadable"
    assert "start the daemon" in refused[2]


def test_during_a_triage_the_output_is_the_attempts(house: House) -> None:
    current = house.state / "jobs/night/current"
    current.unlink()
    current.symlink_to("triage-2-1")
    answer: Any = house.ask("/v1/jobs/night/output", lines=1)
    assert (answer["attempt"], answer["text"]) == (2, "epoch 2\n")


def forget(house: House, *words: str) -> Result:
    return call(house, "forget", *words)


def call(house: House, *words: str) -> Result:
    given = ["--socket", str(house.socket), "--config", str(house.config)]
    return CliRunner().invoke(cli, [*given, *words], obj=App(), input="n\n")


def test_a_job_that_is_not_configured_is_forgotten_with_all_that_it_left(house: House) -> None:
    folder = house.leave_old_job()
    with house.daemon():
        refused = forget(house, "older")
        assert (refused.exit_code, folder.exists()) == (5, True)
        assert "1 attempts (" in refused.stderr
        assert "generations (" in refused.stderr
        done = forget(house, "older", "--yes")
        assert done.exit_code == 0, done.stderr
        assert "older: 4 rows of the record deleted" in done.stdout
        assert [path.name for path in (house.state / "jobs").iterdir()] == ["night"]
        assert forget(house, "older", "--yes").exit_code == 1
        # As a daemon leaves it that is killed after it has deleted the rows.
        (house.state / "jobs" / ".forgotten-older" / "1").mkdir(parents=True)
        assert house.forget_jobs.forget("older").folder_removed
        assert [path.name for path in (house.state / "jobs").iterdir()] == ["night"]
    archive = Archive(house.database)
    assert [job.name for job in archive.jobs()] == ["night"]
    assert [incident.job for incident in archive.incidents()] == ["night", "night"]
    assert Path("/etc").is_dir()
    with closing(sqlite3.connect(house.database)) as connection:
        (note,) = connection.execute("SELECT key FROM notes WHERE key LIKE 'learned%'").fetchall()
    assert note == ("learned limits of older-two: a setting",)


def test_a_job_that_is_configured_or_runs_is_not_forgotten(house: House) -> None:
    folder = house.leave_old_job()
    house.running.append(folder / "1")
    with house.daemon():
        for job, why in (("night", "but still configured"), ("older", "a training of older may still be running")):
            refused = forget(house, job, "--yes")
            assert (refused.exit_code, why in refused.stderr) == (5, True)
        assert "Continue?" not in forget(house, "neither").output
        unknown = forget(house, "..", "--yes")
        assert (unknown.exit_code, "no job '..' is configured or recorded" in unknown.stderr) == (1, True)
    assert folder.is_dir()
    assert (house.state / "jobs/night").is_dir()


def test_disk_use_is_counted_by_job_and_kind(house: House) -> None:
    house.leave_old_job()
    answer: Any = house.ask("/v1/disk")
    older, night = answer["jobs"]
    assert (older["job"], older["configured"], night["configured"]) == ("older", False, True)
    assert older["attempts"] == 1
    assert older["attempts_bytes"] >= 10_000
    assert older["evidence_bytes"] >= 20_000
    assert older["generations_bytes"] >= 50_000
    assert older["snapshots_bytes"] == 0
    assert answer["database_bytes"] >= house.database.stat().st_size
    text = call(house, "du").stdout.splitlines()
    assert text[0].split()[:3] == ["JOB", "TOTAL", "ATTEMPTS"]
    assert "supervisorctl forget older removes it" in text[1]
    assert text[-1].startswith("not counted: what was moved aside next to the checkpoints")


def test_only_a_training_that_stands_given_up_can_be_acknowledged(house: House) -> None:
    with house.daemon():
        running = call(house, "alerts", "ack", "night")
        unknown = call(house, "alerts", "ack", "night-99")
    assert running.exit_code != 0
    assert "night is stopped: there are no reminders of it" in running.stderr
    assert "'night-99' is neither a training nor its latest incident" in unknown.stderr
    house.job = replace(house.job, phase=Phase.FAILED)
    with house.daemon():
        assert call(house, "alerts", "ack", "night").output == "night: no more reminders until it is given up again\n"
