"""The knobs, a row each: what may be tried, how it is applied, what it needs, and which remedies outrank it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum

from supervisor.core.foreign_values import BYTES_MAX, as_int
from supervisor.core.tuning.guards import most_workers
from supervisor.core.units import MB


class Kind(Enum):
    """What a change may do to the numbers of a training."""

    SAME_ARITHMETIC = "same arithmetic"
    NUMERICS = "numerics"
    """Rounding differs: a replay of the same batches has to agree first."""
    OPTIMISATION = "optimisation"
    """Another training: never without permission."""


class How(Enum):
    """How a knob is applied."""

    LIVE = "live"
    RESTART = "restart"


class Phase(Enum):
    """The order in which knobs are tried: half precision gains little in a layout that its kernels do not take."""

    DATA = "data"
    JOINED = "joined micro-batches"
    """First of what a GPU computes: an update of several is most of all launches, and all further steps get cheaper."""
    ATTENTION = "attention"
    """With half precision and a fused update: the most that a decoder gains, reached in a short tune as well."""
    PRECISION = "precision"
    """One switch. What follows is proven in it by replays; its rounding is small enough to tell another sum."""
    MEMORY = "memory"
    """Speed for memory that is there. Where there is too little it is tried again after what leaves more of it."""
    LAYOUT = "layout"
    HALF = "half precision"
    KERNELS = "kernels"
    COMPILE = "compile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the agent reports of a training before anything is tried; None is unknown."""

    device: str | None = None
    processors: int | None = None
    """That the training may use."""
    workers: int | None = None
    prefetch: int | None = None
    loader_why_not: str | None = None
    """Why its loader cannot be changed while it runs."""
    pinned: bool | None = None
    threads: int | None = None
    optimizer: str | None = None
    fused: bool | None = None
    fused_why_not: str | None = None
    channels_last: bool | None = None
    channels_last_why_not: str | None = None
    tf32: bool | None = None
    autocast: bool | None = None
    """Whether the training computes under autocast by itself."""
    autocast_why_not: str | None = None
    attention: str | None = None
    """Of a model of transformers."""
    attention_why_not: str | None = None
    checkpointing: bool | None = None
    """Whether layers compute their activations twice to save memory."""
    checkpointing_why_not: str | None = None
    micro_batches: int | None = None
    """Of one update, where a framework accumulates their gradients."""
    micro_batch_why_not: str | None = None
    compiled: bool | None = None
    """Whether the calls of its models are compiled graphs already."""
    compile_why_not: str | None = None
    convolves: bool | None = None
    steps_per_update: int | None = None
    """Steps that are recorded for each of the optimizer's."""
    batch_size: int | None = None
    """Samples of a batch of its loader, where a start can change it."""
    batch_why_not: str | None = None
    batch_bytes: int | None = None
    shm_bytes: int | None = None
    """Free for what workers hand over."""
    card_bytes: int | None = None
    """Memory of the GPU."""
    available_bytes: int | None = None
    """Memory of the machine that is available."""
    cudnn_benchmark: bool | None = None
    cuda: bool = False
    hip: bool = False


WORKERS_MAX = 16

Values = Callable[[Facts], Sequence[object]]
Reason = Callable[[Facts], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTried:
    """A knob that is not tried, or one of its values, and why."""

    knob: str
    why: str
    value: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One setting that can be tried."""

    name: str
    phase: Phase
    kind: Kind
    values: Values
    """What to try, in order; the next one is tried from the best so far."""
    why_not: Reason = lambda _facts: None
    """Why it cannot be tried on this training; None: it can."""
    needless: str = "already set"
    """Why there is no value to try, where there is none."""
    permission: str | None = None
    """The word of `--may` without which it is not tried."""
    outranked_by: tuple[str, ...] = ()
    """Settings of remedies: what one of them has changed is not offered."""
    how: How = How.LIVE
    stop_after_loss: bool = False
    """Whether larger values are left out once one was no gain."""
    stop_after_gain: bool = False
    """Whether the values that are left are dropped once one was a gain."""
    again_after: tuple[str, ...] = ()
    """Knobs that may make a gain of what was none: adopted after it was refused, it is tried once more."""
    along: tuple[str, ...] = ()
    """Knobs whose first value is set along with each of its own, where they are to be tried: one proof for all."""
    falls_apart: bool = False
    """Whether it is tried by itself where it was refused with the values along, as those are."""
    idle_under: str | None = None
    """The knob under which it changes nothing, once that is adopted."""
    is_costly: bool = False
    """Whether each change of it costs many steps: batches that were begun are delivered first."""
    keeps_losses: Callable[[Facts], bool] = lambda _facts: False
    """Whether it makes losses no little worse, so that its gain need not wait until they are known to be no worse."""
    after_review: bool = False
    """Whether it is tried once all else is settled: what changes under it has to be compiled once more."""
    left: Callable[[Facts], Sequence[NotTried]] = lambda _facts: ()
    """Values that it would be tried with on a machine with more memory."""


COPIED_BYTES_MIN = 1_000_000
"""Of a batch: smaller ones are copied to a GPU within microseconds, pinned or not."""
PREFETCH = 2
MORE_PREFETCH = 4


def _more_workers(facts: Facts) -> Sequence[object]:
    room = _workers_with_room(facts, facts.prefetch or PREFETCH)
    return [count for count in _list_counts(facts) if count <= room]


def _list_counts(facts: Facts) -> Sequence[int]:
    """Return how many workers are worth a trial where there is memory for them."""
    most = min(WORKERS_MAX, max(1, facts.processors or 1))
    return [count for count in (most, 2 * most) if count > (facts.workers or 0)]


def _too_many_workers(facts: Facts) -> Sequence[NotTried]:
    room = _workers_with_room(facts, facts.prefetch or PREFETCH)
    why = f"memory or /dev/shm has room for the batches that {room} workers draw ahead"
    return [NotTried(knob="workers", value=count, why=why) for count in _list_counts(facts) if count > room]


def _workers_with_room(facts: Facts, prefetch: int) -> int:
    """Return how many workers memory allows, as far as it is known what their batches take."""
    if not facts.batch_bytes or facts.available_bytes is None or facts.shm_bytes is None:
        return 2 * WORKERS_MAX
    return most_workers(prefetch, facts.batch_bytes, facts.available_bytes, facts.shm_bytes)


def _has_workers(facts: Facts) -> bool:
    """Whether other processes draw batches already: losses need not show first that the data can be read there."""
    return bool(facts.workers)


def _no_more_workers(facts: Facts) -> str | None:
    if facts.loader_why_not is None and _list_counts(facts) and not _more_workers(facts):
        return f"a batch of {(facts.batch_bytes or 0) / MB:.0f} MB drawn ahead has no room in memory or /dev/shm"
    return facts.loader_why_not


def _more_prefetch(facts: Facts) -> Sequence[object]:
    return (MORE_PREFETCH,) if (facts.prefetch or PREFETCH) < MORE_PREFETCH else ()


def _no_more_prefetch(facts: Facts) -> str | None:
    if facts.loader_why_not is not None:
        return facts.loader_why_not
    if facts.workers is None:
        return "the workers of its loader are not known"
    if _workers_with_room(facts, MORE_PREFETCH) < max(1, facts.workers):
        return f"{MORE_PREFETCH} batches a worker drawn ahead have no room in memory or /dev/shm"
    return None


def _other_threads(facts: Facts) -> Sequence[object]:
    most = facts.processors or 1
    found = {most, max(1, most // 2)} - {facts.threads}
    return sorted(found, reverse=True)


def _small_batch(facts: Facts) -> str | None:
    size = facts.batch_bytes
    return None if size is None or size >= COPIED_BYTES_MIN else f"a batch of {size / 1e3:.0f} kB is copied in no time"


def _fewer_micro_batches(facts: Facts) -> Sequence[object]:
    """Return how many micro-batches to compute as one: all of an update, else half of them."""
    count = facts.micro_batches or 1
    return [value for value in dict.fromkeys((count, count // 2)) if value > 1 and count % value == 0]


def _needs_cuda(facts: Facts) -> str | None:
    return None if facts.cuda else "no CUDA device is in use"


KNOBS: tuple[Knob, ...] = (
    Knob(
        name="workers",
        phase=Phase.DATA,
        kind=Kind.SAME_ARITHMETIC,
        values=_more_workers,
        why_not=_no_more_workers,
        outranked_by=("workers", "workers_factor"),
        stop_after_loss=True,
        along=("pin_memory",),
        is_costly=True,
        keeps_losses=_has_workers,
        left=_too_many_workers,
    ),
    Knob(
        name="pin_memory",
        phase=Phase.DATA,
        kind=Kind.SAME_ARITHMETIC,
        values=lambda facts: () if facts.pinned else (True,),
        why_not=lambda facts: facts.loader_why_not or _needs_cuda(facts) or _small_batch(facts),
        outranked_by=("pin_memory",),
    ),
    Knob(
        name="prefetch_factor",
        phase=Phase.DATA,
        kind=Kind.SAME_ARITHMETIC,
        values=_more_prefetch,
        why_not=_no_more_prefetch,
        outranked_by=("workers", "workers_factor"),
        is_costly=True,
        keeps_losses=lambda _facts: True,
    ),
    Knob(
        name="threads",
        phase=Phase.KERNELS,
        kind=Kind.NUMERICS,
        values=_other_threads,
        why_not=lambda facts: "the threads of the processor do not matter to a GPU" if facts.cuda else None,
    ),
    Knob(
        name="cudnn_benchmark",
        phase=Phase.KERNELS,
        kind=Kind.NUMERICS,
        values=lambda facts: () if facts.cudnn_benchmark else (True,),
        why_not=lambda facts: "no layer convolves" if facts.convolves is False else _needs_cuda(facts),
        outranked_by=("cudnn", "conv2d"),
    ),
    Knob(
        name="fused_optimizer",
        phase=Phase.KERNELS,
        kind=Kind.NUMERICS,
        values=lambda facts: () if facts.fused else (True,),
        why_not=lambda facts: facts.fused_why_not,
    ),
    Knob(
        name="channels_last",
        phase=Phase.LAYOUT,
        kind=Kind.NUMERICS,
        values=lambda facts: () if facts.channels_last else (True,),
        again_after=("autocast",),
        why_not=lambda facts: facts.channels_last_why_not,
        outranked_by=("conv2d",),
    ),
    Knob(
        name="attention",
        phase=Phase.ATTENTION,
        kind=Kind.NUMERICS,
        values=lambda facts: ("sdpa",) if facts.attention == "eager" else (),
        again_after=("autocast",),
        along=("autocast", "fused_optimizer"),
        falls_apart=True,
        why_not=lambda facts: facts.attention_why_not if facts.attention in {None, "eager"} else None,
    ),
    Knob(
        name="tf32",
        phase=Phase.PRECISION,
        kind=Kind.NUMERICS,
        values=lambda facts: () if facts.tf32 else (True,),
        idle_under="autocast",
        why_not=lambda facts: "TF32 is NVIDIA's" if facts.hip else _needs_cuda(facts),
        permission="precision",
    ),
    Knob(
        name="autocast",
        phase=Phase.HALF,
        kind=Kind.NUMERICS,
        values=lambda facts: () if facts.autocast else ("bfloat16",),
        why_not=lambda facts: facts.autocast_why_not,
        permission="precision",
        outranked_by=("amp",),
    ),
    Knob(
        name="checkpointing",
        phase=Phase.MEMORY,
        kind=Kind.SAME_ARITHMETIC,
        values=lambda facts: (False,) if facts.checkpointing else (),
        needless="no activations are seen to be checkpointed",
        why_not=lambda facts: facts.checkpointing_why_not if facts.checkpointing else None,
        again_after=("attention", "autocast"),
        outranked_by=("allocator", "batch_factor", "image_factor"),
    ),
    Knob(
        name="micro_batch",
        phase=Phase.JOINED,
        kind=Kind.NUMERICS,
        values=_fewer_micro_batches,
        why_not=lambda facts: facts.micro_batch_why_not,
        outranked_by=("allocator", "batch_factor", "image_factor"),
        stop_after_gain=True,
    ),
    Knob(
        name="compile",
        phase=Phase.COMPILE,
        kind=Kind.NUMERICS,
        values=lambda facts: () if facts.compiled else ("default",),
        why_not=lambda facts: "the agent of this attempt cannot" if facts.compiled is None else facts.compile_why_not,
        outranked_by=("conv2d",),
        after_review=True,
    ),
)


def choose_knobs(
    facts: Facts, *, may: Iterable[str], remedied: Iterable[str], knobs: Sequence[Knob] = KNOBS
) -> tuple[tuple[Knob, ...], tuple[NotTried, ...]]:
    """Return the knobs to try in the order of their phases, and those that are not tried.

    `may` are the owner's permissions; `remedied` the settings that remedies have changed, which always outrank.
    """
    allowed, taken = set(may), set(remedied)
    order = list(Phase)
    tried: list[Knob] = []
    left: list[NotTried] = []
    for knob in sorted(knobs, key=lambda knob: order.index(knob.phase)):
        why = _why_left(knob, facts, allowed, taken)
        if why is None:
            tried.append(knob)
            left += knob.left(facts)
        else:
            left.append(NotTried(knob=knob.name, why=why))
    return tuple(tried), tuple(left)


def _why_left(knob: Knob, facts: Facts, allowed: set[str], taken: set[str]) -> str | None:
    remedies = sorted(taken.intersection(knob.outranked_by))
    if remedies:
        return f"the remedy setting {remedies[0]} outranks it"
    if knob.permission is not None and knob.permission not in allowed:
        return f"not without permission: --may {knob.permission}"
    if knob.kind is Kind.OPTIMISATION and knob.permission is None:
        return "changes the training itself"
    why_not = knob.why_not(facts)
    if why_not is not None:
        return why_not
    return None if knob.values(facts) else knob.needless


COUNTED = ("processors", "workers", "prefetch", "threads", "micro_batches", "batch_size", "steps_per_update")
COUNTED_MAX = 65_536


def facts_of(reported: Mapping[str, object]) -> Facts:
    """Return the facts that an agent reported; what is of no expected type, or no training has, is unknown."""
    names = [field.name for field in fields(Facts)]
    kinds: dict[str, tuple[type, ...]] = {
        **dict.fromkeys(
            ("device", "optimizer", "attention", *(name for name in names if name.endswith("_why_not"))), (str,)
        ),
        **dict.fromkeys(("pinned", "fused", "channels_last", "checkpointing", "convolves", "compiled"), (bool,)),
        **dict.fromkeys(("tf32", "autocast", "cudnn_benchmark", "cuda", "hip"), (bool,)),
    }
    known: dict[str, object] = {
        **{name: as_int(reported.get(name), maximum=COUNTED_MAX) for name in COUNTED},
        **{name: as_int(reported.get(name), maximum=BYTES_MAX) for name in names if name.endswith("_bytes")},
    }
    for name, types in kinds.items():
        value = reported.get(name)
        if isinstance(value, types) and (types == (bool,)) == isinstance(value, bool):
            known[name] = value
    return Facts(**known)  # type: ignore[arg-type] # each value is of its field's type, checked above
