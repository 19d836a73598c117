"""The ways in which injected_training.py hurts itself, and what must be said of each; it runs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

STALL_S = 10.0
STALL = f"limit_s = {STALL_S}\ndata_wait_limit_s = {STALL_S}\nvalidate_limit_s = {STALL_S}"
STEPS = (200, 500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to hurt a training, and what must be said of it."""

    name: str
    rule: str
    fault: str | None = None
    says: str = ""
    """A pattern that the message must hold."""
    acts: bool = True
    """Whether it makes an incident, or is only told."""
    foretells: str | None = None
    """The class of the crash that must come after it was told."""
    limit_s: float | None = 0.0
    """In force, from the injection or the end of the process; None where it follows from minutes of measuring."""
    rules: dict[str, str] = field(default_factory=dict)
    steps: tuple[int, int] = STEPS
    every_s: float = 0.01
    """Pause after each step."""
    wait_s: float = 90.0
    """From the injection until it is called missed."""
    gpu: bool = False


def _crash(name: str, fault: str, says: str, *, gpu: bool = False) -> Fault:
    return Fault(name=name, rule="crash", fault=fault, says=says, gpu=gpu)


def _stall(name: str, stage: str, *, gpu: bool = False) -> Fault:
    return Fault(name=name, rule="stall", says=f"in stage ({stage})", limit_s=STALL_S, gpu=gpu)


LEAK = "window_s = 600\ngone_within_s = 1e6\nmin_rise_fraction = 0.004"
"""Ten minutes are the least from which a slope is told."""
SLOW = "window_s = 90\nmin_stretches = 3"
FAULTS = (
    # The slowest first: they run beside the others.
    Fault(
        name="leak", rule="host_memory_slope", acts=False, limit_s=None, rules={"host_memory_slope": LEAK},
        every_s=0.05, steps=(50, 200), wait_s=900,
    ),
    Fault(
        name="slow", rule="throughput_drop", says="are usual here", acts=False, limit_s=None,
        rules={"throughput_drop": SLOW}, every_s=0.05, steps=(3200, 3800), wait_s=300,
    ),
    Fault(
        name="fragmentation", rule="fragmentation", acts=False, foretells="oom_gpu", limit_s=None, every_s=0.05,
        wait_s=180, gpu=True,
    ),
    _crash("gpu_error", "assertion", "device-side assert|Assertion", gpu=True),
    _crash("gpu_access", "illegal_access", "illegal memory access", gpu=True),
    _crash("gpu_oom", "oom_gpu", "out of memory", gpu=True),
    _stall("gpu_sleep", "step", gpu=True),
    _crash("workload_exc", "exception", "InjectedError: workload"),
    _crash("async_exc", "exception", "InjectedError"),
    _crash("signal_exc", "exception", "InjectedError: signal handler"),
    _crash("os_abort", "killed_by_signal", "SIGABRT"),
    _stall("lock_gil", "step|data_wait"),
    _crash("segfault", "illegal_access", "SIGSEGV"),
    _crash("sigint", "killed_by_signal", "SIGINT"),
    _crash("sigkill", "killed_by_signal", "SIGKILL"),
    _crash("sigterm", "killed_by_signal", "SIGTERM"),
    _stall("sigstop", "step"),
    _stall("data_stall", "data_wait"),
    _stall("validation_stall", "validate"),
    Fault(name="nan", rule="non_finite_loss"),
    Fault(name="spike", rule="loss_spike", acts=False, steps=(600, 1200)),
)  # fmt: skip
"""NVRx's twelve kinds by the names of its injector, from `gpu_error` to `sigstop`, and what else a training meets."""
BY_NAME = {item.name: item for item in FAULTS}
