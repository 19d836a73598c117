"""The installed units and the polkit rule, as systemd and polkit see them."""

from __future__ import annotations

import re

import pytest

from tests.rigs.installed_box import OWNER, InstalledBox

pytestmark = pytest.mark.systemd
EXPOSURE_LIMIT = 2.5
UNITS = "rocm-supervisor.service rocm-supervisor.socket rocm-run@yolo.service rocm-runs.slice"
NO_PASSWORD = "systemctl --no-ask-password"


def exposure(report: str) -> float:
    """Return the figure of `systemd-analyze security`."""
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", report)
    assert found, report
    return float(found.group(1))


def test_what_setup_installs_verifies_without_a_word(installed: InstalledBox) -> None:
    done = installed.box.run(f"systemd-analyze verify {UNITS}")
    assert (done.status, done.output) == (0, "")


def test_the_daemon_is_hardly_exposed(installed: InstalledBox) -> None:
    loaded = installed.box.run("systemd-analyze security --no-pager rocm-supervisor.service")
    assert exposure(loaded.output) <= EXPOSURE_LIMIT
    path = "/etc/systemd/system/rocm-supervisor.service"
    offline = installed.box.run(f"systemd-analyze security --no-pager --offline=yes {path}")
    assert exposure(offline.output) <= EXPOSURE_LIMIT


def test_a_training_may_do_what_trainings_do(installed: InstalledBox) -> None:
    """Neither its cards nor executable or pinned memory are taken from it, and nothing stops it but its own daemon."""
    report = installed.box.run("systemctl show rocm-run@yolo.service", check=True).output.splitlines()
    for line in ("PrivateDevices=no", "DevicePolicy=auto", "MemoryDenyWriteExecute=no", "LimitMEMLOCK=infinity"):
        assert line in report
    for line in ("OOMPolicy=continue", "IgnoreOnIsolate=yes", "Restart=no", "KillMode=mixed", f"User={OWNER}"):
        assert line in report
    bound = next(line for line in report if line.startswith("Requires="))
    assert "rocm-supervisor" not in bound
    assert not any(line.startswith(("PartOf=", "BindsTo=", "BoundBy=")) for line in report)


def test_without_an_owner_a_training_has_no_more_rights_than_the_daemon(installed: InstalledBox) -> None:
    unit = installed.box.read("/etc/systemd/system/rocm-run@.service")
    assert "\nUser=rocm-supervisor\n" in unit


@pytest.mark.parametrize(
    "order",
    [
        "start secret.service",
        "stop dbus.socket",
        "restart systemd-journald.service",
        "start rocm-supervisor.service",
        "start xrocm-run@a.service",
        "start rocm-run@.a.service",
        "set-property rocm-run@yolo.service MemoryMax=1M",
        "enable rocm-run@yolo.service",
        "daemon-reload",
        "poweroff",
    ],
)
def test_polkit_lets_the_daemons_user_do_nothing_else(installed: InstalledBox, order: str) -> None:
    for name in ("secret", "xrocm-run@"):
        installed.box.write(f"/etc/systemd/system/{name}.service", "[Service]\nExecStart=/bin/true\n")
    installed.box.run("systemctl daemon-reload", check=True)
    done = installed.box.run(f"{NO_PASSWORD} {order}", user="rocm-supervisor")
    assert not done.ok
    assert re.search("authentication required|Access denied|Call to .* failed", done.output), done.output


@pytest.mark.parametrize("verb", ["start", "kill", "stop", "restart"])
def test_polkit_lets_nobody_else_touch_a_training(installed: InstalledBox, verb: str) -> None:
    installed.box.write("/run/systemd/system/rocm-run@bait.service.d/bait.conf", BAIT)
    installed.box.run("systemctl daemon-reload; systemctl start rocm-run@bait.service", check=True)
    try:
        done = installed.box.run(f"{NO_PASSWORD} {verb} rocm-run@bait.service", user="bob")
        assert "authentication required" in done.output
        assert installed.box.run("systemctl is-active rocm-run@bait.service").ok
        assert installed.box.run(f"{NO_PASSWORD} {verb} rocm-run@bait.service", user="rocm-supervisor").ok
    finally:
        installed.box.run("systemctl stop rocm-run@bait.service")


BAIT = """\
[Service]
ExecStart=
ExecStart=/bin/sleep 1000
"""
