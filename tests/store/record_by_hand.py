"""Facts to record, made by hand: short to write in a test, complete in every field that a table has."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, ResumePoint, Verdict
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.job import Attempt, Job, Phase, RetryPlan, StopOrder
from supervisor.core.moments import Moment
from supervisor.core.readings import (
    DiskReading,
    ExitStatus,
    GpuReading,
    HostReading,
    ProcessReading,
    StepRecord,
)
from supervisor.core.remedies.trials import Outcome, Trial
from supervisor.store.store import NewAlert, Store

START = Moment(1000.0, 1_763_600_000.0)
BOOT = "5c2a7f3e-boot-one"
OTHER_BOOT = "9d11e0aa-boot-two"


def at(seconds: float) -> Moment:
    """The moment so many seconds after the start."""
    return START.plus(seconds)


def open_store(folder: Path, now: Moment = START, boot_id: str = BOOT) -> Store:
    """The store in a folder."""
    return Store.open(f"sqlite:///{folder}/supervisor.db", now, boot_id)


def checkpoint(epoch: int = 3, verdict: Verdict | None = None, path: str = "/runs/night/weights/last.pt") -> Checkpoint:
    """A checkpoint whose fingerprint depends on its epoch."""
    print_ = Fingerprint(size_bytes=12_000_000 + epoch, modified_ns=1_763_600_000_123_456_789 + epoch, inode=77)
    return Checkpoint(path=path, fingerprint=print_, epoch=epoch, step=100 * (epoch + 1), verdict=verdict)


def flag(rule: str = "stall", severity: Severity = Severity.CRITICAL) -> RedFlag:
    """A flag with everything in it."""
    return RedFlag(
        rule=rule,
        severity=severity,
        at=at(60),
        message="no step for 41 s, limit 30 s",
        since=at(19),
        since_step=412,
        can_save=True,
        subject="0000:0a:00.0",
        fault="gpu_hang",
    )


def incident(number: int = 1) -> Incident:
    """An open incident of an attempt."""
    return Incident(
        id=f"night-{number}",
        job="night",
        attempt=number,
        flag=flag(),
        decision="stop",
        last_step=411,
        last_step_at=at(19),
    )


def job(name: str = "night") -> Job:
    """A job in the midst of trouble, so that every part of its state is there."""
    attempt = Attempt(
        number=1,
        launched_at=at(1),
        resume_from=checkpoint(2, Verdict.PROVEN),
        shim_pid=4242,
        training_pid=4243,
        first_step_at=at(8),
        last_step=411,
        last_step_at=at(19),
        epoch=4,
        loss=0.731,
        exit=ExitStatus(at=at(70), signal=9, max_rss_bytes=3_000_000_000),
    )
    return Job(
        name=name,
        phase=Phase.STOPPING,
        since=at(60),
        attempt=attempt,
        stop=StopOrder(at=at(60), reason="stalled", save=True, flag=flag(), killed_at=at(68)),
        retry=RetryPlan(
            not_before=at(90),
            reason="stalled",
            resume_point=ResumePoint(checkpoint=checkpoint(2, Verdict.PROVEN), possible=True, reason="newest proven"),
            fault_unix_s=at(19).unix_s,
            fault_step=412,
        ),
        incident=incident(),
        open_flags=frozenset({flag().key, ("vram_high", "", Severity.WARNING)}),
        reason="stalled",
    )


def step(number: int, loss: float | None = 0.5) -> StepRecord:
    """A step made so many seconds after the start as its number says."""
    return StepRecord(
        at=at(number),
        step=number,
        epoch=number // 100,
        loss=loss,
        lr=0.01,
        grad_norm=1.5,
        gpu_memory_bytes=4_200_000_000,
        data_wait_s=0.02,
    )


def made(
    steps: Iterable[int], cursor: int, *, loss: float | None = 0.5, rank: int = 0, attempt: int = 1
) -> ev.StepsMade:
    """Steps made one each second, counted from the start."""
    records = tuple(step(number, loss) for number in steps)
    return ev.StepsMade(at=records[-1].at, job="night", attempt=attempt, records=records, rank=rank, cursor=cursor)


def gpu(seconds: float = 0.0, source: str = "sysfs", address: str = "0000:0a:00.0") -> GpuReading:
    """A reading of the card."""
    return GpuReading(
        at=at(seconds),
        gpu=address,
        source=source,
        name="Radeon RX 5600 XT",
        unique_id="0x1234",
        gfx_version="gfx1010",
        gpu_busy_percent=99.0,
        vram_used_bytes=4_200_000_000,
        vram_total_bytes=6_425_673_728,
        edge_c=71.0,
        junction_c=83.0,
        power_w=112.5,
        runtime_status="active",
    )


def host(seconds: float = 0.0) -> HostReading:
    """A reading of the machine."""
    disk = DiskReading(path="/runs", free_bytes=10**11, total_bytes=10**12)
    return HostReading(at=at(seconds), memory_total_bytes=2**35, load_1m=3.5, disks=(disk,))


def tree(seconds: float = 0.0) -> ProcessReading:
    """A reading of the attempt's processes."""
    return ProcessReading(at=at(seconds), processes=5, rss_bytes=3 * 10**9, uninterruptible_pids=(4250,))


def alert(name: str = "one") -> NewAlert:
    """An alert for the sink `owner`."""
    return NewAlert(
        id=f"msg_{name}", sink="owner", type="incident.opened", job="night", body=b'{"type":"incident.opened"}'
    )


def stop() -> de.Stop:
    """The decision that opened the incident."""
    return de.Stop(at=at(60), job="night", attempt=1, reason="stalled", save=True, flag=flag())


def launch(number: int = 1) -> de.Launch:
    """The decision that began an attempt."""
    return de.Launch(
        at=at(number), job="night", attempt=number, resume_from=checkpoint(2, Verdict.PROVEN), reason="newest proven"
    )


def trial() -> Trial:
    return Trial(
        attempt=2,
        at=at(61),
        cause="gpu_hang",
        remedy="restart",
        step=411,
        reason="restart without changes",
        outcome=Outcome.HELPED,
        settled_at=at(300),
    )


def record_everything(store: Store) -> None:
    """Put a row into every table."""
    with store.turn(at(1)):
        store.open_attempt(launch(), "/state/jobs/night/1")
        store.record_decision(launch())
        store.record_event(ev.Launched(at=at(1), job="night", attempt=1, shim_pid=4242, training_pid=4243))
    with store.turn(at(20)):
        store.add_steps(made(range(1, 20), cursor=19))
        store.add_gpu_samples([gpu(), gpu(source="rocm-smi")])
        store.add_host_sample(host())
        store.add_process_sample("night", 1, tree())
        store.save_offsets("night", 1, output_bytes=8192, agent_log_bytes=512)
        store.set_note("kernel log", "5c2a 1234")
        store.save_checkpoint("night", 1, checkpoint(3, Verdict.PROVEN), at(20))
    with store.turn(at(60)):
        store.record_flag("night", 1, flag())
        store.record_decision(stop())
        store.save_incident(incident())
        store.save_trial("night", trial())
        store.close_attempt("night", job().attempt or Attempt(number=1, launched_at=START), at(70))
        store.queue_alert(alert(), at(60))
        store.save_job(job())
