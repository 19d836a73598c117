"""What only a start can apply and may help a training: a tune names it, with the line for its configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from supervisor.core.tuning.knob import Facts, Kind, NotTried
from supervisor.core.tuning.restarts import StartArm

EXPANDABLE_SINCE = (2, 1)
"""The torch from which on an allocator knows segments that grow; an older one does not start with them."""
RESTART = "restart"
"""The word of `--may` without which a tune makes no start."""
ENVIRONMENT = "environment"
"""The knob whose values are the job's environments."""
MALLOC_KEEPS = str(1 << 30)
"""Bytes up to which freed memory is kept: by itself glibc gives large tensors back, and each new one is faulted in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is known of how a training was started, besides what its agent reports of it."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that it was started with: what one of them decides is left to who has set it."""
    torch: tuple[int, int] | None = None
    """Its version; None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartKnob:
    """One setting that only a start can apply."""

    name: str
    fits: Callable[[Facts, Start], bool]
    env: Callable[[Facts], Mapping[str, str]]
    """Variables that set it."""
    kind: Kind
    decided_by: tuple[str, ...]
    """Variables that decide the same, its own among them."""
    outranked_by: tuple[str, ...] = ()
    """Settings of remedies: what one of them has changed is not named."""


def _allocator(facts: Facts) -> Mapping[str, str]:
    return {f"PYTORCH_{'HIP' if facts.hip else 'CUDA'}_ALLOC_CONF": "expandable_segments:True"}


def _binding(facts: Facts) -> Mapping[str, str]:
    # The two that GNU's and Intel's OpenMP both obey; threads are as many as they are.
    return {"OMP_NUM_THREADS": str(facts.threads), "OMP_PLACES": "cores", "OMP_PROC_BIND": "close"}


START_KNOBS: tuple[StartKnob, ...] = (
    StartKnob(
        name="allocator",
        fits=lambda facts, start: bool(facts.cuda) and start.torch is not None and start.torch >= EXPANDABLE_SINCE,
        env=_allocator,
        kind=Kind.SAME_ARITHMETIC,
        decided_by=("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        outranked_by=("allocator",),
    ),
    StartKnob(
        name="miopen_find_mode",
        fits=lambda facts, _start: bool(facts.hip and facts.convolves and facts.cudnn_benchmark),
        env=lambda _facts: {"MIOPEN_FIND_MODE": "NORMAL"},
        kind=Kind.NUMERICS,
        decided_by=("MIOPEN_FIND_MODE", "MIOPEN_FIND_ENFORCE"),
        outranked_by=("cudnn", "conv2d"),
    ),
    StartKnob(
        name="hipblaslt",
        fits=lambda facts, _start: bool(facts.hip),
        env=lambda _facts: {"TORCH_BLAS_PREFER_HIPBLASLT": "1"},
        kind=Kind.NUMERICS,
        decided_by=("TORCH_BLAS_PREFER_HIPBLASLT", "TORCH_BLAS_PREFER_CUBLASLT"),
    ),
    StartKnob(
        name="openmp_binding",
        # Workers of a loader would be bound to the processor of the training's first thread.
        fits=lambda facts, _start: facts.device == "cpu" and (facts.threads or 0) > 1 and facts.workers == 0,
        env=_binding,
        kind=Kind.SAME_ARITHMETIC,
        decided_by=("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"),
    ),
    StartKnob(
        name="malloc",
        fits=lambda facts, _start: facts.device == "cpu",
        env=lambda _facts: {"MALLOC_MMAP_THRESHOLD_": MALLOC_KEEPS, "MALLOC_TRIM_THRESHOLD_": MALLOC_KEEPS},
        kind=Kind.SAME_ARITHMETIC,
        decided_by=("LD_PRELOAD", "MALLOC_CONF", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"),
    ),
)


def list_left_to_starts(facts: Facts, start: Start, remedied: Iterable[str]) -> tuple[NotTried, ...]:
    """Return what fits a training, was decided by no variable and no remedy, and takes a start to be tried."""
    return tuple(
        NotTried(knob=knob.name, why=f"takes a start: --may {RESTART}, or env = {_write(knob.env(facts))}")
        for knob in _list_fitting(facts, start, remedied)
    )


def list_start_arms(
    facts: Facts, start: Start, remedied: Iterable[str], environments: Iterable[str], environment: str | None
) -> tuple[StartArm, ...]:
    """Return what to try with starts: the settings that fit, then the job's environments, if it runs in its own.

    What a remedy or an earlier tune moved to another environment stays there.
    """
    knobs = [
        StartArm(
            knob=knob.name,
            value=" ".join(f"{name}={value}" for name, value in knob.env(facts).items()),
            kind=knob.kind,
            env=tuple(knob.env(facts).items()),
        )
        for knob in _list_fitting(facts, start, remedied)
    ]
    others = () if environment is not None else environments
    return (*knobs, *(StartArm(knob=ENVIRONMENT, value=name, kind=Kind.NUMERICS, environment=name) for name in others))


def _list_fitting(facts: Facts, start: Start, remedied: Iterable[str]) -> list[StartKnob]:
    taken = set(remedied)
    return [
        knob
        for knob in START_KNOBS
        if knob.fits(facts, start) and not taken.intersection(knob.outranked_by)
        if not any(name in start.env for name in knob.decided_by)
    ]


def read_version(text: object) -> tuple[int, int] | None:
    """Return the first two numbers of a version as torch writes it, None for what is none."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", text) if isinstance(text, str) else None
    return None if found is None else (int(found[1]), int(found[2]))


def _write(env: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f'{name} = "{value}"' for name, value in env.items()) + " }"
