"""A proof that changed settings compute what the owner's do: results and gradients of the model's own newest batches.

They differ by what rounding explains, or the settings are refused. How far rounding moves them is seen by shaking
weights and inputs by the size of one.
"""

from __future__ import annotations

import math
from typing import Any, Container, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import Refused, lengths
from .replay import ROUNDING, Calls, fill_zeros, list_open, shake_weights
from .rows import cut_rows, list_tensors

SAMPLED = 65_536
"""Numbers compared of each result and gradient: the logits of a language model are gigabytes, and so are its weights.

Not their sum: errors cancel in it, so that two of equal size may show sums that differ tenfold.
"""
FLOOR = 1e-4
"""Relative difference of results and gradients that is none."""
EXPLAINED = 8.0
"""Roundings: a net of fifty layers rounds at each of them, which its shaken inputs and weights do not show in full.

More layers round as a random walk goes: by the root of how many have weights, 17 of a decoder with 28 blocks.
"""
SHAKEN = 3.0
SHAKES_MIN, SHAKES_MAX = 2, 4
"""Directions in which a call is shaken: one may miss that in which its gradients are sensitive.

A call that no direction moves much is settled after the first ones, so that steady nets cost little more.
"""
MOVED = 0.1
"""Relative difference of gradients by a shake, from which on a call is shaken in all directions."""
APART_MAX = (0.1, 1.0)
"""Of results and of gradients: beyond it rounding is no explanation; unrelated gradients are 1.4 apart."""


Rows = Tuple[List[Any], List[Any]]
"""Of one call: numbers of its results, and of the gradients of each weight."""
Squares = Tuple[List[float], List[float]]


class Shake(NamedTuple):
    """What a shake, or an arm, has made of one call: squares of lengths, of each result and of each gradient."""

    own: Squares
    """Without the shake."""
    seen: Squares
    apart: Squares
    """Of the differences."""


class Measured(NamedTuple):
    """What the calls kept make under the settings in force, and how far rounding moves that."""

    params: List[Any]
    rows: Dict[int, Rows]
    sizes: Dict[int, Squares]
    """Squares of the lengths of the rows."""
    noise: Dict[int, Shake]
    """What the same settings make of each call the second time."""
    used: Dict[int, List[int]]
    """Of each call, the numbers of the weights that its gradients are those of."""
    shaken: Dict[float, Dict[int, List[Shake]]]
    """By the size of a rounding. Settings that were proven are as sensitive as those that they were proven on."""

    def after(self, rows: Dict[int, Rows]) -> Measured:
        """Return it with what settings make that were proven on it."""
        return self._replace(rows=rows, sizes={number: _square_all(each) for number, each in rows.items()})


class Proof:
    """The owner's results, made twice; `compare` makes them once more and raises Refused where they differ.

    What it has proven is what the next proof of the same calls begins with, which makes no owner's results then.
    """

    def __init__(
        self, torch: Any, calls: Calls, params: List[Any], rounding: float = ROUNDING, closed: Sequence[Any] = ()
    ) -> None:
        """`closed`: modules of whose inside an arm shows no gradients, as of one that it compiles."""
        self._torch, self._calls, self._params, self._rounding = torch, calls, params, rounding
        self._closed = list(closed)
        # Some trainings give their optimizer weights that they have frozen: a YOLO of ultralytics has one.
        self._trained = [param for param in params if param.requires_grad]
        layers = sum(bool(module._parameters) for model in calls.models() for module in model.modules())
        self.explained = max(EXPLAINED, layers**0.5) * rounding
        """By how much results and gradients may differ, as a share of their length, where no shake moves them more."""
        self._zeros = [param for model in calls.models() for param in _list_zeros(torch, model)]
        self._layers = lengths.find_layers(calls.models(), self._trained)
        self._known = None if calls.trusted else self._find_known()
        self._shaken: Dict[int, List[Shake]] = {}
        if self._known is not None:
            self._shaken = self._known.shaken.setdefault(rounding, {})
            if not self._shaken:
                self._shake_all(self._known.rows, self._known.sizes)

    def _find_known(self) -> Measured:
        """Return what was measured under the settings in force, by the proof before or now."""
        known = self._calls.measured
        if known is not None and not self._closed and _are_same(known.params, self._params):
            return known
        used: Dict[int, List[int]] = {}
        rows = self.repeat(used=used)
        sizes = {number: _square_all(each) for number, each in rows.items()}
        noise = {number: _compare(rows[number], sizes[number], again) for number, again in self.repeat().items()}
        known = Measured(self._params, rows, sizes, noise, used, {})
        self._calls.measured = None if self._closed else known
        return known

    def compare(self) -> None:
        """Raise Refused where results or gradients differ by more than rounding explains."""
        known = self._known
        if known is None:
            return
        try:
            arm = self.repeat()
        except RuntimeError as error:
            raise Refused("the model fails with it: %s" % str(error).splitlines()[0][:200]) from None
        if any(_count(rows) != _count(arm.get(number)) for number, rows in known.rows.items()):
            raise Refused("the model's results or gradients are others in number or size with it")
        for what, differs, explained in self.measure(arm):
            if not math.isfinite(differs):
                raise Refused("%s of the same batches are no numbers with it" % what)
            if not differs <= explained:
                raise Refused(
                    "%s of the same batches differ by %.2g, rounding explains %.2g" % (what, differs, explained)
                )
        self._calls.measured = None if self._closed else known.after(arm)

    def measure(self, arm: Dict[int, Rows]) -> Iterator[Tuple[str, float, float]]:
        """Yield, of results and gradients of each call, how far an arm's are from the owner's, and what is explained.

        Infinity is explained for a call that tells nothing of an arm. At last come the lengths of the gradients of each
        layer, in the median of all calls.
        """
        known = self._known
        assert known is not None
        telling = self._find_telling(known)
        seen = {number: _compare(known.rows[number], known.sizes[number], rows) for number, rows in arm.items()}
        gradients: List[Tuple[float, float]] = []
        for number, found in seen.items():
            for kind, what in enumerate(("results", "gradients")):
                every = _find_share(found, kind, range(len(found.own[kind])))
                if number not in telling or not math.isfinite(every):
                    yield what, every, math.inf
                    continue
                places = telling[number] if kind else range(len(found.own[kind]))
                measured = self._measure(known, number, kind, places, found)
                if kind:
                    gradients.append(measured)
                else:
                    yield (what, *measured)
        for differs, explained in self._allow_jumps(gradients, telling):
            yield "gradients", differs, explained
        for differs, explained in self._measure_lengths(known, seen, telling):
            yield "lengths of gradients", differs, explained

    def _measure(
        self, known: Measured, number: int, kind: int, places: Sequence[int], seen: Shake
    ) -> Tuple[float, float]:
        rounding = min(SHAKEN * self._find_moved(number, kind, places), APART_MAX[kind])
        noise = _find_share(known.noise[number], kind, places)
        return _find_share(seen, kind, places), max(3 * noise, rounding, self.explained, FLOOR)

    def _allow_jumps(
        self, measured: List[Tuple[float, float]], telling: Dict[int, Sequence[int]]
    ) -> List[Tuple[float, float]]:
        """Return measures of gradients; of few calls that are off, what is explained is what any call's shakes show.

        What a net assigns, as a detector does boxes, changes with any rounding in some calls, by chance in others than
        those in which a shake has changed it. What is wrong is so in most calls.
        """
        off = sum(not differs <= explained for differs, explained in measured)
        if not 0 < 2 * off < len(measured):
            return measured
        moved = max(self._find_moved(number, 1, places) for number, places in telling.items())
        widest = min(SHAKEN * moved, APART_MAX[1])
        return [(differs, max(explained, widest)) for differs, explained in measured]

    def _measure_lengths(
        self, known: Measured, seen: Dict[int, Shake], telling: Dict[int, Sequence[int]]
    ) -> Iterator[Tuple[float, float]]:
        arms: Dict[int, List[lengths.Stretch]] = {}
        shaken: Dict[int, List[lengths.Stretch]] = {}
        for number, places in telling.items():
            layers = [self._layers[known.used[number][place]] for place in places]
            for layer, stretch in _find_stretches(layers, places, seen[number]):
                arms.setdefault(layer, []).append(stretch)
            for shake in self._shaken[number]:
                for layer, stretch in _find_stretches(layers, places, shake):
                    shaken.setdefault(layer, []).append(stretch)
        for layer, found in arms.items():
            judged = lengths.explain(found, shaken.get(layer, []), max(self.explained, lengths.LEAST))
            if judged is not None:
                yield judged

    def _find_telling(self, known: Measured) -> Dict[int, Sequence[int]]:
        """Return the calls by which an arm is judged and the places of their gradients that tell, which are steady.

        Of some batches rounding alone makes another gradient, as where a layer normalises numbers close to zero: often
        of a few weights, whose gradients are then the largest by far. What an arm makes of these tells nothing; it is
        judged by the others of the call, if they are most, and by the other calls, if they are most.
        """
        steady: Dict[int, Sequence[int]] = {}
        every = {number: range(len(rows[1])) for number, rows in known.rows.items()}
        for number, places in every.items():
            kept: Sequence[int] = places
            if not self._is_steady(number, places):
                kept = [place for place in places if self._is_steady(number, [place])]
            if 2 * len(kept) > len(places):
                steady[number] = kept
        return steady if 2 * len(steady) > len(every) else dict(every)

    def _is_steady(self, number: int, places: Sequence[int]) -> bool:
        return SHAKEN * self._find_moved(number, 1, places) <= APART_MAX[1]

    def _find_moved(self, number: int, kind: int, places: Sequence[int]) -> float:
        """Return by how much the shake that moved some places most has moved them, as a share of their length."""
        return max(_find_share(shake, kind, places) for shake in self._shaken[number])

    def _shake_all(self, owners: Dict[int, Rows], sizes: Dict[int, Squares]) -> None:
        """Shake each call in the first directions, and in all of them where these have moved its gradients."""
        only: Optional[List[int]] = None
        for direction in range(1, SHAKES_MAX + 1):
            shakes = shake_weights(self._torch, self._params, self._rounding, direction)
            with fill_zeros(self._torch, self._zeros), shakes:
                found = self.repeat(self._rounding, direction, only)
            for number, rows in found.items():
                self._shaken.setdefault(number, []).append(_compare(owners[number], sizes[number], rows))
            if direction >= SHAKES_MIN:
                every = {number: range(len(rows[1])) for number, rows in owners.items()}
                only = [number for number, places in every.items() if self._find_moved(number, 1, places) >= MOVED]
                if not only:
                    break

    def repeat(
        self,
        shaken: float = 0.0,
        direction: int = 0,
        only: Optional[Container[int]] = None,
        used: Optional[Dict[int, List[int]]] = None,
    ) -> Dict[int, Rows]:
        """Return, for each call, its results and the gradients that the sum of their squares has, with rows cut.

        Weights that are all zeros are filled: a head of zeros shows nothing of what comes before it. `used` takes, of
        each call, the numbers of the weights that have gradients.
        """
        torch, found = self._torch, {}
        modules = list_open(torch, self._calls.models(), self._closed)
        with self._calls.replaying(self._params), fill_zeros(torch, self._zeros), cut_rows(torch, modules):
            for number, result in self._calls.run(shaken, direction, only):
                loss = sum_squares(result)
                if loss is None:
                    continue
                grads = torch.autograd.grad(loss, self._trained, allow_unused=True)
                if used is not None:
                    used[number] = [place for place, grad in enumerate(grads) if grad is not None]
                found[number] = (
                    [sample(item) for item in list_tensors(result) if item.requires_grad],
                    [sample(grad) for grad in grads if grad is not None],
                )
        if not found:
            raise Refused("the results of its model have no gradients")
        return found


def _list_zeros(torch: Any, model: Any) -> Iterator[Any]:
    """Yield the trained weights of a model that are all zeros; a bias of zeros hides nothing."""
    for name, param in model.named_parameters():
        if "bias" in name.rpartition(".")[2] or not param.requires_grad or param.dim() == 0 or param.numel() == 0:
            continue
        if not param.any() and not torch.signbit(param).any():  # nothing but zeros comes back after the replay
            yield param


def sum_squares(result: Any) -> Any:
    """Return what the gradients of a replayed call are those of; None where its result has none."""
    squares = [item.float().square().mean() for item in list_tensors(result) if item.requires_grad]
    return sum(squares) if squares else None


def sample(item: Any) -> Any:
    """Return numbers of a result or a gradient at equal distances, whose length is about that of all of them.

    The distance is odd: an even one would take some columns alone of a matrix whose rows are a power of two long.
    """
    flat = item.detach().flatten()
    distance = max(1, flat.numel() // SAMPLED) | 1
    return flat[::distance].float() * distance**0.5


def _count(rows: Optional[Rows]) -> Optional[List[List[int]]]:
    return None if rows is None else [[item.numel() for item in kind] for kind in rows]


def difference(first: List[Any], other: List[Any]) -> float:
    """Return how far two lists of tensors are apart, as a share of the first one's length.

    All together: the gradient of a bias before a BatchNorm is nothing but rounding.
    """
    apart = sum(_squared(item - counterpart) for item, counterpart in zip(first, other))
    return _share(apart, sum(_squared(item) for item in first))


def _squared(item: Any) -> float:
    return float(item.norm()) ** 2


def _find_share(shake: Shake, kind: int, places: Sequence[int]) -> float:
    """Return by how much a shake has moved some places, as a share of their length."""
    apart, own = (sum(squares[kind][place] for place in places) for squares in (shake.apart, shake.own))
    return _share(apart, own)


def _find_stretches(
    layers: Sequence[int], places: Sequence[int], shake: Shake
) -> Iterator[Tuple[int, lengths.Stretch]]:
    squares = [(shake.own[1][place], shake.seen[1][place], shake.apart[1][place]) for place in places]
    return lengths.sum_layers(layers, squares)


def _compare(own: Rows, sizes: Squares, seen: Rows) -> Shake:
    apart = [[_squared(item - other) for item, other in zip(*pair)] for pair in zip(own, seen)]
    return Shake(sizes, _square_all(seen), (apart[0], apart[1]))


def _are_same(some: List[Any], other: List[Any]) -> bool:
    return [id(item) for item in some] == [id(item) for item in other]


def _square_all(rows: Rows) -> Squares:
    return [_squared(item) for item in rows[0]], [_squared(item) for item in rows[1]]


def _share(apart: float, size: float) -> float:
    return (apart / size) ** 0.5 if size > 0 else apart**0.5
