"""The unit that copies the record to the fleet's database is valid, and hardly exposed."""

from __future__ import annotations

import re

import pytest

from tests.rigs.installed_box import PYTHON, ROOT, InstalledBox

pytestmark = [pytest.mark.systemd]
UNIT = "rocm-supervisor-fleet.service"
EXPOSURE_LIMIT = 1.5
DROP_IN = f"""\
[Service]
Environment=PYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1
ExecStart=
ExecStart={PYTHON} -m supervisor.cli --config /etc/rocm-supervisor/config.toml fleet ship
# The interpreter of the tests may lie in a home directory.
ProtectHome=read-only
"""


def test_the_unit_verifies_and_says_what_is_missing_where_no_fleet_is_configured(installed: InstalledBox) -> None:
    box = installed.box
    verified = box.run(f"systemd-analyze verify {UNIT}")
    assert (verified.status, verified.output) == (0, "")
    report = box.run(f"systemd-analyze security --no-pager {UNIT}").output
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", report)
    assert found, report
    assert float(found[1]) <= EXPOSURE_LIMIT
    box.write(f"/etc/systemd/system/{UNIT}.d/test.conf", DROP_IN)
    box.run(f"systemctl daemon-reload; systemctl start {UNIT}")
    box.until(f"journalctl -u {UNIT} | grep -q 'no fleet is configured'")
    assert box.run("stat -c %a:%U /var/lib/rocm-supervisor/fleet").output.strip() == "700:rocm-supervisor"
    box.run(f"systemctl stop {UNIT}")
