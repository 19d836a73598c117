"""The kernel's log through a real journald: a record that a real kernel took, read on from a cursor."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path

import pytest

from tests.rigs.systemd_box import SystemdBox, unavailable

pytestmark = [pytest.mark.systemd, pytest.mark.kernel]

ROOT = Path(__file__).parents[2]
READ = """
import json, select, sys, time
from supervisor.core.moments import Moment
from supervisor.sources.kernel.journal import JournalLog
log = JournalLog(sys.argv[2] or None, accept_user_records=True)
end, lines = time.monotonic() + 60, []
while time.monotonic() < end and not any(sys.argv[1] in line for line in lines):
    said = log.read(Moment(time.monotonic(), time.time()))
    lines += [one.line for one in said.findings] if said else []
    if log.fileno() >= 0:
        select.select([log.fileno()], [], [], 0.2)
print(json.dumps({"lines": lines, "cursor": log.cursor, "problem": log.problem}))
log.close()
"""


def test_what_the_journal_holds_is_read_once_over_restarts(tmp_path: Path) -> None:
    reason = unavailable()
    if reason:
        pytest.skip(reason)
    script, done = tmp_path / "read.py", tmp_path / "done"
    script.write_text(READ)
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    read = f"cd {ROOT} && PYTHONPATH={ROOT} {sys.executable} {script}"
    # Again and again, each time of another card: when the journal is listened to, nobody outside knows.
    telling = (
        f"n=0; until [ -e {done} ]; do printf '<3>amdgpu 0000:0a:%02x.0: amdgpu: GPU reset begin! {first} %d\\n' $n $n"
        " >/dev/kmsg; n=$((n+1)); sleep 0.3; done"
    )
    with SystemdBox(keep=[tmp_path]) as box:
        begun = json.loads(box.run(f"({telling}) & {read} {first} ''; touch {done}", check=True).output)
        box.run(f"echo '<3>amdgpu 0000:0b:00.0: amdgpu: GPU reset begin! {second}' >/dev/kmsg", check=True)
        resumed = json.loads(box.run(f"{read} {second} '{begun['cursor']}'", check=True).output)
    assert (begun["problem"], resumed["problem"]) == (None, None)
    assert first in begun["lines"][-1]
    assert not set(begun["lines"]) & set(resumed["lines"])
    assert len([line for line in resumed["lines"] if second in line]) == 1
