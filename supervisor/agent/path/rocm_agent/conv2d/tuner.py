"""Times the candidates for one pass on the training's own tensors, and bans those with wrong results.

Every candidate is compared with im2col before it is timed, on a part of the batch. Timing takes a part as well where
the batch is large, but for 1x1 kernels, which have no columns: a first step shall need no more memory than the others.
"""

from __future__ import annotations

from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple

from .candidates import BATCHED
from .clock import Watch
from .verify import agrees

if TYPE_CHECKING:
    from .case import Case
    from .store import Store

SAMPLES = 8
"""Up to so many samples, or half of the batch, are timed."""
PASS_S = {"cuda": 2.0, "cpu": 1.5}
"""Seconds from which one pass' remaining candidates are left out."""
REPEATS = 3
MOST_REPEATS = 8
SHORT_S = {"cuda": 0.03, "cpu": 0.0}
"""Seconds within which a pass' candidates are timed more often than REPEATS: what a process takes to hand a pass over
is disturbed by whatever shares its cores, and the least of three such times is no measure."""
HOPELESS = 2.0
"""Times the best candidate's cost from which one is timed no more."""


class Scarce(Exception):  # noqa: N818 - no error: there is too little memory to say
    """The device has too little memory for a trial; it says nothing about what was tried."""


def verdict(  # noqa: PLR0913, PLR0917 - what a trial needs
    case: Case, kind: str, name: str, run: Callable[..., Any], operands: Tuple[Any, ...], store: Store
) -> bool:
    """Return whether `name` computes the pass as im2col does; ban it where it does not or fails; raise Scarce."""
    try:
        with store.trying(kind, case.layer, name):
            why = agrees(run, case.reference(kind), operands, BATCHED[kind])
    except MemoryError as error:
        raise Scarce from error
    except Exception as error:
        if "out of memory" in str(error):
            raise Scarce from error
        why = f"{type(error).__name__}: {error}"
    if why:
        store.wrong(kind, case.layer, name, why)
        return False
    store.right(kind, case.exact, name)
    return True


def times(
    case: Case, kind: str, first: Tuple[str, ...], operands: Tuple[Any, ...], store: Store
) -> Optional[Dict[str, float]]:
    """Return the milliseconds of each candidate that is right, those named `first` before the others.

    They run in turn, so that what disturbs the machine for a while disturbs them alike. None where memory is too scarce
    to say.
    """
    found, ends = case.candidates(kind), monotonic_ns() + int(PASS_S[case.device.type] * 1e9)
    given = operands if case.shape.kernel == (1, 1) else _take_samples(operands, BATCHED[kind])
    share = given[0].shape[0] / max(1, operands[0].shape[0])
    watches: Dict[str, Watch] = {}
    for name in (*(name for name in first if name in found), *(name for name in found if name not in first)):
        if store.why_wrong(kind, case.layer, name) or (watches and monotonic_ns() > ends):
            continue
        run = case.function(kind, found[name])
        try:
            if verdict(case, kind, name, run, operands, store):
                watch = Watch(partial(run, *given), case.device, share, by_sample=found[name].by_sample)
                if _time_run(watch, case, kind, name, store):
                    watches[name] = watch
        except Scarce:
            continue
    short = monotonic_ns() + int(SHORT_S[case.device.type] * 1e9)
    for repeat in range(1, MOST_REPEATS):
        if repeat >= REPEATS and monotonic_ns() > short:
            break
        best = min((watch.ms for watch in watches.values()), default=0.0)
        for name, watch in tuple(watches.items()):
            if watch.ms <= HOPELESS * best and monotonic_ns() < ends and not _time_run(watch, case, kind, name, store):
                del watches[name]
    return {name: watch.ms for name, watch in watches.items()} or None


def _time_run(watch: Watch, case: Case, kind: str, name: str, store: Store) -> bool:
    """Time one run and return whether it came to its end; ban what fails for another reason than memory."""
    try:
        with store.trying(kind, case.layer, name):
            watch.run()
    except Exception as error:
        if "out of memory" not in str(error):
            store.wrong(kind, case.layer, name, f"{type(error).__name__}: {error}")
        return False
    return True


def _take_samples(operands: Tuple[Any, ...], batched: int) -> Tuple[Any, ...]:
    batch = operands[0].shape[0]
    samples = min(batch, max(SAMPLES, batch // 2))
    return (*(operand[:samples] for operand in operands[:batched]), *operands[batched:])
