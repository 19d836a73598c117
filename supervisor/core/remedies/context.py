"""What the choice of a remedy depends on besides past trials: the end of the attempt, the machine, experience."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.memory.kept import KeptEstimate
from supervisor.core.memory.shortage import Shortage
from supervisor.core.remedies.gpu_memory import GpuMemory
from supervisor.core.remedies.last_resorts import Resort
from supervisor.core.triage.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """The outcomes of a remedy on this machine against one cause."""

    cause: str
    remedy: str
    helped: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyContext:
    """The machine and the settings that decide which remedies are available."""

    agent: bool = True
    conv2d_auto: bool = True
    device: str | None = None
    """What the attempt trained on, as its framework's hook reports it: "cpu", "cuda"; None where it is not known."""
    cpu_profile: bool = False
    environments: tuple[str, ...] = ()
    """The job's other environments, in the order in which they are tried."""
    free_gpus: tuple[str, ...] = ()
    """PCI addresses of GPUs that answer and that no job uses, the best first."""
    answering_s: tuple[tuple[str, float], ...] = ()
    """For how long each GPU has answered without a gap."""
    experience: tuple[Experience, ...] = ()
    memory: tuple[GpuMemory, ...] = ()
    """Memory in use on each of the job's GPUs, as far as it is known and no other job has a part in it."""
    resorts: tuple[Resort, ...] = ()
    """The last resorts that exist, on or off, the milder first."""
    resume_command: bool = False
    """Whether the configuration has a command that resumes the job."""
    loads_itself: bool = False
    """Whether the training is given no checkpoint by its configuration, and finds its own."""
    is_put_back: bool = False
    """Whether a generation from which a start failed is put into its file's own place for the next start."""
    estimate: KeptEstimate | None = None
    """What was estimated of its memory, for the command that it has now."""
    newer_set_aside: bool = False
    """Whether files newer than the checkpoint that was chosen are moved out of its search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt that ended with a fault, as far as it decides which remedy comes next."""

    cause: str
    fault: str | None = None
    """Class of the fault, which is more specific than its cause; None where it has none."""
    step: int | None = None
    """Step of the training at which the fault occurred; None where it is not known."""
    adjustable: tuple[str, ...] = ()
    """Settings that the framework's hook can change, or that the script itself asks the agent for."""
    torch: bool = False
    torch_version: str | None = None
    shortage: Shortage | None = None
    """Of its GPU's memory, as torch last reported it."""
    patched: bool = False
    """Whether it computed its Conv2d without MIOpen."""
    resumed: bool = False
    """Whether it had been resumed from a checkpoint, so that there may be an older one."""
    resorts_taken: tuple[str, ...] = ()
    """The last resorts that were taken since the job last made progress."""
    finding: Finding | None = None
    """The finding of a triage about the fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the condition of one remedy may depend on."""

    ended: Ended
    context: RemedyContext
    on_cpu: bool = False
    """Whether the CPU profile is in force."""
    earlier_steps: tuple[int | None, ...] = ()
    """Steps of the earlier faults of the same cause in this episode."""
