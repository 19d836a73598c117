"""config.toml shows every setting with its true default, and loads as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from supervisor.alerts.channels import CHANNELS
from supervisor.alerts.channels.webhook import WebhookSettings
from supervisor.alerts.settings import AlertSettings
from supervisor.config import check_text, load, schema
from supervisor.config.derive import rules_of
from supervisor.config.settings import JobSettings, Settings
from supervisor.core.rules import RULES
from supervisor.core.rules.vram_high import VramHigh

EXAMPLE = Path(__file__).parents[2] / "config.toml"
DEFAULT = re.compile(r"^#(?=[\[\]\w]|    \")", re.MULTILINE)
SHOWN_OTHERWISE = {
    "supervisor.database",
    "supervisor.socket",
    "jobs.yolo.preset",
    "jobs.yolo.command",
    "jobs.yolo.cwd",
    "jobs.yolo.env",
    "jobs.yolo.checkpoints.paths",
    "jobs.yolo.resume.command",
    "jobs.yolo.expect",
    "jobs.yolo.snapshot_replicas",
    "jobs.yolo.rules.vram_high.limit_bytes",
    "jobs.yolo.rules.throughput_drop.at_least_per_s",
    "jobs.yolo.rules.deadline.at_unix_s",
    "jobs.yolo.profiles",
    "jobs.yolo.environments",
}
"""Keys whose line is an example, as their default is to be unset or empty."""


CHILD = {"jobs": "jobs.yolo", "environments": "environments.older"}


def uncommented() -> str:
    text = DEFAULT.sub("", EXAMPLE.read_text())
    return "\n".join(line for line in text.splitlines() if "# in its place" not in line)


@pytest.fixture(scope="module")
def example() -> Settings:
    checked = check_text(uncommented(), "config.toml")
    assert checked.settings is not None, [str(problem) for problem in checked.problems]
    return checked.settings


def keys(kind: type, path: str) -> set[str]:
    found = set()
    for name, key_kind in schema.keys_of(kind).items():
        inner = schema.table_within(key_kind) or (key_kind if schema.is_table(key_kind) else None)
        if inner is not None:
            found |= keys_of_receivers() if inner is AlertSettings else keys(inner, f"{path}{CHILD.get(name, name)}.")
        elif (kind, name) == (JobSettings, "rules"):
            for rule in RULES:
                found |= keys(rule, f"{path}rules.{rule.name}.")
        else:
            found.add(path + name)
    return found


def keys_of_receivers() -> set[str]:
    """Every key of a webhook, and of each other channel those that a webhook has not."""
    common = keys(WebhookSettings, "")
    found = {f"alerts.phone.{key}" for key in common}
    for kind, channel in CHANNELS.items():
        if kind != "webhook":
            found |= {f"alerts.{kind}.{key}" for key in {*(keys(channel.settings_type, "") - common), "kind"}}
    return found


def keys_of_channels() -> set[str]:
    """The keys of every channel but a webhook, those that all have as well."""
    return {f"alerts.{kind}.{key}" for kind in CHANNELS for key in keys(CHANNELS[kind].settings_type, "")}


def test_it_loads_as_it_stands_to_the_defaults() -> None:
    assert load(EXAMPLE) == Settings()


def test_every_setting_and_every_rule_is_shown() -> None:
    section, shown = "", set()
    for line in EXAMPLE.read_text().splitlines():
        if match := re.match(r"#?\[([\w.]+)\]", line):
            section = match[1]
        elif match := re.match(r"#?(\w+) = ", line):
            shown.add(f"{section}.{match[1]}")
    needed = keys(Settings, "")
    assert not needed - shown, f"config.toml does not show {sorted(needed - shown)}"
    assert shown - needed <= keys_of_channels()


@pytest.mark.slow
def test_every_key_says_what_it_is(example: Settings) -> None:
    silent = [
        line
        for line in EXAMPLE.read_text().splitlines()
        if re.match(r"#\w+ = ", line) and "# " not in line and not line.endswith("[")
    ]
    assert {line.split(" = ")[0] for line in silent} <= {
        "#enabled", "#act", "#path", "#restarts_per_period", "#period_s"
    }  # fmt: skip


@pytest.mark.slow
def test_what_is_shown_as_a_default_is_the_default(example: Settings) -> None:
    job = example.jobs["yolo"]
    default = JobSettings(command=job.command)
    assert (example.telemetry, example.kernel_log, example.retention) == (
        Settings().telemetry,
        Settings().kernel_log,
        Settings().retention,
    )
    for name in JobSettings.__struct_fields__:
        if name not in ("command", "rules", "checkpoints", "resume") and f"jobs.yolo.{name}" not in SHOWN_OTHERWISE:
            assert getattr(job, name) == getattr(default, name), name
    for rule in RULES:
        for key, value in job.rules[rule.name].items():
            if f"jobs.yolo.rules.{rule.name}.{key}" not in SHOWN_OTHERWISE:
                assert value == getattr(rule(), key), f"{rule.name}.{key}"
    phone = msgspec.structs.replace(example.alerts["phone"], time_zone=None, quiet_hours=None, report_at=None)
    assert msgspec.structs.replace(phone, url_file=None, secret_file=None) == WebhookSettings()


@pytest.mark.slow
def test_each_channel_is_shown_with_its_defaults(example: Settings) -> None:
    """But for what has to be given, and what is unset by default."""
    kinds = {receiver.kind for receiver in example.alerts.values()}
    assert kinds == set(CHANNELS), "config.toml has a section [alerts.KIND] for each channel"
    for name, receiver in example.alerts.items():
        for field in msgspec.structs.fields(type(receiver)):
            default, shown = field.default, getattr(receiver, field.name)
            examples = ("kind", "allow_private", "time_zone", "quiet_hours")
            if default not in (None, msgspec.NODEFAULT) and field.name not in examples:
                assert shown == default, f"{name}.{field.name}"


@pytest.mark.slow
def test_the_example_job_fits_the_owners_gpu(example: Settings) -> None:
    vram = next(rule for rule in rules_of(example.jobs["yolo"]) if isinstance(rule, VramHigh))
    assert vram.limit_bytes == 5_000_000_000
