"""What follows from settings: addresses, rules, limits, what a reload may do, and what may be shown."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from supervisor.config import Settings, check_text
from supervisor.config.derive import (
    agent_environment,
    database_url,
    expectation_of,
    limits_of,
    rule_settings,
    rules_of,
    snapshot_every,
    socket_path,
)
from supervisor.config.difference import Difference, difference
from supervisor.config.redact import hide_words, redacted
from supervisor.config.settings import JobSettings, SupervisorSettings
from supervisor.core import attempt_files
from supervisor.core.remedies.budget import Budget
from supervisor.core.rules import RULES
from supervisor.core.rules.advisory.deadline import Deadline
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.throughput_drop import ThroughputDrop


def settings(text: str) -> Settings:
    checked = check_text(text, "some.toml")
    assert checked.settings is not None, [str(problem) for problem in checked.problems]
    return checked.settings


JOB = "[jobs.yolo]\ncommand = ['yolo', 'train']\n"


def test_the_database_lies_in_the_state_directory_unless_set_otherwise() -> None:
    assert database_url(SupervisorSettings(state_dir="/s")) == "sqlite:////s/supervisor.db"
    assert database_url(SupervisorSettings(database="postgresql://h/db")) == "postgresql://h/db"


def test_the_socket_lies_where_systemd_made_room_for_it() -> None:
    plain = SupervisorSettings(state_dir="/s")
    assert socket_path(plain, {}) == Path("/s/control.sock")
    assert socket_path(plain, {"RUNTIME_DIRECTORY": "/run/rs:/run/other"}) == Path("/run/rs/control.sock")
    assert socket_path(SupervisorSettings(socket="/x.sock"), {"RUNTIME_DIRECTORY": "/run/rs"}) == Path("/x.sock")


def test_rules_take_the_jobs_settings_and_keep_their_order() -> None:
    shadowed = rules_of(settings(JOB + 'rules.stall = { act = "shadow" }').jobs["yolo"])
    assert Stall(act="shadow") in shadowed
    rules = rules_of(settings(JOB + "rules.stall = { limit_s = 300, act = false }").jobs["yolo"])
    assert tuple(type(rule) for rule in rules) == RULES
    assert Stall(limit_s=300.0, act=False) in rules


def test_limits_are_the_jobs_own() -> None:
    limits = limits_of(settings(JOB + "grace_s = 3\nbudget.restarts = 2").jobs["yolo"])
    assert (limits.grace_s, limits.save_s, limits.budget) == (3.0, 20.0, Budget(restarts=2))


def test_the_agents_planner_knows_what_it_may_do() -> None:
    given = 'conv2d_workspace_mb = 256\nconv2d_winograd = false\nconv2d_tune_s = 0.5\nranks_backend = "host"'
    job = settings(JOB + given).jobs["yolo"]
    assert agent_environment(job) == {
        attempt_files.ENV_CONV2D_SCOPE: "modules",
        attempt_files.ENV_CONV2D_WORKSPACE: "256",
        attempt_files.ENV_CONV2D_WINOGRAD: "off",
        attempt_files.ENV_CONV2D_TUNE: "0.5",
        attempt_files.ENV_RANKS_BACKEND: "host",
    }
    assert agent_environment(settings(JOB).jobs["yolo"])[attempt_files.ENV_RANKS_BACKEND] == "", "the script's own"


class TestDifference:
    def test_the_same_settings_differ_in_nothing(self) -> None:
        assert difference(settings(JOB), settings(JOB)) == Difference(applied=(), needs_restart=())

    @pytest.mark.parametrize(
        ("old", "new", "output"),
        [
            ("", "rules.stall.limit_s = 9", "jobs.yolo.rules.stall.limit_s: unset -> 9.0"),
            ("grace_s = 5", "", "jobs.yolo.grace_s: 5.0 -> 30.0"),
            ("", "budget.restarts = 1", "jobs.yolo.budget.restarts: 10 -> 1"),
            ("", "autostart = false", "jobs.yolo.autostart: true -> false"),
            ("", "checkpoints.paths = ['*.pt']", 'jobs.yolo.checkpoints.paths: [] -> ["*.pt"]'),
            ("", "[alerts.a]\nurl_env = 'U'", "alerts.a: added"),
            ("[retention]\nsamples_days = 3", "", "retention.samples_days: 3 -> 14"),
            ("", "[telemetry]\ninterval_s = 3", "telemetry.interval_s: 1.0 -> 3.0"),
            ("", "[supervisor]\nlog_level = 'debug'", 'supervisor.log_level: "info" -> "debug"'),
            ("[jobs.two]\ncommand = ['x']", "", "jobs.two: removed"),
        ],
    )
    def test_these_are_applied_at_once(self, old: str, new: str, output: str) -> None:
        found = difference(settings(JOB + old), settings(JOB + new))
        assert (found.applied, found.needs_restart) == ((output,), ())

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("new", "output"),
        [
            ("cwd = '/'", 'jobs.yolo.cwd: unset -> "/" (with the job\'s next attempt)'),
            ("env = { A = 'sesame' }", 'jobs.yolo.env.A: unset -> "***" (with the job\'s next attempt)'),
            ("conv2d = 'off'", 'jobs.yolo.conv2d: "auto" -> "off" (with the job\'s next attempt)'),
            ("conv2d_scope = 'all'", 'jobs.yolo.conv2d_scope: "modules" -> "all" (with the job\'s next attempt)'),
            ("conv2d_workspace_mb = 64", "jobs.yolo.conv2d_workspace_mb: 512 -> 64 (with the job's next attempt)"),
            (
                "[supervisor]\nstate_dir = '/s'",
                'supervisor.state_dir: "/var/lib/rocm-supervisor" -> "/s" (with the daemon\'s next start)',
            ),
            ("[kernel_log]\nenabled = false", "kernel_log.enabled: true -> false (with the daemon's next start)"),
        ],
    )
    def test_these_wait_and_say_for_what(self, new: str, output: str) -> None:
        found = difference(settings(JOB), settings(JOB + new))
        assert (found.applied, found.needs_restart) == ((), (output,))

    def test_a_secret_that_changed_is_not_shown(self) -> None:
        old = settings("[alerts.a]\nurl = 'https://h.example/one'")
        new = settings("[alerts.a]\nurl = 'https://h.example/two'")
        assert difference(old, new).applied == ("alerts.a.url: changed (not shown)",)

    @pytest.mark.slow
    def test_of_two_long_commands_the_words_that_differ_are_shown(self) -> None:
        path = "/a/path/that/is/long/enough/that/the/rest/of/the/command/is/cut/off/where/it/is/shown/whole"
        old = settings(f"[jobs.a]\ncommand = ['{path}', 'data=d', 'epochs=50', 'batch=4']")
        new = settings(f"[jobs.a]\ncommand = ['{path}', 'data=d', 'epochs=80', 'batch=4', 'amp=False']")
        changes = '"epochs=50" -> "epochs=80"; nothing -> "amp=False"'
        assert difference(old, new).needs_restart == (f"jobs.a.command: {changes} (with the job's next attempt)",)

    @pytest.mark.slow
    def test_every_setting_is_applied_or_waits_but_never_both(self) -> None:
        old, new = settings(JOB), settings(JOB + "grace_s = 1\ncwd = '/'\n[telemetry]\nsources = ['sysfs']")
        found = difference(old, new)
        assert (len(found.applied), len(found.needs_restart)) == (1, 2)


def test_evidence_holds_no_secret() -> None:
    full = settings(
        JOB
        + "env = { TOKEN = 'sesame' }\nresume.command = ['x', '{checkpoint}', '--api-key', 'sesame']\n"
        + "[supervisor]\ndatabase = 'postgresql://me:sesame@h/db'\n"
        + "[alerts.a]\nurl = 'https://h.example/sesame?token=sesame'"
    )
    text = json.dumps(redacted(full))
    assert "sesame" not in text
    for kept in ("TOKEN", "yolo", "h.example", "postgresql://me:***@h/db", "--api-key"):
        assert kept in text


def test_settings_without_secrets_are_kept_as_they_are() -> None:
    plain = settings(JOB)
    assert msgspec.convert(redacted(plain), Settings) == plain


def test_words_that_name_a_secret_lose_their_value() -> None:
    assert hide_words(["x", "--token=a", "wandb_api_key=b", "--password", "c", "-v", "epochs=3"]) == [
        "x", "--token=***", "wandb_api_key=***", "--password", "***", "-v", "epochs=3",
    ]  # fmt: skip


@pytest.mark.slow
def test_what_the_owner_expects_fills_the_rules_where_they_are_unset() -> None:
    """The rule's own setting goes before it."""
    text = """
[jobs.one]
command = ["/bin/true"]
[jobs.one.expect]
batches_per_s = 15
deadline = 2026-11-30T08:00:00Z
max_vram_bytes = 5_000_000_000
no_nan = true
"""
    job = check_text(text, "config.toml").settings.jobs["one"]  # type: ignore[union-attr]  # it is well
    assert rule_settings(job) == {
        "throughput_drop": {"at_least_per_s": 15.0},
        "deadline": {"at_unix_s": 1_796_025_600.0},
    }
    assert ThroughputDrop(at_least_per_s=15.0) in rules_of(job)
    assert Deadline(at_unix_s=1_796_025_600.0) in rules_of(job)
    expected = expectation_of(job)
    assert (expected.max_vram_bytes, expected.no_nan, expected.losses_fall) == (5_000_000_000, True, False)
    own = check_text(text + "[jobs.one.rules.throughput_drop]\nat_least_per_s = 3.0\n", "config.toml").settings
    assert own is not None
    assert ThroughputDrop(at_least_per_s=3.0) in rules_of(own.jobs["one"])


@pytest.mark.slow
def test_a_deadline_that_is_no_time_is_reported() -> None:
    text = '[jobs.one]\ncommand = ["/bin/true"]\n[jobs.one.expect]\ndeadline = "tomorrow"\nbatches_per_s = -1\n'
    problems = [str(problem) for problem in check_text(text, "config.toml").problems]
    assert any("jobs.one.expect.deadline" in problem and "as 2026-11-30T08:00:00" in problem for problem in problems)
    assert any("jobs.one.expect.batches_per_s" in problem for problem in problems)


@pytest.mark.parametrize(
    ("written", "output"),
    [(None, "300.0"), (60, "60.0"), (0, "0.0"), (False, "0"), (True, "300.0"), ("auto", "auto")],
)
def test_the_interval_of_snapshots_is_reported_as_the_agent_reads_it(written: object, output: str) -> None:
    values = {"command": ["yolo"], **({} if written is None else {"snapshot_every_s": written})}
    assert snapshot_every(msgspec.convert(values, JobSettings)) == output
