"""A new alert channel is one file and one entry in CHANNELS: settings, sending, retries and the record follow."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from supervisor.alerts.channel import Answer, KeptNotice
from supervisor.alerts.channels import CHANNELS
from supervisor.alerts.settings import AlertSettings, PathText
from supervisor.config import check_text
from supervisor.core.events import AlertTried
from supervisor.core.moments import Moment
from supervisor.daemon.alerts.alerting import Announcer, Receivers
from supervisor.store.store import Store

NOW = Moment(1000.0, 1_763_600_000.0)
DEADLINE_S = 120.0


class PagerSettings(AlertSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "pager"."""

    path: PathText


@dataclass(frozen=True)
class Pager:
    """Appends a line to a file."""

    settings_type: ClassVar[type[AlertSettings]] = PagerSettings
    path: Path

    @classmethod
    def from_settings(cls, name: str, settings: PagerSettings) -> Pager:
        return cls(Path(settings.path))

    @property
    def destination(self) -> str:
        return self.path.name

    def render(self, notice: KeptNotice) -> bytes:
        return f"{notice.severity.label} {notice.type}: {notice.data['message']}\n".encode()

    def send(self, notice: KeptNotice, content: bytes, unix_s: float) -> Answer:
        with self.path.open("ab") as opened:
            opened.write(content)
        return Answer(delivered=True)


class Still:
    def now(self) -> Moment:
        return NOW

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError


@pytest.fixture
def pager() -> Iterator[None]:
    CHANNELS["pager"] = Pager
    yield
    del CHANNELS["pager"]


@pytest.mark.usefixtures("pager")
def test_an_added_channel_is_configured_and_sent_to_like_every_other(tmp_path: Path) -> None:
    checked = check_text(f"[alerts.desk]\nkind = 'pager'\npath = '{tmp_path}/pages'\nmin_severity = 'critical'", "some")
    assert checked.settings is not None, checked.problems
    tried: queue.Queue[AlertTried] = queue.Queue()
    receivers = Receivers(checked.settings.alerts, tried.put, Still(), lambda _: None)
    store = Store.open(f"sqlite:///{tmp_path}/record.db", NOW, "boot")
    announcer = Announcer(store=store, host="box", floors=lambda: receivers.floors)
    receivers.start()
    with store.turn(NOW):
        sent = announcer.queue_test("desk", NOW)
    announcer.send_due(receivers.sender, NOW)
    assert tried.get(timeout=DEADLINE_S) == AlertTried(at=NOW, alert=sent, delivered=True, error=None)
    receivers.stop(DEADLINE_S)
    store.close(NOW)
    assert (tmp_path / "pages").read_text() == "critical test: test of the receiver desk\n"
    assert receivers.hosts == {"desk": "pages"}


@pytest.mark.usefixtures("pager")
def test_its_keys_are_checked_as_all_settings_are() -> None:
    (unknown, missing) = check_text("[alerts.desk]\nkind = 'pager'\npatj = 'pages'", "some").problems
    assert (unknown.key, missing.key) == ("alerts.desk.patj", "alerts.desk.path")
    assert 'did you mean "path"' in unknown.allowed


def test_a_channel_that_does_not_exist_is_named_with_those_that_do() -> None:
    (problem,) = check_text("[alerts.desk]\nkind = 'pigeon'", "some").problems
    assert (problem.key, problem.value) == ("alerts.desk.kind", '"pigeon"')
    assert '"webhook"' in problem.allowed


@pytest.mark.slow
def test_a_file_without_receivers_loads_no_channel() -> None:
    """The command line reads the configuration too, and need not wait for libraries of HTTP and mail."""
    code = (
        "import sys; from supervisor.config import check_text; check_text('', 'some');"
        " sys.exit(any(name in sys.modules for name in ('urllib3', 'smtplib', 'supervisor.alerts.channels')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
