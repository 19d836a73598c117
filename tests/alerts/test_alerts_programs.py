"""Alerts handed to programs of one's own, and to Apprise in a child of its own interpreter."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from notices_by_hand import notice, notices, resumed

from supervisor.alerts.channel import Answer, Channel, KeptNotice
from supervisor.alerts.channels.apprise import BODY_LIMIT, Apprise, AppriseSettings
from supervisor.alerts.channels.command import Command, CommandSettings
from supervisor.alerts.settings import ReceiverError
from tests.examples import at_least

NOW = 1_763_600_000.0
URLS = "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js\nmailtos://me:s3same@mail.example\n"
FAKE = """\
class Apprise:
    def __init__(self):
        self.urls = []
    def add(self, url):
        self.urls.append(url)
        return "://" in url
    def notify(self, **given):
        import json, pathlib
        pathlib.Path(__file__).with_name("sent").write_text(json.dumps({"urls": self.urls, **given}))
        return "refuse" not in given["title"]
"""


def deliver(channel: Channel, sent: KeptNotice) -> Answer:
    return channel.send(sent, channel.render(sent), NOW)


def command(*words: str, **changes: Any) -> Command:
    return Command.from_settings("own", CommandSettings(command=list(words), **changes))


@pytest.mark.slow
def test_the_program_gets_the_notice_as_json(tmp_path: Path) -> None:
    channel = command("/bin/sh", "-c", f"cat > {shlex.quote(str(tmp_path))}/notice")
    assert deliver(channel, resumed()) == Answer(delivered=True)
    given = json.loads((tmp_path / "notice").read_bytes())
    assert (given["type"], given["data"]["job"]) == ("incident.resumed", "yolo")
    assert channel.destination == "/bin/sh"


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=at_least(10))
@given(sent=notices())
def test_no_text_of_a_notice_is_a_word_of_the_command(tmp_path: Path, sent: KeptNotice) -> None:
    channel = command(sys.executable, "-I", "-c", "import json, sys; json.load(sys.stdin); sys.exit(len(sys.argv) - 1)")
    assert deliver(channel, sent) == Answer(delivered=True)


@pytest.mark.slow
def test_a_program_that_reads_nothing_is_no_failure() -> None:
    large = notice("digest", alerts=["x" * 1000] * 500)
    assert deliver(command("/bin/true"), large) == Answer(delivered=True)


@pytest.mark.slow
def test_a_program_that_fails_is_quoted_without_what_could_act_on_a_terminal() -> None:
    answer = deliver(command("/bin/sh", "-c", r"printf 'no \033[31mmodem\n'; exit 3"), resumed())
    assert answer == Answer(delivered=False, error="/bin/sh: exit status 3: no modem")
    assert deliver(command("/bin/sh", "-c", "kill -9 $$"), resumed()).error == "/bin/sh: signal 9"
    assert (
        deliver(command("/no/such/program"), resumed()).error
        == "/no/such/program cannot be run: No such file or directory"
    )
    assert "***" in (deliver(command("/bin/sh", "-c", "echo token=s3same0penUp; exit 1"), resumed()).error or "")


@pytest.mark.slow
def test_a_program_that_does_not_end_is_killed_with_its_children() -> None:
    channel = command("/bin/sh", "-c", "sleep 1000 & sleep 1000", timeout_s=0.3)
    assert deliver(channel, resumed()).error == "/bin/sh did not end within 0.3 s; it was killed"


@pytest.mark.slow
def test_the_program_gets_no_secret_of_another_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALERT_SECRET", "s3same")
    assert deliver(command("/bin/sh", "-c", 'test -z "$ALERT_SECRET" && test -n "$PATH"'), resumed()).delivered


def test_a_program_needs_an_absolute_path() -> None:
    with pytest.raises(ReceiverError, match=r"alerts\.own\.command.*absolute path"):
        command("notify-send")


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    """A Python that has a package called apprise."""
    (tmp_path / "apprise.py").write_text(FAKE)
    python = tmp_path / "python"
    path, own = shlex.quote(str(tmp_path)), shlex.quote(sys.executable)
    python.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={path} exec {own} -B "$@"\n')
    python.chmod(0o755)
    return python


def apprise(folder: Path, python: Path, urls: str = URLS) -> Apprise:
    (folder / "urls").write_text(urls)
    return Apprise.from_settings("all", AppriseSettings(url_file=str(folder / "urls"), python=str(python)))


@pytest.mark.slow
def test_apprise_gets_words_and_addresses_by_its_standard_input(tmp_path: Path, interpreter: Path) -> None:
    channel = apprise(tmp_path, interpreter)
    assert deliver(channel, resumed()) == Answer(delivered=True)
    sent = json.loads((tmp_path / "sent").read_text())
    assert sent["urls"] == URLS.split()
    assert (sent["title"], sent["notify_type"], sent["body_format"]) == (
        "yolo is training again (nothing to do)", "success", "text"
    )  # fmt: skip
    assert channel.destination == "apprise, addresses: 2"
    assert "s3same" not in repr(channel)


@pytest.mark.slow
def test_what_apprise_cannot_deliver_is_a_failed_attempt(tmp_path: Path, interpreter: Path) -> None:
    answer = deliver(apprise(tmp_path, interpreter), notice("job.finished", job="refuse"))
    assert "could not deliver to every address" in (answer.error or "")
    unknown = deliver(apprise(tmp_path, interpreter, "s3same-0pen"), resumed())
    assert "this version of Apprise does not support an address" in (unknown.error or "")
    assert "s3same" not in (unknown.error or "")


@pytest.mark.slow
def test_an_interpreter_without_apprise_is_named(tmp_path: Path, interpreter: Path) -> None:
    (tmp_path / "apprise.py").unlink()
    assert "apprise is not installed for" in (deliver(apprise(tmp_path, interpreter), resumed()).error or "")


@pytest.mark.slow
def test_an_error_of_apprise_that_repeats_an_address_is_not_recorded(tmp_path: Path, interpreter: Path) -> None:
    (tmp_path / "apprise.py").write_text("class Apprise:\n    def add(self, url):\n        raise ValueError(url)\n")
    answer = deliver(apprise(tmp_path, interpreter), resumed())
    assert (answer.error or "").endswith("Apprise raised ValueError")
    (tmp_path / "apprise.py").write_text("import sys\nprint(sys.stdin.read()[-60:])\nsys.exit(1)\n")
    answer = deliver(apprise(tmp_path, interpreter), resumed())
    assert answer == Answer(
        delivered=False, error="Apprise failed; its report is not shown because it contains an address"
    )


@given(notices())
def test_what_apprise_gets_is_short_enough_for_most_services(sent: KeptNotice) -> None:
    channel = Apprise(urls=("a://b",), python=sys.executable, timeout_s=1.0)
    given = json.loads(channel.render(sent))
    assert 1 <= len(given["body"]) <= BODY_LIMIT
    assert 1 <= len(given["title"]) <= 200
