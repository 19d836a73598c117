"""Chooses the algorithm of each pass of a convolution at its first use, and remembers it.

What was timed on this device before is taken, in this process or in one that came before. Otherwise the candidates are
timed, as long as there is time for it (limits.tune_s) and the layer was not timed for many sizes already. After that
the nearest size that was timed decides, and where there is none, heuristic.py. Nothing is used on a GPU, and nothing
that was chosen by timing anywhere, before it agreed with im2col on the sizes at hand. Whatever fails here, im2col
computes the pass.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Optional, Tuple

import torch

from . import fallback
from . import limits as limits_
from .candidates import BOTH, FORWARD, INPUT, WEIGHT
from .case import Case
from .device import described
from .heuristic import preferred
from .plan import Plan
from .store import Store
from .tuner import Scarce, times, verdict
from .warn_once import warn_once

if TYPE_CHECKING:
    from .geometry import Geometry

BUCKETS = 8
"""Sizes for which one layer's pass is timed, at most."""

_choosing = threading.RLock()
_limits: Optional[limits_.Limits] = None
_stores: Dict[str, Store] = {}
known: Dict[Any, Tuple[Geometry, Plan]] = {}
"""The plans again by what fast_path.py knows them by."""
_spent_s = 0.0
timings = 0
"""Passes that this process timed; for those who want to know whether it did."""


def limits() -> limits_.Limits:
    """Return what the planner may do, at first as the environment says."""
    global _limits
    if _limits is None:
        _limits = limits_.from_environment()
    return _limits


def use(given: limits_.Limits) -> None:
    """Plan under these limits from now on, as a new process would: nothing is remembered, files are read again."""
    global _limits, _spent_s, timings
    with _choosing:
        _limits, _spent_s, timings = given, 0.0, 0
        _stores.clear()
        forget_plans()
        fallback.forget()


def forget_plans() -> None:
    """Forget all plans: every layer is planned again at its next call."""
    plan.cache_clear()
    known.clear()


fallback.when_all_given_back.append(forget_plans)


def store_of(device: torch.device) -> Store:
    """Return what is known of the device."""
    name = described(device)
    if name not in _stores:
        _stores[name] = Store(limits().folder, name, str(torch.__version__))
    return _stores[name]


@lru_cache(maxsize=4096)
def plan(
    x: Tuple[int, ...], weight: Tuple[int, ...], dtype: torch.dtype, device: torch.device, shape: Geometry
) -> Plan:
    """Return the plan for an input and a weight of these sizes; each pass is chosen at its first use."""
    case = Case(x, weight, dtype, device, shape, limits())
    chosen = Plan(_raise_undecided, _raise_undecided, _raise_undecided, case=case)
    chosen.forward = _First(case, chosen, FORWARD)
    chosen.input_gradient = _First(case, chosen, INPUT)
    chosen.weight_gradient = _First(case, chosen, WEIGHT)
    if case.candidates(BOTH):
        chosen.both = _FirstBoth(case, chosen)
    return chosen


def _raise_undecided(*_: Any) -> Any:
    raise AssertionError("a plan without passes")


class _First:
    """A pass that is chosen at its first use, and then takes its place in the plan."""

    def __init__(self, case: Case, chosen: Plan, kind: str) -> None:
        self._case, self._plan, self._kind = case, chosen, kind

    def __call__(self, *operands: Any) -> Any:
        return self.decided(operands)(*operands)

    def decided(self, operands: Tuple[Any, ...]) -> Callable[..., Any]:
        """Return the pass, chosen; not for good where the device records a graph or memory is scarce."""
        case, kind = self._case, self._kind
        if case.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return _by_rule(case, kind)
        with _choosing, torch.no_grad():
            try:
                given_back = fallback.is_given_back(case.layer)
                run = case.reference(kind) if given_back else _choose_pass(case, kind, operands, store_of(case.device))
            except Scarce:
                return _by_rule(case, kind)
            except Exception as error:
                warn_once(f"a plan could not be made ({type(error).__name__}: {error}); im2col takes its place")
                run = case.reference(kind)
            self._plan.give(kind, run)
            self._plan.join(case.shape)
        return run


class _FirstBoth:
    """Both gradients, together or apart as was chosen at the first use."""

    def __init__(self, case: Case, chosen: Plan) -> None:
        self._case, self._plan = case, chosen

    def __call__(self, dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry) -> Any:
        run = self._decide_both(dy, x, weight, shape)
        if run is not None:
            return run(dy, x, weight, shape)
        dx = self._plan.input_gradient(dy, weight, x.shape[2:], shape)
        return dx, self._plan.weight_gradient(dy, x, shape)

    def _decide_both(self, dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry) -> Any:
        case = self._case
        if case.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        if fallback.is_given_back(case.layer):
            return None
        with _choosing, torch.no_grad():
            try:
                store = store_of(case.device)
                pairs = ((INPUT, (dy, weight, x.shape[2:], shape)), (WEIGHT, (dy, x, shape)))
                together = _rank_together(case, (dy, x, weight, shape), pairs, store)
                run = _first_right(case, BOTH, together, (dy, x, weight, shape), store) if together else None
            except Scarce:
                return None
            except Exception as error:
                warn_once(f"a plan could not be made ({type(error).__name__}: {error}); im2col takes its place")
                run = None
            self._plan.both = run
        return run


def _rank_together(case: Case, operands: Any, pairs: Any, store: Store) -> Tuple[str, ...]:
    """Return the names that make both gradients at once for less than the best two apart, the best first."""
    apart = [_find_times(case, kind, given, store) for kind, given in pairs]
    both = _find_times(case, BOTH, operands, store)
    if both is None or apart[0] is None or apart[1] is None:
        return preferred(case, BOTH)
    limit = min(apart[0].values()) + min(apart[1].values())
    return tuple(name for name in _rank_by_time(both) if both[name] < limit)


def _choose_pass(case: Case, kind: str, operands: Tuple[Any, ...], store: Store) -> Callable[..., Any]:
    timed = _find_times(case, kind, operands, store)
    names = _rank_by_time(timed) if timed else ()
    run = _first_right(case, kind, (*names, *preferred(case, kind)), operands, store, by_rule=not timed)
    return case.reference(kind) if run is None else run


def _first_right(  # noqa: PLR0913 - what a trial needs
    case: Case, kind: str, names: Iterable[str], operands: Tuple[Any, ...], store: Store, *, by_rule: bool = False
) -> Optional[Callable[..., Any]]:
    """Return the first of the names that agrees with im2col; a CPU's BLAS is trusted where only rules chose."""
    found = case.candidates(kind)
    for name in names:
        if name not in found or store.why_wrong(kind, case.layer, name):
            continue
        run = case.function(kind, found[name])
        trusted = name == "columns" or (by_rule and case.device.type == "cpu")
        if trusted or store.is_right(kind, case.exact, name) or verdict(case, kind, name, run, operands, store):
            return run
    return None


def _by_rule(case: Case, kind: str) -> Callable[..., Any]:
    """Return what the rules choose, without a trial; of what is not known to be wrong."""
    found, store = case.candidates(kind), store_of(case.device)
    for name in preferred(case, kind):
        if name in found and not store.why_wrong(kind, case.layer, name):
            return case.function(kind, found[name])
    return case.reference(kind)


def _rank_by_time(ms: Dict[str, float]) -> Tuple[str, ...]:
    return tuple(sorted(ms, key=lambda name: ms[name]))


def _find_times(case: Case, kind: str, operands: Tuple[Any, ...], store: Store) -> Optional[Dict[str, float]]:
    """Return what the pass' candidates cost: as known, or timed now, or of the nearest size; None where none is known.

    Of names that are allowed here and not banned.
    """
    known = store.times.get((kind, case.layer, case.bucket_name))
    if known is None:
        known = _timed_now(case, kind, operands, store) or store.nearest(kind, case.layer, case.bucket)
    found = case.candidates(kind)
    usable = {
        name: ms for name, ms in (known or {}).items() if name in found and not store.why_wrong(kind, case.layer, name)
    }
    return usable or None


def _timed_now(case: Case, kind: str, operands: Tuple[Any, ...], store: Store) -> Optional[Dict[str, float]]:
    global _spent_s, timings
    found = case.candidates(kind)
    if (
        len(found) < (1 if kind == BOTH else 2)
        or _spent_s >= limits().tune_s
        or store.buckets(kind, case.layer) >= BUCKETS
    ):
        return None
    began = monotonic_ns()
    try:
        measured = times(case, kind, preferred(case, kind), operands, store)
    finally:
        if case.device.type == "cuda":
            torch.cuda.empty_cache()  # what was timed and not chosen shall not stay in the GPU's memory
        _spent_s += (monotonic_ns() - began) / 1e9
    if measured is not None:
        timings += 1
        store.timed(kind, case.layer, case.bucket_name, measured)
    return measured
