"""Nouns of the core become bodies of the socket without losing what they know, or inventing what they do not."""

from __future__ import annotations

import msgspec

from supervisor.control import present
from supervisor.control.present_remedies import in_words
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.job import Attempt, Job, Phase
from supervisor.core.moments import Moment
from supervisor.core.readings import DiskReading, GpuReading, HostReading
from supervisor.core.remedies.spec import InForce
from supervisor.core.remedies.trials import Course
from supervisor.json_bytes import encode_json

T0 = Moment(100.0, 1_763_164_800.0)
POINT = Checkpoint(
    path="/d/last.pt",
    fingerprint=Fingerprint(size_bytes=6_000_000, modified_ns=1_763_160_000_500_000_000, inode=7),
    epoch=3,
    step=78_000,
    verdict=Verdict.PROVEN,
)
STALL = RedFlag(rule="stall", severity=Severity.CRITICAL, at=T0, message="no step for 61 s", fault="gpu_hang")


def test_an_open_incident_knows_only_what_was_seen() -> None:
    entry = present.incident_entry(Incident(id="yolo-1", job="yolo", attempt=1, flag=STALL, decision="stop"))
    assert (entry.at, entry.severity, entry.fault, entry.outcome) == (T0.unix_s, "critical", "gpu_hang", "open")
    assert (entry.resumed_from, entry.resumed_at, entry.lost_steps, entry.downtime_s) == (None, None, None, None)


def test_a_closed_incident_says_from_where_and_at_what_cost() -> None:
    incident = Incident(
        id="yolo-1", job="yolo", attempt=1, flag=STALL, decision="stop", last_step=80_321, last_step_at=T0
    )
    entry = present.incident_entry(incident.relaunched(POINT).stepping_again(T0.plus(105), went_on=True))
    assert entry.resumed_from is not None
    assert (entry.resumed_from.step, entry.lost_steps, entry.downtime_s) == (78_000, 2_321, 105.0)


def test_a_checkpoint_is_reported_with_its_verdict() -> None:
    entry = present.checkpoint_entry(POINT)
    assert (entry.verdict, entry.saved_at, entry.size_bytes) == ("proven", 1_763_160_000.5, 6_000_000)


def test_readings_keep_their_gaps() -> None:
    gpu = msgspec.to_builtins(
        present.gpu_status(GpuReading(at=T0, gpu="0000:0a:00.0", source="sysfs", vram_used_bytes=0))
    )
    assert (gpu["vram_used_bytes"], gpu["power_w"], gpu["at"]) == (0, None, T0.unix_s)
    disk = DiskReading(path="/", free_bytes=1, total_bytes=2)
    host = msgspec.to_builtins(present.host_status(HostReading(at=T0, load_1m=0.5, disks=(disk,))))
    assert (host["load_1m"], host["cpu_percent"], host["disks"][0]["free_bytes"]) == (0.5, None, 1)


def test_numbers_that_json_cannot_carry_are_null() -> None:
    assert [present.finite(value) for value in (None, 0.0, float("nan"), float("-inf"))] == [None, 0.0, None, None]
    assert encode_json(present.finite(float("nan"))) == b"null"


def skips_steps(attempt: int, *, steps: int | None, applied: str | None = None, remedy: str = "skip_step") -> str:
    """The state of a remedy that the attempts have from the second on, as `status` shows it for a job that is over."""
    held = InForce(remedy=remedy, cause="non_finite", attempt=2, applied=applied)
    last = Attempt(number=attempt, launched_at=T0, last_step=steps)
    job = Job(name="yolo", since=T0, phase=Phase.FINISHED, attempt=last, course=Course(in_force=(held,)))
    (line,) = in_words(job)
    return line.removeprefix(f"{remedy} against non_finite: ")


def test_a_remedy_of_which_the_agent_reports_its_use_alone_is_known_to_be_set_once_steps_were_made() -> None:
    what = "steps whose gradients are not finite are skipped"
    assert skips_steps(2, steps=500) == f"{what} (set; no skipped step was reported)"
    assert skips_steps(2, steps=None) == f"{what} (not reported by the agent yet)"
    assert skips_steps(1, steps=500) == f"{what} (not reported by the agent yet)", "the next attempt has it"
    assert skips_steps(2, steps=500, applied="a step was skipped") == "a step was skipped"
    assert skips_steps(2, steps=500, remedy="lower_lr").endswith("(not reported by the agent yet)")
