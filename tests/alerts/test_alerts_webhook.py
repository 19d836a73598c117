"""One delivery attempt ends in time, goes where it was meant to go, and is told for what it was."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import quote

import pytest
from certificate_by_hand import make_certificate
from endless_handshake_by_hand import endless_handshake, within_limit
from receiver_by_hand import (
    SECRET,
    Answering,
    Receiver,
    drip,
    endless,
    endpoint,
    garbage,
    hang,
    hang_up,
    large,
    post,
    raw,
    receiver,
    status,
    webhook,
)
from standardwebhooks import Webhook, WebhookVerificationError

from supervisor.alerts.channel import Answer
from supervisor.alerts.http import LINES_BYTES_MAX, Request, exchange
from supervisor.alerts.signing import Secret, read_secrets

BODY = json.dumps({"type": "incident.opened", "data": {"message": "steht \u2014 \u505c"}}).encode()
NOW = time.time_ns() / 1e9


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


def send(server: Receiver, *answers: Answering, **changes: Any) -> Answer:
    server.answers = list(answers)
    # The standard's library takes nothing older than five minutes, and the suite may have run that long already.
    return post(webhook(server.port, **changes), BODY, time.time_ns() / 1e9)


def test_a_delivery_is_verified_by_the_library_of_the_standard(server: Receiver) -> None:
    assert send(server) == Answer(delivered=True)
    (received,) = server.received
    assert Webhook(SECRET).verify(received.body, received.headers) == json.loads(BODY)
    assert received.path == "/hook?token=s3cret"
    assert received.headers["host"] == f"127.0.0.1:{server.port}"
    assert received.headers["content-type"] == "application/json"
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(received.body + b" ", received.headers)


def test_while_a_secret_is_changed_both_verify(server: Receiver) -> None:
    other = "whsec_" + "QUJD" * 8
    send(server, secrets=(Secret(other), Secret(SECRET)))
    (received,) = server.received
    for secret in (SECRET, other):
        Webhook(secret).verify(received.body, received.headers)


def test_without_a_secret_it_goes_unsigned(server: Receiver) -> None:
    assert send(server, secrets=()).delivered
    assert "webhook-signature" not in server.received[0].headers
    assert server.received[0].headers["webhook-id"] == "msg_1"


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
def test_every_status_of_success_is_one(server: Receiver, code: int) -> None:
    assert send(server, status(code)).delivered


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_a_redirect_is_a_failure_and_is_not_followed(server: Receiver, code: int) -> None:
    answer = send(server, status(code, Location=f"http://127.0.0.1:{server.port}/other"))
    assert not answer.delivered
    assert "redirects are not followed" in (answer.error or "")
    assert len(server.received) == 1


@pytest.mark.parametrize("code", [400, 401, 404, 500])
def test_what_the_receiver_says_is_quoted_without_what_could_act_on_a_terminal(server: Receiver, code: int) -> None:
    answer = send(server, status(code, b"\x1b]0;owned\x07no such\n\x1b[31mchannel\xff\x00"))
    assert answer == Answer(delivered=False, error=f"status {code}: no such channel\ufffd", status=code)


SECRET_PATHS = ("/hook?token=s3cret", "/services/T024BE7LD/B0/xoxqV3ryS3cr3tIndeed", "/api/abcdefghijklmnopqrstuvwx")


@pytest.mark.parametrize("target", SECRET_PATHS)
@pytest.mark.parametrize(
    "echo",
    [
        lambda path: path,
        lambda path: f"no route for POST {path} here",
        lambda path: f"<p>Cannot POST {escape(path, quote=True).replace('/', '&#x2F;')}</p>",
        lambda path: json.dumps({"path": path}).replace("/", "\\/"),
        lambda path: quote(path, safe=""),
        lambda path: quote(quote(path, safe=""), safe=""),
        lambda path: path.upper(),
        lambda path: " ".join(path.split("/")),
        lambda path: path[: len(path) - 3],
        lambda path: path.rpartition("/")[2],
    ],
)
def test_a_receiver_that_echoes_the_path_does_not_give_it_away(
    server: Receiver, target: str, echo: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """With many receivers the path is the password: it must stand neither in the log nor in the record."""
    output = echo(target)
    answers: list[Answering] = [
        status(404, output.encode()),
        status(410, output.encode()),
        status(302, output.encode(), Location=output),
        status(503, output.encode(), Retry_After=output),
        raw(f"HTTP/1.1 {output}\r\n\r\n".encode()),
        raw(f"{output}\r\n\r\n".encode()),
        raw(f"HTTP/1.1 500 No\r\n{output}\r\n: x\r\n\r\n".encode()),
    ]
    for answering in answers:
        reported = send(server, answering, target=target, read_timeout_s=0.3)
        assert not reported.delivered
        for text in (reported.error or "", caplog.text):
            assert output[-20:].lower() not in text.lower()
            assert target[-12:-4].lower() not in text.lower()


def test_what_says_nothing_of_the_address_is_still_quoted(server: Receiver) -> None:
    output = b'{"message": "Unknown Webhook", "code": 10015}'
    reported = send(server, status(404, output), target="/api/webhooks/112233445566778899/Zr0-aQ1")
    assert reported.error == "status 404: " + output.decode()


def test_gone_is_for_good(server: Receiver) -> None:
    answer = send(server, status(410))
    assert answer.final
    assert not answer.delivered


@pytest.mark.parametrize("code", [429, 502, 503, 504])
def test_a_receiver_that_asks_for_time_is_given_it(server: Receiver, code: int) -> None:
    assert send(server, status(code, Retry_After="120")).retry_after_s == 120.0
    began_unix_s = time.time_ns() / 1e9
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(began_unix_s + 90))
    wait_s = send(server, status(code, Retry_After=date)).retry_after_s
    assert wait_s is not None
    assert 90 - 1.1 - (time.time_ns() / 1e9 - began_unix_s) <= wait_s <= 90 + 1.1


@pytest.mark.parametrize("text", ["soon", "-5", "1e9", "9" * 400, "\u0661\u0662"])
def test_a_time_that_is_none_is_no_time(server: Receiver, text: str) -> None:
    encoded = text.encode().decode("latin-1")
    assert send(server, status(503, Retry_After=encoded)).retry_after_s is None


def test_a_time_asked_for_with_another_status_does_not_count(server: Receiver) -> None:
    assert send(server, status(400, Retry_After="120")).retry_after_s is None


@pytest.mark.alone(reason="compares a duration with a limit")
@pytest.mark.parametrize("answering", [hang, drip, endless, garbage, hang_up])
def test_a_receiver_that_misbehaves_is_a_failed_attempt_in_bounded_time(server: Receiver, answering: Answering) -> None:
    began = time.perf_counter()
    answer = send(server, answering, read_timeout_s=0.4)
    assert not answer.delivered
    assert answer.error
    assert time.perf_counter() - began < 3.0
    if answering in (hang, drip):
        assert answer.error == "no answer within 0.4 s"


@pytest.mark.parametrize("code", [200, 500])
def test_of_an_answer_of_100_mb_the_beginning_is_read(server: Receiver, code: int) -> None:
    """With or without the name of the message that a service answers with."""
    sent: SimpleQueue[int] = SimpleQueue()
    answering = large(code, 100_000_000, sent)
    plain = send(server, answering)
    server.answers = [answering]
    request = Request(body=BODY, message=lambda body: str(len(body)))
    named = exchange(endpoint(server.port), request, NOW)
    assert plain.delivered is named.delivered is (code == 200)
    assert named.message == ("262144" if code == 200 else None)
    assert (plain.error or "").startswith("status 500: xxx" if code == 500 else "")
    assert max(sent.get(timeout=60), sent.get(timeout=60)) < 20_000_000, "what lies in the connection's buffers"


def test_a_compressed_bomb_is_not_unpacked(server: Receiver) -> None:
    answer = send(server, status(500, b"\x1f\x8b" + b"\x00" * 100_000, Content_Encoding="gzip"))
    assert (answer.error or "").startswith("status 500")


def test_nobody_listening_is_a_failed_attempt() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        answer = post(webhook(taken.getsockname()[1]), BODY, NOW)
    assert "no connection to 127.0.0.1" in (answer.error or "")
    assert "refused" in (answer.error or "")


@pytest.mark.alone(reason="compares a duration with a limit")
def test_a_listener_that_never_accepts_is_a_failed_attempt_in_bounded_time() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        began = time.perf_counter()
        answer = post(webhook(deaf.getsockname()[1], read_timeout_s=0.3, connect_timeout_s=0.3), BODY, NOW)
    assert not answer.delivered
    assert time.perf_counter() - began < 3.0


def test_a_private_address_needs_the_owners_word(server: Receiver) -> None:
    answer = send(server, allow_private=False)
    assert "allow_private" in (answer.error or "")
    assert server.received == []


def test_the_address_that_was_checked_is_the_one_connected_to(server: Receiver) -> None:
    """A name that resolves to something else when asked again must gain nothing by it."""
    asked: list[str] = []

    def turning(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "169.254.169.254"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    answer = post(webhook(server.port, host="hooks.example", resolve=turning), BODY, NOW)
    assert answer.delivered
    assert asked == ["hooks.example"]
    assert server.received[0].headers["host"] == f"hooks.example:{server.port}"


def test_of_several_addresses_the_next_is_tried_and_forbidden_ones_are_not(server: Receiver) -> None:
    def several(_host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        addresses = ("169.254.169.254", "127.0.0.9", "127.0.0.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    answer = post(webhook(server.port, host="hooks.example", resolve=several), BODY, NOW)
    assert answer.delivered


def test_a_name_that_does_not_resolve_is_a_failed_attempt() -> None:
    def unknown(_host: str, _port: int, **_: Any) -> list[tuple[Any, ...]]:
        raise socket.gaierror(-2, "Name or service not known")

    answer = post(webhook(1, host="hooks.example", resolve=unknown), BODY, NOW)
    assert "does not resolve" in (answer.error or "")


def test_no_proxy_of_the_environment_is_used(server: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    assert send(server).delivered


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return make_certificate(tmp_path)


@pytest.fixture
def tls_server(server: Receiver, certificate: Path) -> Receiver:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server


def over_tls(server: Receiver, host: str, read_timeout_s: float = 60.0) -> Answer:
    def here(_host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    return post(webhook(server.port, scheme="https", host=host, read_timeout_s=read_timeout_s, resolve=here), BODY, NOW)


@pytest.mark.slow
def test_over_tls_the_certificate_must_be_trusted_and_of_the_name(
    tls_server: Receiver, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "certificate" in (over_tls(tls_server, "hooks.example").error or "")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert over_tls(tls_server, "hooks.example") == Answer(delivered=True)
    assert "match" in (over_tls(tls_server, "other.example").error or "")
    assert len(tls_server.received) == 1


@pytest.mark.alone(reason="compares a duration with a limit")
def test_over_tls_a_receiver_that_hangs_is_cut_off_too(
    tls_server: Receiver, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    for answering in (hang, drip):
        tls_server.answers = [answering]
        began = time.perf_counter()
        assert over_tls(tls_server, "hooks.example", 1.0).error == "no answer within 1 s"
        assert time.perf_counter() - began < 4.0


def test_a_handshake_without_an_end_is_cut_off() -> None:
    """A socket's own limit is looked at between two reads that wait, and none of these waits."""
    with endless_handshake() as port:
        hostile = webhook(port, scheme="https", connect_timeout_s=0.2)
        answer = within_limit(lambda: post(hostile, BODY, NOW))
    assert "no connection to 127.0.0.1" in (answer.error or "")


@pytest.mark.parametrize(
    "content",
    [
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (number, b"y" * 60_000) for number in range(90)) + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000 + b"HTTP/1.1 200 OK\r\n\r\n",
    ],
    ids=["long", "continue"],
)
def test_headers_are_read_up_to_a_limit_for_all_of_them(server: Receiver, content: bytes) -> None:
    """90 of 60 kB each took 50 MB of the daemon's memory, and answers of status 100 all the time that there was."""
    answer = send(server, raw(content))
    assert answer.error == f"no answer: more than {LINES_BYTES_MAX} bytes of headers"


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_!!!!", "whsec_QUJD", "whsec_" + "QUJD" * 30])
def test_a_secret_that_is_none_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="secret") as caught:
        read_secrets(text)
    assert not text or text[6:] not in str(caught.value) or not text[6:]


def test_a_secret_does_not_show() -> None:
    secret = Secret(SECRET)
    shown = f"{secret!r} {secret} {webhook(1)!r}"
    assert SECRET[6:] not in shown
    assert "s3cret" not in shown
