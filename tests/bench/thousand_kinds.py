"""The kinds of fault of thousand_faults.py: who strikes, what must be found, and how the training must end."""

from __future__ import annotations

from dataclasses import dataclass, field

SNAPSHOTS = ("loop", "lightning", "transformers", "ultralytics")
"""Trainings that are resumed from snapshots of the supervisor."""
ALL = (*SNAPSHOTS, "own")
HOOKED = ("lightning", "transformers", "ultralytics")
"""Those that tell their plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault."""

    name: str
    group: str
    found: frozenset[tuple[str, str | None]] = frozenset()
    """The rule and class of the incident, any of them; empty where there must be none."""
    frameworks: tuple[str, ...] = ALL
    found_with: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The rule and class with a framework that makes another end of it, by the framework's name."""
    by: str = ""
    """What the bench does from outside; empty where the training hurts itself."""
    reported: str | None = None
    """The rule that must have told of it."""
    incidents: int | None = None
    phase: str = "finished"
    spoils: bool = False
    """Whether what is computed from the fault on is harm, and no work."""
    intervals: int = 1
    """How many intervals of snapshots may be lost: two where the fault is that the newest save is destroyed."""
    steps: tuple[int, int] = (26, 44)
    epochs: int = 6
    every_s: float = 0.05
    workers: int = 0
    gpu: bool = False
    kernel: bool = False
    clock: bool = False
    small_disk: bool = False
    rules: dict[str, str] = field(default_factory=dict)
    budget: str = ""

    @property
    def stands(self) -> bool:
        """Whether it is found by the missing step, or whether a pause must not be found."""
        return not self.found or any(rule == "stall" for rule, _ in self.found)

    def expected(self, framework: str) -> frozenset[tuple[str, str | None]]:
        """Return the rule and class of the incident with a framework, any of them."""
        special = self.found_with.get(framework)
        return self.found if special is None else frozenset({special})

    @property
    def troubles(self) -> int:
        """How many incidents there must be."""
        return len(self.found) and 1 if self.incidents is None else self.incidents


def _crash(
    name: str, fault: str, *faults: str, group: str = "process", frameworks: tuple[str, ...] = ALL, by: str = "",
    intervals: int = 1, workers: int = 0, gpu: bool = False, kernel: bool = False, lightning: str = "",
) -> Kind:  # fmt: skip
    found = frozenset(("crash", each) for each in (fault, *faults))
    return Kind(
        name=name, group=group, found=found, frameworks=frameworks, by=by, intervals=intervals, workers=workers,
        gpu=gpu, kernel=kernel, found_with={"lightning": ("crash", lightning)} if lightning else {},
    )  # fmt: skip


def _stall(name: str, *, group: str, frameworks: tuple[str, ...] = ALL, gpu: bool = False) -> Kind:
    found = frozenset({("stall", None), ("busy_without_progress", None)}) if gpu else frozenset({("stall", None)})
    return Kind(name=name, group=group, found=found, frameworks=frameworks, gpu=gpu)


def _numbers(name: str, *, frameworks: tuple[str, ...] = ALL) -> Kind:
    found = frozenset({("non_finite_loss", None), ("non_finite_grad", None)})
    # Within an epoch of 12 steps: at its end ultralytics goes back to its own last.pt.
    return Kind(name=name, group="numerics", found=found, frameworks=frameworks, spoils=True, steps=(37, 44))


def _harmless(name: str, group: str, *, by: str = "", frameworks: tuple[str, ...] = SNAPSHOTS) -> Kind:
    return Kind(
        name=name, group=group, by=by, frameworks=frameworks, clock=group == "clock", kernel=group == "kernel word"
    )


SIGNAL = "killed_by_signal"
KINDS = (
    _crash("exception", "exception"),
    _crash("async_exception", "exception"),
    _crash("signal_exception", "exception"),
    _crash("abort", SIGNAL),
    _crash("segfault", "illegal_access"),
    _crash("bus_error", "illegal_access"),
    _crash("sigill", SIGNAL),
    _crash("sigfpe", SIGNAL),
    _crash("sigquit", SIGNAL),
    # Lightning handles both: SIGINT ends it with status 1, SIGTERM at its next step with status 0, short of its plan.
    _crash("sigint", SIGNAL, lightning="exit_code"),
    _crash("sigterm", SIGNAL, lightning="ended_early"),
    _crash("sigkill", SIGNAL),
    _crash("stranger_sigterm", SIGNAL, by="sigterm", lightning="ended_early"),
    _crash("stranger_sigkill", SIGNAL, by="sigkill"),
    _crash("exit_0", "ended_early", frameworks=HOOKED),
    _crash("exit_3", "exit_code"),
    Kind(
        name="sigstop", group="process", found=frozenset({("stall", None), ("stopped_process", None)}),
        rules={"stopped_process": "continue_first = false"},
    ),
    _stall("lock_gil", group="process"),
    _stall("deadlock", group="process"),
    Kind(
        name="exit_7", group="given up rightly", found=frozenset({("crash", "exit_code")}), phase="failed",
        budget="never_retry_exit_codes = [7]\n",
    ),
    Kind(
        name="exception_again", group="given up rightly", found=frozenset({("crash", "exception")}), phase="failed",
        incidents=2, budget="restarts_per_cause = 1\n", frameworks=SNAPSHOTS,
    ),
    _crash("memory_limit", "oom_host", group="memory"),
    _crash("tensor_memory_limit", "oom_host", group="memory"),
    _crash("gpu_oom_raised", "oom_gpu", group="memory"),
    _crash("oom_killer", "oom_host", group="memory", by="oom_killer", kernel=True),
    _stall("loader_stall", group="data"),
    _stall("validation_stall", group="data"),
    Kind(
        name="worker_killed", group="data", workers=1,
        found=frozenset({("crash", "data_loader"), ("dead_worker", None), ("stall", None)}),
    ),
    _crash("item_exception", "exception", group="data"),
    _numbers("nan"),
    _numbers("inf"),
    _numbers("nan_weights"),
    _numbers("inf_gradient"),
    # Without a scaler the step of one bad batch is taken, and every loss after it is no number.
    _numbers("bad_batch"),
    Kind(
        name="bad_batch_skipped", group="numerics", reported="non_finite_loss", steps=(37, 44),
        frameworks=("loop", "own", "ultralytics"),
    ),
    Kind(
        name="spike", group="numerics", reported="loss_spike", frameworks=("loop", "own"), steps=(700, 900), epochs=100,
        every_s=0.004,
    ),
    _crash("save_truncated", SIGNAL, group="disk", intervals=2),
    _crash("save_corrupt", SIGNAL, group="disk", intervals=2),
    _crash("save_empty", SIGNAL, group="disk", intervals=2),
    _crash("save_poisoned", SIGNAL, group="disk", intervals=2),
    _crash("save_removed", SIGNAL, group="disk", intervals=2),
    _harmless("slow_save", "disk", frameworks=("own",)),
    Kind(
        name="disk_full", group="disk", by="disk_full", small_disk=True, frameworks=("own",), incidents=1,
        found=frozenset({("crash", "disk_full")}),
    ),
    _harmless("clock_hour_on", "clock", by="clock:3600"),
    _harmless("clock_hour_back", "clock", by="clock:-3600"),
    _harmless("clock_60_days_on", "clock", by=f"clock:{60 * 86400}"),
    Kind(
        name="clock_back_then_killed", group="clock", by="clock_kill:-3600", clock=True, frameworks=SNAPSHOTS,
        found=frozenset({("crash", SIGNAL)}),
    ),
    _harmless("daemon_killed", "daemon", by="daemon_killed", frameworks=ALL),
    _harmless("daemon_stopped", "daemon", by="daemon_stopped", frameworks=ALL),
    _harmless("machine_stood_still", "daemon", by="machine_stopped", frameworks=ALL),
    _crash("daemon_and_training_killed", SIGNAL, group="daemon", by="daemon_and_training"),
    _crash("power_cut", "host_lost", SIGNAL, group="daemon", by="power_cut"),
    _crash("shim_killed", "host_lost", SIGNAL, group="shim", by="shim_killed"),
    Kind(
        name="kernel_ring_timeout", group="kernel word", by="kernel_ring", kernel=True, spoils=True,
        found=frozenset({("gpu_fault", "gpu_hang")}), frameworks=("loop", "lightning", "transformers", "own"),
    ),
    # It tells that it trains on the processor: no word of a card is about it.
    _harmless("kernel_word_to_a_processor", "kernel word", by="kernel_ring", frameworks=("ultralytics",)),
    _harmless("kernel_word_of_another_card", "kernel word", by="kernel_other"),
    Kind(name="kernel_disk_error", group="kernel word", by="kernel_disk", kernel=True, reported="machine_fault"),
    _crash("gpu_error", "assertion", group="card", frameworks=("loop",), gpu=True),
    _crash("gpu_access", "illegal_access", group="card", frameworks=("loop",), gpu=True),
    _crash("gpu_oom", "oom_gpu", group="card", frameworks=("loop",), gpu=True),
    _stall("gpu_sleep", group="card", frameworks=("loop",), gpu=True),
)  # fmt: skip
BY_NAME = {kind.name: kind for kind in KINDS}
EVERY_S = 0.5
"""Between two snapshots; the loop `own` saves every tenth step, which takes as long."""


def stall(limit_s: float) -> str:
    """Return the table of the rule `stall` with one limit for every stage."""
    stages = ("limit_s", "data_wait_limit_s", "validate_limit_s", "rest_limit_s")
    return "\n".join(f"{stage} = {limit_s}" for stage in stages)
