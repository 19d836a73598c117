"""Alerts reach a receiver that has troubles of its own, once each, while the daemon goes on deciding."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from house import House
from standardwebhooks.webhooks import Webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SLOWEST_ANSWER_S = 1.0


class Receiver(ThreadingHTTPServer):
    """Says 500 once to the first `failures` alerts and keeps what the others brought; under /hang it never answers."""

    daemon_threads = True

    def __init__(self, failures: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.failures = failures
        self.refused: set[str] = set()
        self.taken: list[tuple[dict[str, str], bytes]] = []
        self.hanging = 0
        self.end = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"

    def counted(self) -> Counter[tuple[str, str]]:
        """Return how often each incident was told, by type."""
        reported = [json.loads(body) for _, body in self.taken]
        return Counter(
            (report["type"], report["data"]["incident"]) for report in reported if "incident" in report["data"]
        )

    def handle_error(self, request: object, client_address: object) -> None:
        """The daemon may be gone before it heard the answer."""


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/hang":
            self.server.hanging += 1
            self.server.end.wait(120)
            return
        alert, refused = self.headers["webhook-id"], self.server.refused
        # Not one of them twice: its third try comes after five minutes.
        refuse = len(refused) < self.server.failures and alert not in refused
        if refuse:
            refused.add(alert)
        if not refuse:
            self.server.taken.append((dict(self.headers.items()), body))
        self.send_response(500 if refuse else 200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
        """Stay silent."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that fails twice."""
    item = Receiver(failures=2)
    try:
        yield item
    finally:
        item.end.set()
        item.shutdown()
        item.server_close()


def alert(name: str, url: str, home: House) -> str:
    """Return a receiver's table; its secret lies in a file of its own."""
    secret = home.folder / "secret"
    secret.write_text(SECRET + "\n")
    secret.chmod(0o600)
    return f'[alerts.{name}]\nurl = "{url}"\nsecret_file = "{secret}"\nallow_private = true\nmin_severity = "info"\n'


def delivered(home: House, sink: str) -> int:
    return int(home.query("SELECT COUNT(*) FROM alerts WHERE sink = ? AND state = 'delivered'", sink)[0][0])


@pytest.mark.calm(reason="compares a duration with a limit")
def test_each_incident_is_reported_once_though_receiver_and_daemon_fail(home: House, receiver: Receiver) -> None:
    """The receiver refuses twice, a second one never answers, and the daemon is killed while alerts wait."""
    alerts = alert("good", receiver.url("good"), home) + alert("slow", receiver.url("hang"), home)
    home.write(home.by_hand("one", "--wound", "kill:40,exit:80", "--steps", "130") + alerts)
    home.start()
    home.until(lambda: receiver.hanging > 0 and len(receiver.refused) > 0, 40, "both receivers to be tried")
    began = time.perf_counter()
    assert home.job("one")["attempt"] >= 1
    assert time.perf_counter() - began < SLOWEST_ANSWER_S
    home.kill()
    home.start()
    home.phase("one", "finished", limit_s=60)
    wanted = {(f"incident.{what}", f"one-{n}") for what in ("opened", "resumed") for n in (1, 2)}
    home.until(lambda: set(receiver.counted()) >= wanted, 60, "every incident to be told")
    queued = home.query("SELECT COUNT(*) FROM alerts WHERE sink = 'good'")[0][0]
    home.until(lambda: delivered(home, "good") == queued, 60, "every alert to be delivered")
    assert set(receiver.counted().values()) == {1}
    for headers, body in receiver.taken:
        Webhook(SECRET).verify(body, {name.lower(): value for name, value in headers.items()})
    assert len({headers["webhook-id"] for headers, _ in receiver.taken}) == len(receiver.taken)
    assert delivered(home, "slow") == 0


@pytest.mark.calm(reason="compares a duration with a limit")
def test_a_receiver_that_never_answers_holds_up_neither_questions_nor_the_end(home: House, receiver: Receiver) -> None:
    home.write(home.by_hand("one", "--wound", "kill:30") + alert("slow", receiver.url("hang"), home))
    home.start()
    home.until(lambda: receiver.hanging > 0, 30, "the receiver to hang")
    home.resumed("one")
    began = time.perf_counter()
    assert home.status() is not None
    assert time.perf_counter() - began < SLOWEST_ANSWER_S
    assert home.stop() == 0


def test_a_receiver_that_cannot_be_read_keeps_nothing_from_being_watched(home: House, receiver: Receiver) -> None:
    """The address lies in a file that is not there: the training runs, and the alert comes once the file does."""
    receiver.failures = 0
    address = home.folder / "address"
    alerts = f'[alerts.phone]\nurl_file = "{address}"\nallow_private = true\n'
    home.write(home.by_hand("well", "--steps", "100000") + alerts)
    home.start()
    home.until(lambda: home.job("well")["phase"] == "running", 30, "the training to run")
    status = home.status()
    assert status is not None
    assert status["daemon"]["alert_problems"] == [
        f"alerts.phone.url_file: {address} cannot be read: No such file or directory"
    ]
    refused = home.ctl("alerts", "test", "phone")
    assert refused.returncode == 5, refused
    address.write_text(receiver.url("hook"))
    home.until(lambda: not (home.status() or {"daemon": {}})["daemon"]["alert_problems"], 60, "it to be read again")
    sent = home.ctl("alerts", "test", "phone")
    assert (sent.returncode, sent.stdout) == (0, "delivered to phone\n"), sent
    assert [json.loads(body)["type"] for _, body in receiver.taken] == ["test"]
    assert home.ctl("alerts").returncode == 0


def test_a_phone_is_sent_messages_in_words_and_a_mute_holds_them_until_it_ends(home: House, receiver: Receiver) -> None:
    """A program gets each notice as it happens meanwhile: the mute is the phone's alone."""
    receiver.failures = 0
    notices = home.folder / "notices"
    phone = f'[alerts.phone]\nkind = "ntfy"\nurl = "{receiver.url("night-7hq2")}"\nallow_private = true\n'
    program = (
        f"""[alerts.own]\nkind = "command"\ncommand = ["/bin/sh", "-c", "cat >> '{notices}'; echo >> '{notices}'"]\n"""
    )
    home.write(home.by_hand("one", "--wound", "kill:30", table="autostart = false\n") + phone + program)
    home.start()
    assert home.ctl("alerts", "mute", "1h", "phone").returncode == 0
    assert home.ctl("start", "one").returncode == 0
    home.resumed("one")
    home.until(lambda: notices.is_file() and "incident.resumed" in notices.read_text(), 60, "the program to be run")
    assert receiver.taken == []
    (muted,) = (home.status() or {})["daemon"]["alert_problems"]
    assert muted.startswith("alerts.phone: muted for ")
    assert home.ctl("alerts", "unmute").returncode == 0

    def titles() -> list[str]:
        return [json.loads(body)["title"] for _, body in list(receiver.taken)]

    again = "one is training again (nothing to do)"
    home.until(lambda: again in titles(), 60, "the phone to be sent what waited")
    assert titles()[0].startswith("one: ")
