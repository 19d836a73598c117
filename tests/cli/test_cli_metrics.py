"""`supervisorctl metrics` prints what the daemon answers, or the rules, which need no daemon."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result
from view_by_hand import FakeView, serving

from supervisor.cli.app import App
from supervisor.cli.main import cli
from supervisor.control.client import Client
from supervisor.metrics.formats import CLASSIC, OPENMETRICS


def call(socket: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--socket", str(socket), *words], obj=App())


def test_the_exposition_is_printed_in_both_formats() -> None:
    with serving(FakeView()) as socket:
        classic, openmetrics = call(socket, "metrics"), call(socket, "metrics", "--openmetrics")
    assert 'rocm_supervisor_training_phase{training="yolo",phase="running"} 1\n' in classic.stdout
    assert (classic.exit_code, openmetrics.stdout.endswith("# EOF\n")) == (0, True)


def test_the_answer_names_its_format() -> None:
    with serving(FakeView()) as socket:
        head = "GET /metrics HTTP/1.0\r\nHost: daemon\r\nAccept: {}\r\n\r\n"
        answers = [
            Client(socket)._exchange(head.format(kind).encode())
            for kind in ("*/*", "application/openmetrics-text;version=1.0.0")
        ]
    assert [kind.encode() in answer.lower() for kind, answer in zip((CLASSIC, OPENMETRICS), answers, strict=True)] == [
        True,
        True,
    ]


def test_without_a_daemon_the_rules_are_printed_and_the_metrics_are_not(tmp_path: Path) -> None:
    assert call(tmp_path / "absent.sock", "metrics").exit_code == 4
    rules = call(tmp_path / "absent.sock", "metrics", "--rules")
    assert (rules.exit_code, "- alert: RocmTrainingSilent" in rules.stdout) == (0, True)


def test_a_daemon_that_fails_is_an_error_not_an_exposition() -> None:
    class Failing(FakeView):
        def metrics(self) -> None:  # type: ignore[override]
            raise RuntimeError("no")

    with serving(Failing()) as socket:
        failed = call(socket, "metrics")
    assert (failed.exit_code, failed.stdout, "the daemon failed" in failed.stderr) == (1, "", True)
