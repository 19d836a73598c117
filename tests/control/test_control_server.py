"""The control socket answers who may ask, turns down the rest, and garbage costs it nothing."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from view_by_hand import FREEZE, YOLO, FakeView, serving

from supervisor.children.worker_threads import WorkerThreads
from supervisor.control import connection, record_types, record_view, routes, types
from supervisor.control.client import Client, ControlError, UnreachableError
from supervisor.control.limits import CONNECTIONS_PER_USER
from supervisor.control.listen import ListenError, bind, from_systemd
from supervisor.control.refusals import NoRoom
from supervisor.control.server import ControlServer
from supervisor.core.events import Ask
from supervisor.store.errors import ArchiveError
from tests.rigs.no_threads import no_threads

REPOSITORY = Path(__file__).parents[2]
NOBODY = 65534


@pytest.fixture
def view(tmp_path: Path) -> FakeView:
    return FakeView(folder=tmp_path)


@pytest.fixture
def path(view: FakeView) -> Iterator[Path]:
    with serving(view) as where:
        yield where


@pytest.fixture
def client(path: Path) -> Client:
    return Client(path)


def talk(path: Path, request: bytes, *, end: bool = False) -> bytes:
    """Send raw bytes and return what comes back until the connection ends; with `end` nothing more is to come."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(20)
        peer.connect(str(path))
        answer = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            peer.sendall(request)
            if end:
                peer.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while chunk := peer.recv(65536):
                answer += chunk
        return answer


def refusal(client: Client, route: str, **body: object) -> ControlError:
    with pytest.raises(ControlError) as caught:
        client.post(route, **body)
    return caught.value


class TestAnswers:
    def test_status_shows_daemon_and_jobs(self, client: Client) -> None:
        answer = client.get("/v1/status")
        assert answer["schema"] == 1
        assert answer["daemon"]["pid"] == 4711
        assert answer["jobs"][0]["phase"] == "running"

    def test_no_answer_has_a_date_for_which_an_idle_server_would_wake_up_each_second(self, path: Path) -> None:
        answer = talk(path, b"GET /v1/status HTTP/1.1\r\nHost: daemon\r\nConnection: close\r\n\r\n")
        head = answer.split(b"\r\n\r\n", 1)[0].lower()
        assert head.startswith(b"http/1.1 200 ")
        assert b"\r\ndate:" not in head

    def test_what_is_unknown_is_null(self, client: Client) -> None:
        assert client.get("/v1/status")["jobs"][0]["loss"] is None

    def test_history_is_asked_by_job_and_length(self, client: Client, view: FakeView) -> None:
        view.history = [FREEZE, FREEZE, FREEZE]
        assert len(client.get("/v1/incidents", job="yolo", limit=2)["incidents"]) == 2
        view.jobs = [YOLO, msgspec.structs.replace(YOLO, name="other")]
        assert client.get("/v1/incidents", job="other")["incidents"] == []
        with pytest.raises(ControlError, match="no job 'unknown' is configured"):
            client.get("/v1/incidents", job="unknown")

    def test_an_incident_comes_with_its_story(self, client: Client) -> None:
        answer = client.get("/v1/incidents/yolo-2")
        assert answer["incident"]["resumed_from"]["step"] == 78_000
        assert answer["story"][0]["what"] == "decision"

    def test_what_is_not_there_is_reported_with_a_remedy(self, client: Client) -> None:
        with pytest.raises(ControlError) as caught:
            client.get("/v1/incidents/yolo-9")
        assert (caught.value.code, caught.value.remedy) == ("no_such_incident", "supervisorctl history lists them")
        error = refusal(client, "/v1/jobs/yol/stop")
        assert (error.code, error.remedy) == ("no_such_job", "yolo")

    def test_a_thread_that_there_is_no_room_for_is_an_answer_to_try_again_and_one_line_in_the_log(
        self, client: Client, view: FakeView, caplog: pytest.LogCaptureFixture
    ) -> None:
        for view.defect in (RuntimeError("can't start new thread"), MemoryError()):
            caplog.clear()
            with pytest.raises(ControlError) as caught:
                client.get("/v1/status")
            assert (caught.value.code, "try again" in caught.value.remedy) == ("no_room", True)
            assert [record.getMessage() for record in caplog.records] == ["control.no_room"]
        view.defect = None
        assert client.get("/v1/status")["jobs"]

    def test_without_room_for_its_own_thread_an_answer_is_refused_likewise(self) -> None:
        with no_threads(), pytest.raises(NoRoom):
            asyncio.run(routes.asked(lambda: None, WorkerThreads("answer")))

    def test_output_is_followed_from_where_it_was_left(self, client: Client, view: FakeView) -> None:
        file = view.folder / "output.txt"
        file.write_text("one\ntwo\nthree\n")
        first = client.get("/v1/jobs/yolo/output", lines=2)
        assert first["text"] == "two\nthree\n"
        with file.open("a") as stream:
            stream.write("four\n")
        then = client.get("/v1/jobs/yolo/output", after=first["next_offset"], attempt=first["attempt"])
        assert then["text"] == "four\n"

    def test_an_older_attempts_offset_begins_the_newer_one_again(self, client: Client, view: FakeView) -> None:
        (view.folder / "output.txt").write_text("fresh\n")
        assert client.get("/v1/jobs/yolo/output", after=9999, attempt=2)["text"] == "fresh\n"


class TestActions:
    @pytest.mark.parametrize("ask", [Ask.START, Ask.STOP, Ask.RESTART])
    def test_a_request_reaches_the_daemon_with_its_author(self, client: Client, view: FakeView, ask: Ask) -> None:
        answer = client.post(f"/v1/jobs/yolo/{ask.value}")
        assert view.asked == [("yolo", ask, f"uid {os.getuid()}", False)]
        assert answer["by"] == f"uid {os.getuid()}"

    def test_a_fresh_start_is_asked_for(self, client: Client, view: FakeView) -> None:
        client.post("/v1/jobs/yolo/start", fresh=True)
        assert view.asked[0][3] is True

    def test_an_estimate_is_given_to_the_daemon_within_bounds(self, client: Client, view: FakeView) -> None:
        given = {"command_sha256": "0" * 64, "torch": "2.12.0", "card_bytes": 1 << 34, "configured": 64, "ran": True}
        assert client.post("/v1/jobs/yolo/estimate", **given, largest=12)["job"] == "yolo"
        assert [estimate.largest for estimate in view.estimates] == [12]
        for wrong in (-1, 1 << 40, "12"):
            assert refusal(client, "/v1/jobs/yolo/estimate", **given, largest=wrong).code == "bad_request"

    def test_a_request_that_makes_no_sense_is_turned_down(self, client: Client, view: FakeView) -> None:
        view.refusal = "yolo is unkillable: its process is stuck in the kernel"
        error = refusal(client, "/v1/jobs/yolo/start")
        assert (error.code, str(error)) == ("refused", view.refusal)

    def test_shutting_down_is_not_for_the_socket(self, client: Client) -> None:
        assert refusal(client, "/v1/jobs/yolo/shut_down").code == "not_served"

    def test_a_reload_reports(self, client: Client, view: FakeView) -> None:
        view.report = types.ReloadReport(applied=["jobs.yolo.grace_s: 30.0 -> 60.0"])
        assert client.post("/v1/reload")["applied"] == ["jobs.yolo.grace_s: 30.0 -> 60.0"]

    @pytest.mark.parametrize("body", [{"fresh": "yes"}, {"fresh": 1}, {"fresh": False, "uid": 0}])
    def test_a_body_of_the_wrong_type_is_refused(self, client: Client, view: FakeView, body: dict[str, object]) -> None:
        assert refusal(client, "/v1/jobs/yolo/start", **body).code == "bad_request"
        assert view.asked == []

    def test_looking_by_post_and_acting_by_get_are_refused(self, client: Client, view: FakeView) -> None:
        assert refusal(client, "/v1/status").code == "not_served"
        with pytest.raises(ControlError, match="Method Not Allowed"):
            client.get("/v1/jobs/yolo/stop")
        assert view.asked == []


class TestGarbage:
    """Whatever comes, it is answered or hung up on, and the next client is served."""

    @pytest.mark.parametrize(
        ("request_bytes", "status"),
        [
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
            (b"GET\r\n\r\n", b"400"),
            (b"GET /v1/status HTTP/1.1\r\n\r\n", b"400"),  # no Host
            (b"GET /v1/status HTTP/1.1\r\nHost: daemon\r\nContent-Length: -1\r\n\r\n", b"400"),
            (b"GET /v1/status HTTP/1.1\r\nHost: daemon\r\nX: " + b"a" * 900_000, b"400"),
            (b"POST /v1/jobs/yolo/start HTTP/1.0\r\nHost: daemon\r\nContent-Length: 5\r\n\r\n{bad}", b"400"),
            (b"POST /v1/jobs/yolo/start HTTP/1.0\r\nHost: daemon\r\nContent-Length: 2\r\n\r\n[]", b"400"),
            (b"POST /v1/jobs/yolo/start HTTP/1.0\r\nHost: daemon\r\nContent-Length: 3\r\n\r\n\xff\xfe\xfd", b"400"),
            (
                b"POST /v1/jobs/yolo/start HTTP/1.0\r\nHost: daemon\r\nContent-Length: 20000\r\n\r\n" + b"[" * 20_000,
                b"413",
            ),
            (
                b"POST /v1/jobs/yolo/start HTTP/1.0\r\nHost: daemon\r\nContent-Length: 9000\r\n\r\n" + b"[" * 9_000,
                b"400",
            ),
            (b"GET /v1/incidents?limit=-1 HTTP/1.0\r\nHost: daemon\r\n\r\n", b"400"),
            (b"GET /v1/incidents?limit=%C2%B2 HTTP/1.0\r\nHost: daemon\r\n\r\n", b"400"),
            (b"GET /v1/incidents?limit=99999999999999999999999 HTTP/1.0\r\nHost: daemon\r\n\r\n", b"400"),
            (b"GET /v1/jobs/..%2f..%2fetc/output HTTP/1.0\r\nHost: daemon\r\n\r\n", b"404"),
            (b"GET /v1/jobs/%ff%00/output HTTP/1.0\r\nHost: daemon\r\n\r\n", b"404"),
            (b"GET /__class__ HTTP/1.0\r\nHost: daemon\r\n\r\n", b"404"),
            (b"GET /v1/status/ HTTP/1.0\r\nHost: daemon\r\n\r\n", b"404"),
            (b"DELETE /v1/status HTTP/1.0\r\nHost: daemon\r\n\r\n", b"405"),
        ],
    )
    def test_it_is_answered_as_an_error(self, path: Path, view: FakeView, request_bytes: bytes, status: bytes) -> None:
        answer = talk(path, request_bytes)
        assert answer.split(b" ")[1].startswith(status), answer[:200]
        assert view.asked == []
        assert Client(path).get("/v1/status")["schema"] == 1

    def test_random_bytes_lose_nothing(self, path: Path, view: FakeView) -> None:
        source = random.Random(20251114)
        for _ in range(50):
            talk(path, source.randbytes(source.randrange(1, 2000)), end=True)
            talk(path, b"POST /v1/jobs/yolo/start HTTP/1.1\r\n" + source.randbytes(source.randrange(1, 200)), end=True)
        assert view.asked == []
        assert Client(path).get("/v1/status")["schema"] == 1

    def test_a_chunked_body_that_breaks_off_in_garbage_does_nothing(self, path: Path, view: FakeView) -> None:
        head = b"POST /v1/jobs/yolo/start HTTP/1.1\r\nHost: daemon\r\nTransfer-Encoding: chunked\r\n\r\n"
        talk(path, head + b'5\r\n{"fre\r\nzz\r\n', end=True)
        assert view.asked == []
        assert Client(path).get("/v1/status")["schema"] == 1

    def test_a_defect_of_the_daemon_is_an_answer_and_not_a_hang(self, client: Client, view: FakeView) -> None:
        view.defect = RuntimeError("secret detail")
        with pytest.raises(ControlError) as caught:
            client.get("/v1/status")
        assert caught.value.code == "failed"
        assert "secret detail" not in str(caught.value)
        view.defect = None
        assert client.get("/v1/status")["schema"] == 1

    def test_a_record_that_cannot_be_read_is_named_with_what_to_do(self, client: Client, view: FakeView) -> None:
        view.record_defect = ArchiveError("/s/supervisor.db cannot be read: disk I/O error")
        with pytest.raises(ControlError, match="disk I/O error") as caught:
            client.get("/v1/incidents")
        assert caught.value.code == "record_unreadable"
        assert "supervisorctl status" in (caught.value.remedy or "")


class TestSlowClients:
    @pytest.mark.slow
    def test_silence_is_hung_up_on_while_others_are_served(self, path: Path) -> None:
        ended: list[bytes] = []
        requests = (
            b"",
            b"GET /v1/status HT",
            b"POST /v1/jobs/yolo/stop HTTP/1.1\r\nHost: daemon\r\nContent-Length: 9\r\n\r\n{",
        )
        silent = [threading.Thread(target=lambda item=request: ended.append(talk(path, item))) for request in requests]
        for item in silent:
            item.start()
        assert Client(path).get("/v1/status")["schema"] == 1
        for item in silent:
            item.join(connection.REQUEST_LIMIT_S + routes.BODY_LIMIT_S + 60)
        assert not any(item.is_alive() for item in silent)
        assert sorted(answer.split(b" ")[1] for answer in ended if answer) == [b"503"]

    def test_more_clients_than_are_served_at_once_get_that_answer(self, path: Path) -> None:
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(70)]
        try:
            for item in crowd:
                item.connect(str(path))
            assert b" 503 " in talk(path, b"GET /v1/status HTTP/1.0\r\nHost: daemon\r\n\r\n")
        finally:
            for item in crowd:
                item.close()
        deadline = time.perf_counter() + 120
        while b" 200 " not in talk(path, b"GET /v1/status HTTP/1.0\r\nHost: daemon\r\n\r\n"):
            assert time.perf_counter() < deadline, "the crowd has gone and still nobody is served"

    def test_a_crowd_that_asks_at_once_is_answered_by_few_threads(self, tmp_path: Path) -> None:
        """A view that takes long had a thread of its own for each of forty questions."""
        view = Crowded(folder=tmp_path)
        answers: list[bytes] = []
        request = b"GET /v1/status HTTP/1.1\r\nHost: daemon\r\nConnection: close\r\n\r\n"
        with serving(view) as path:
            asking = [threading.Thread(target=lambda: answers.append(talk(path, request))) for _ in range(20)]
            for item in asking:
                item.start()
            assert view.crowded.acquire(timeout=120)
            view.go.set()
            for item in asking:
                item.join(120)
        assert len(answers) == 20
        assert all(b" 200 " in answer for answer in answers)
        assert view.most == Crowded.EXPECTED


class Crowded(FakeView):
    """Answers none before as many are asked for at once as are expected to be."""

    EXPECTED = 8

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.go, self.crowded, self.lock = threading.Event(), threading.Semaphore(0), threading.Lock()
        self.under_way = self.most = 0

    def status(self, *, watched: bool = True) -> types.Status:
        with self.lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            if self.under_way == self.EXPECTED:
                self.crowded.release()
        # The rest of the crowd is on its way meanwhile; more threads would let it in.
        self.go.wait(120)
        time.sleep(0.2)
        with self.lock:
            self.under_way -= 1
        return super().status(watched=watched)


ASK_AS = """
import grp, os, sys
sys.path.insert(0, {root!r})
from supervisor.control.client import Client, ControlError
client = Client({path!r})
os.setgroups({groups}); os.setgid({gid}); os.setuid({uid})
for call in (lambda: client.get("/v1/status"), lambda: client.post("/v1/jobs/yolo/stop")):
    try:
        call(); print("ok")
    except ControlError as error:
        print(error.code)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
class TestWhoMayAsk:
    def ask_as(self, path: Path, *, uid: int, gid: int = NOBODY, groups: tuple[int, ...] = ()) -> list[str]:
        code = ASK_AS.format(root=str(REPOSITORY), path=str(path), uid=uid, gid=gid, groups=list(groups))
        for parent in path.parents[:1]:
            parent.chmod(0o755)
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.split()

    @pytest.mark.slow
    def test_the_socket_is_for_owner_and_group_alone(self, path: Path) -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert self.ask_as(path, uid=NOBODY) == ["permission", "permission"]

    @pytest.mark.slow
    def test_who_may_connect_but_does_not_belong_may_look_and_not_act(self, path: Path, view: FakeView) -> None:
        path.chmod(0o666)
        assert self.ask_as(path, uid=NOBODY) == ["ok", "not_allowed"]
        assert view.asked == []

    @pytest.mark.slow
    def test_a_member_of_the_sockets_group_may_act(self, view: FakeView, tmp_path: Path) -> None:
        listening = bind(tmp_path / "control.sock")
        os.chown(tmp_path / "control.sock", 0, 12345)
        for folder in (tmp_path, *tmp_path.parents):
            if not folder.stat().st_mode & stat.S_IXOTH:
                folder.chmod(0o755)
        server = ControlServer(view, listening, unlink=True)
        server.start()
        try:
            assert self.ask_as(server.path, uid=NOBODY, groups=(7, 12345)) == ["ok", "ok"]
            assert self.ask_as(server.path, uid=NOBODY, gid=12345) == ["ok", "ok"]
        finally:
            server.stop()
        assert [by for _, _, by, _ in view.asked] == [f"uid {NOBODY}", f"uid {NOBODY}"]


class TestListening:
    def test_a_dead_daemons_socket_is_replaced(self, tmp_path: Path) -> None:
        bind(tmp_path / "s").close()
        bind(tmp_path / "s").close()

    def test_a_living_daemons_socket_is_not_taken(self, path: Path) -> None:
        with pytest.raises(ListenError, match="another daemon listens"):
            bind(path)
        assert Client(path).get("/v1/status")["schema"] == 1

    def test_a_file_that_is_no_socket_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "s").write_text("precious")
        with pytest.raises(ListenError, match="is not a socket"):
            bind(tmp_path / "s")
        assert (tmp_path / "s").read_text() == "precious"

    def test_a_path_too_long_is_reported_with_a_remedy(self, tmp_path: Path) -> None:
        with pytest.raises(ListenError, match="at most 107 bytes"):
            bind(tmp_path / ("x" * 120))

    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
    def test_the_umask_does_not_change_the_mode(self, tmp_path: Path, umask: int) -> None:
        before = os.umask(umask)
        try:
            bind(tmp_path / "s").close()
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o660

    def test_a_socket_passed_to_another_process_is_not_ours(self) -> None:
        assert from_systemd({}) is None
        assert from_systemd({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) is None
        assert from_systemd({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"}) is None

    @pytest.mark.slow
    def test_a_socket_passed_by_systemd_is_served(self, tmp_path: Path) -> None:
        code = """
import os, sys
sys.path.insert(0, sys.argv[1])
from supervisor.control.limits import CONNECTIONS_PER_USER
from supervisor.control.listen import from_systemd
os.environ["LISTEN_PID"] = str(os.getpid())
passed = from_systemd(os.environ)
print(passed.getsockname(), passed.get_inheritable())
"""
        with bind(tmp_path / "s") as listening:
            fd = listening.fileno()
            shell = f'exec 3<&{fd}; LISTEN_FDS=1 exec "$0" -c "$1" "$2"'
            ran = subprocess.run(
                ["bash", "-c", shell, sys.executable, code, str(REPOSITORY)],
                pass_fds=(fd,), capture_output=True, text=True, timeout=120, check=True,
            )  # fmt: skip
        assert ran.stdout.split() == [str(tmp_path / "s"), "False"]

    def test_a_stopped_server_leaves_no_socket_behind(self, view: FakeView, tmp_path: Path) -> None:
        server = ControlServer(view, bind(tmp_path / "s"), unlink=True)
        server.start()
        Client(tmp_path / "s").get("/v1/status")
        server.stop()
        server.stop()
        assert not server.alive
        assert not (tmp_path / "s").exists()
        with pytest.raises(UnreachableError, match="no socket"):
            Client(tmp_path / "s").get("/v1/status")

    def test_a_server_that_ends_too_slowly_closes_its_socket_when_it_ends(self, view: FakeView, tmp_path: Path) -> None:
        """Until then its loop waits with the socket: an exception in its thread would fail this test."""
        server, is_free = ControlServer(view, bind(tmp_path / "s"), unlink=True), threading.Event()
        server.start()
        Client(tmp_path / "s").get("/v1/status")
        assert server._server._woken is not None
        loop, _ = server._server._woken
        loop.call_soon_threadsafe(is_free.wait)
        server.stop(limit_s=0.0)
        assert server.alive
        is_free.set()
        server.stop()
        assert (server.alive, server._listening.fileno()) == (False, -1)


class TestLength:
    def test_an_answer_that_no_client_would_read_is_a_failure_that_says_so(
        self, client: Client, view: FakeView
    ) -> None:
        view.jobs = [structs.replace(job, reason="x" * routes.ANSWER_LIMIT_BYTES) for job in view.jobs]
        with pytest.raises(ControlError, match="bytes") as caught:
            client.get("/v1/status")
        assert caught.value.code == "too_long"

    def test_of_very_many_checkpoints_the_first_are_reported(self, client: Client, view: FakeView) -> None:
        many = 3 * record_view.CHECKPOINTS_AT_ONCE
        view.saved = [
            record_types.CheckpointEntry(path=f"/{index}", saved_at=1.0, size_bytes=1) for index in range(many)
        ]
        reported = client.get("/v1/jobs/yolo/checkpoints")["checkpoints"]
        assert [report["path"] for report in reported] == [
            f"/{index}" for index in range(record_view.CHECKPOINTS_AT_ONCE)
        ]


FLOOD = """
import os, socket, time
os.setuid({uid})
peers = []
for _ in range(400):
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.connect({path!r})
        peer.send(b"GET /v1/st")
    except OSError:
        pass
    peers.append(peer)
print("open", flush=True)
time.sleep(60)
"""


class TestLimits:
    @pytest.mark.slow
    def test_one_users_half_requests_cost_a_few_descriptors_and_nobody_elses_answer(self, path: Path) -> None:
        path.chmod(0o666)
        path.parent.chmod(0o755)
        assert Client(path).get("/v1/status")["schema"] == 1  # it serves
        before = len(descriptors())
        code = FLOOD.format(path=str(path), uid=NOBODY)
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as flood:
            try:
                assert flood.stdout is not None
                assert flood.stdout.readline() == b"open\n"
                assert len(descriptors()) - before <= CONNECTIONS_PER_USER + 2
                assert Client(path).get("/v1/status")["schema"] == 1
            finally:
                flood.kill()

    def test_who_holds_too_many_gets_that_answer(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        held = [socket.socket(socket.AF_UNIX) for _ in range(CONNECTIONS_PER_USER)]
        try:
            for peer in held:
                peer.connect(str(path))
                peer.send(b"GET /v1/st")
            for _ in range(20):
                with pytest.raises(ControlError, match="too many connections") as caught:
                    Client(path).get("/v1/status")
                assert caught.value.code == "busy"
            logged = [record for record in caplog.records if record.msg == "control.connections_refused"]
            assert len(logged) == 1, "whoever asks again at once does not fill the log"
        finally:
            for peer in held:
                peer.close()
        until(lambda: Client(path).get("/v1/status")["schema"] == 1)

    @pytest.mark.alone(reason="compares processor time with a limit")
    def test_without_a_descriptor_left_it_neither_spins_nor_fills_the_log(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert Client(path).get("/v1/status")["schema"] == 1
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(20)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(descriptors()) + 1, hard))
        try:
            filler = []
            with suppress(OSError):
                while True:
                    filler.append(os.dup(0))
            spent_s = time.process_time()
            for peer in waiting:
                peer.connect(str(path))
            threading.Event().wait(1.0)
            assert time.process_time() - spent_s < 0.5
            assert len(caplog.records) <= len(waiting) + 2
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for item in filler:
                os.close(item)
            for peer in waiting:
                peer.close()
        until(lambda: Client(path).get("/v1/status")["schema"] == 1)


def descriptors() -> list[int]:
    return [int(item.name) for item in Path("/proc/self/fd").iterdir()]


def until(holds: Callable[[], bool]) -> None:
    end = time.perf_counter() + 120
    while time.perf_counter() < end:
        with suppress(ControlError):
            if holds():
                return
        threading.Event().wait(0.05)
    raise AssertionError("it did not come about")
