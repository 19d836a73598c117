"""Alerts by mail: encrypted, to the server that was meant, one message that no text can turn into another."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from certificate_by_hand import make_certificate
from endless_handshake_by_hand import endless_handshake, within_limit
from hypothesis import HealthCheck, given, settings
from mail_server_by_hand import MailServer, mail_server
from msgspec import structs
from notices_by_hand import notice, notices, resumed

from supervisor.alerts.channel import Answer, KeptNotice
from supervisor.alerts.channels.email import REPLY_BYTES_MAX, Email, EmailSettings
from supervisor.alerts.settings import ReceiverError
from supervisor.config import check_text

NOW = 1_763_600_000.0
PASSWORD = "c0rrect-h0rse-battery"
HEADERS = [
    "From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted",
    "Content-Type", "Content-Transfer-Encoding", "MIME-Version",
]  # fmt: skip
THREAD = {"In-Reply-To", "References"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    return certificate


@pytest.fixture
def plain() -> Iterator[MailServer]:
    with mail_server() as running:
        yield running


def here(_: str, port: int, **__: Any) -> list[tuple[Any, ...]]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


def mail(server: MailServer, password: str | None = None, **changes: Any) -> Email:
    given = {"host": "hooks.example", "port": server.port, "sender": "box@example.org", "to": ["me@example.org"]}
    given |= {"allow_private": True, "read_timeout_s": 5.0, "user": "me" if password else None}
    chosen = EmailSettings(**{**given, **changes})
    return replace(Email.from_settings("post", replace_user(chosen)), settings=chosen, password=password, resolve=here)


def replace_user(chosen: EmailSettings) -> EmailSettings:
    """Return settings without the login, whose password is given by hand."""
    return EmailSettings(host=chosen.host, sender=chosen.sender, to=chosen.to, time_zone="UTC")


def deliver(channel: Email, sent: KeptNotice) -> Answer:
    return channel.send(sent, channel.render(sent), NOW)


def read(content: bytes) -> EmailMessage:
    parsed = message_from_bytes(content, policy=default)
    assert isinstance(parsed, EmailMessage)
    return parsed


@pytest.mark.slow
def test_it_is_encrypted_before_the_password_is_sent(trusted: Path) -> None:
    with mail_server(str(trusted)) as server:
        assert deliver(mail(server, PASSWORD), resumed()) == Answer(delivered=True)
    (taken,) = server.taken
    assert (taken.encrypted, taken.login) == (True, f"\0me\0{PASSWORD}")
    assert (taken.sender, taken.recipients, server.broken_rules) == ("box@example.org", ["me@example.org"], [])


@pytest.mark.slow
def test_tls_from_the_first_byte(trusted: Path) -> None:
    with mail_server(str(trusted), implicit_tls=True) as server:
        assert deliver(mail(server, PASSWORD, security="tls"), resumed()) == Answer(delivered=True)
    assert server.taken[0].encrypted


def test_a_server_without_tls_gets_nothing(plain: MailServer) -> None:
    answer = deliver(mail(plain, PASSWORD), resumed())
    assert not answer.delivered
    assert "STARTTLS" in (answer.error or "")
    assert plain.taken == []


@pytest.mark.slow
@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_certificate_that_is_not_trusted_or_of_another_name_gets_nothing(
    certificate: Path, security: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mail_server(str(certificate), implicit_tls=security == "tls") as server:
        assert "certificate" in (deliver(mail(server, security=security), resumed()).error or "")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        answer = deliver(mail(server, security=security, host="other.example"), resumed())
        assert "match" in (answer.error or "")
    assert server.taken == []


def test_without_encryption_only_to_this_machine(plain: MailServer) -> None:
    def elsewhere(_: str, port: int, **__: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.1.2.3", port))]

    local = mail(plain, security="none")
    assert deliver(local, resumed()).delivered
    assert "not on this machine" in (deliver(replace(local, resolve=elsewhere), resumed()).error or "")


def test_a_private_address_needs_permission(plain: MailServer) -> None:
    answer = deliver(mail(plain, security="none", allow_private=False), resumed())
    assert "allow_private" in (answer.error or "")


def test_the_message_of_a_training_that_goes_on(plain: MailServer) -> None:
    assert deliver(mail(plain, security="none", to=["me@example.org", "team@example.org"]), resumed()).delivered
    message = read(plain.taken[0].content)
    assert message["Subject"] == "yolo is training again (nothing to do)"
    assert message["To"] == "me@example.org, team@example.org"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["Date"].datetime.isoformat() == "2026-11-21T03:00:00+00:00"
    assert message.get_content().splitlines()[:2] == [
        "Resumed from step 1,204,600. Cost: 49 s without a step, 282 steps to redo.",
        "It was: no step for 41 s",
    ]


def test_the_notices_of_an_incident_are_one_thread_and_each_has_one_id(plain: MailServer) -> None:
    channel = mail(plain)
    opened = read(channel.render(notice("incident.opened", incident="yolo-12", host="box")))
    over = read(channel.render(notice("incident.resumed", incident="yolo-12", host="box")))
    other = read(channel.render(notice("incident.opened", incident="yolo-13", host="box")))
    assert opened["References"] == over["References"] != other["References"]
    assert opened["Message-ID"] == read(channel.render(notice("incident.opened", incident="yolo-12")))["Message-ID"]


def test_a_picture_is_attached_below_the_text(plain: MailServer) -> None:
    channel, picture = mail(plain, security="none"), b"\x89PNG\r\n\x1a\n..."
    assert channel.send_with_picture(resumed(), channel.render(resumed()), picture, NOW) == Answer(delivered=True)
    assert deliver(channel, resumed()).delivered
    with_picture, without = (read(taken.content) for taken in plain.taken)
    text, image = with_picture.iter_parts()
    assert text.get_content() == without.get_content()
    assert (image.get_content_type(), image.get_filename(), image.get_content()) == ("image/png", "loss.png", picture)
    assert (with_picture["Subject"], with_picture["Message-ID"]) == (without["Subject"], without["Message-ID"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sent=notices())
def test_no_text_becomes_a_header_a_recipient_or_a_second_message(plain: MailServer, sent: KeptNotice) -> None:
    plain.taken.clear()
    assert deliver(mail(plain, security="none"), sent) == Answer(delivered=True)
    assert plain.broken_rules == []
    (taken,) = plain.taken
    assert taken.recipients == ["me@example.org"]
    message = read(taken.content)
    assert [name for name in message if name not in THREAD] == HEADERS
    assert 1 <= len(message["Subject"]) <= 70
    assert taken.content.split(b"\r\n\r\n")[0].isascii()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "output", "final"),
    [
        ("EHLO", "421 too busy", False),
        ("AUTH", "535 wrong password", False),
        ("MAIL", "452 full", False),
        ("RCPT", "550 no such mailbox", False),
        ("DATA", "451 not now", False),
        ("MESSAGE", "451 greylisted", False),
        ("MESSAGE", "554 refused as spam", True),
    ],
)
def test_a_refusal_is_a_failed_attempt_and_final_only_where_the_message_itself_is_refused(
    trusted: Path, word: str, output: str, final: bool
) -> None:
    with mail_server(str(trusted)) as server:
        server.answers = {word: [output] * 3, "HELO": ["421 too busy"]}
        answer = deliver(mail(server, PASSWORD), resumed())
    assert (answer.delivered, answer.final) == (False, final)
    assert output[:3] in (answer.error or "")


def test_of_several_recipients_those_that_are_refused_are_counted(plain: MailServer) -> None:
    plain.answers["RCPT"] = ["550 no such mailbox"]
    answer = deliver(mail(plain, security="none", to=["gone@example.org", "me@example.org"]), resumed())
    assert answer == Answer(delivered=True, error="1 of 2 recipients were refused")
    assert plain.taken[0].recipients == ["me@example.org"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "echo", [lambda text: text, str.upper, lambda text: "AG1lAGMwcnJlY3QtaDByc2UtYmF0dGVyeQ==", lambda text: text[3:]]
)
def test_a_server_that_repeats_the_password_does_not_give_it_away(
    trusted: Path, echo: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    with mail_server(str(trusted)) as server:
        server.answers["AUTH"] = [f"535 wrong: {echo(PASSWORD)}"] * 3
        channel = mail(server, PASSWORD)
        answer = deliver(channel, resumed())
    assert answer.error == "status 535: (its answer is not shown because it contains the password)"
    assert PASSWORD not in f"{channel!r} {channel.destination} {caplog.text}"


@pytest.mark.alone(reason="compares a duration with a limit")
@pytest.mark.parametrize("output", ["drip", "hang", "close"])
def test_a_server_that_misbehaves_is_a_failed_attempt_in_bounded_time(plain: MailServer, output: str) -> None:
    plain.answers["MAIL"] = [output]
    answer = deliver(mail(plain, security="none", read_timeout_s=0.5), resumed())
    assert not answer.delivered
    if output != "close":
        assert answer.error == "no answer within 0.5 s"


@pytest.mark.parametrize("word", ["GREETING", "EHLO", "MAIL"])
def test_of_a_reply_without_end_the_beginning_is_read(plain: MailServer, word: str) -> None:
    plain.answers[word] = ["flood"]
    answer = deliver(mail(plain, security="none", read_timeout_s=60.0), resumed())
    assert not answer.delivered
    assert f"a reply of more than {REPLY_BYTES_MAX} bytes" in (answer.error or "")


@pytest.mark.parametrize("security", ["tls", "starttls"])
def test_a_handshake_without_an_end_is_cut_off(security: str) -> None:
    words = (b"250-hello\r\n250 STARTTLS\r\n", b"220 go on\r\n") if security == "starttls" else ()
    limits = {"connect_timeout_s": 10.0, "read_timeout_s": 0.3} if words else {"connect_timeout_s": 0.2}
    with mail_server() as server:
        channel = mail(server)
    with endless_handshake(*words, greeting=b"220 hello\r\n" if words else b"") as port:
        hostile = replace(channel, settings=structs.replace(channel.settings, port=port, security=security, **limits))
        answer = within_limit(lambda: deliver(hostile, resumed()))
    assert answer.error == "no answer within 0.3 s" if words else "no connection to" in (answer.error or "")


def test_nobody_listening_is_a_failed_attempt() -> None:
    with mail_server() as server:
        channel = mail(server, security="none")
    assert "no connection to hooks.example (127.0.0.1)" in (deliver(channel, resumed()).error or "")


def test_a_login_needs_user_and_password_and_encryption(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    base: dict[str, Any] = {"host": "mail.example", "sender": "a@example.org", "to": ["b@example.org"]}
    secret = str(tmp_path / "password")
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"user": "me"}, "secret_file or secret_env is missing"),
        ({"secret_file": secret}, "user is missing"),
        ({"user": "me", "secret_file": secret, "security": "none"}, "over TLS only"),
    )
    for changes, reported in cases:
        with pytest.raises(ReceiverError, match=reported):
            Email.from_settings("post", EmailSettings(**base, **changes))
    channel = Email.from_settings("post", EmailSettings(**base, user="me", secret_file=secret))
    assert (channel.password, channel.destination) == (PASSWORD, "mail.example:587")


@pytest.mark.parametrize("to", ["[]", '["a b@example.org"]', '["a@b\\nBcc: c@d"]', '["a@b>,<c@d"]', '["me"]'])
def test_what_is_no_address_is_refused_in_the_configuration(to: str) -> None:
    text = f"[alerts.post]\nkind = 'email'\nhost = 'mail.example'\nsender = 'a@example.org'\nto = {to}"
    assert check_text(text, "some.toml").settings is None
