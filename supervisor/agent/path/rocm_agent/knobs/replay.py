"""The replay guard: a model run on its own newest batches, by the owner's settings twice and then by the arm.

While a tune is under way the outermost calls of modules are kept with their arguments. A replay touches no gradient, no
running statistics and no random state of the training.
"""

from __future__ import annotations

import math
import weakref
from contextlib import contextmanager
from functools import wraps
from typing import Any, Callable, Container, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import Refused, lengths
from .rows import cut_rows, list_tensors

CALLS = 8
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
ROUNDING, TF32, BFLOAT16 = 4e-6, 5e-4, 4e-3
"""Relative size of rounding in another order, to 11 bits and to 8: inputs and weights shaken by it show its effect.

Gates that flip make gradients of a deep net far more sensitive than its results: there is no bound for all nets.
"""
SHAKEN = 3.0
SHAKES_MIN, SHAKES_MAX = 2, 4
"""Directions in which a call is shaken: one may miss that in which its gradients are sensitive.

A call that no direction moves much is settled after the first ones, so that steady nets cost little more.
"""
MOVED = 0.1
"""Relative difference of gradients by a shake, from which on a call is shaken in all directions."""
COUNTING_DIMENSIONS = 2
"""At most, of a tensor that numbers something."""
DROPOUTS = frozenset({"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"})
APART_MAX = (0.1, 1.0)
"""Of results and of gradients: beyond it rounding is no explanation; unrelated gradients are 1.4 apart."""


Rows = Tuple[List[Any], List[Any]]
"""Of one call: numbers of its results, and of the gradients of each weight."""
Squares = Tuple[List[float], List[float]]


class Shake(NamedTuple):
    """What a shake has made of one call: squares of lengths, of each result and of each gradient."""

    seen: Squares
    apart: Squares
    """Of the differences from the owner's."""


class Calls:
    """The newest outermost calls of the training's modules."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._kept: List[Tuple[Any, Any, Any, Any, bool]] = []
        self._depth = 0
        self._original: Any = None
        self._known: List[Any] = []
        self.trusted = False
        """Whether the settings that are put in force were proven before: nothing is replayed then."""

    def keep(self) -> None:
        """Begin to keep calls; every module's call costs a little until `stop`."""
        if self._original is not None:
            return
        original = self._original = self._torch.nn.Module.__call__
        # With checkpointing the backward pass calls the parts of a model again; -1: no pass is under way.
        graph_task = getattr(self._torch._C, "_current_graph_task_id", lambda: -1)

        def is_in_backward() -> bool:
            return graph_task() != -1

        @wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth == 0 and module.training and self._torch.is_grad_enabled() and not is_in_backward():
                self._note(module, args, kwargs)
            self._depth += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self._depth -= 1

        self._torch.nn.Module.__call__ = call

    def stop(self) -> None:
        """Keep no more calls, and drop those kept."""
        if self._original is not None:
            self._torch.nn.Module.__call__ = self._original
        if self._kept:
            self._known = [weakref.ref(module) for module in self.models()]
        self._original, self._kept, self._depth = None, [], 0

    def why_not(self) -> Optional[str]:
        """Return why nothing can be replayed."""
        if not self._kept and not (self.trusted and self.models()):
            return "no call of its model was seen"
        for module in self.models():
            if is_compiled(module):
                return "its model is compiled"
            if type(module).__name__ in {"DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"}:
                return "its model is spread over several processes or GPUs"
        return None

    @property
    def casting(self) -> bool:
        """Whether a call was made under autocast."""
        return any(casts for *_, casts in self._kept)

    @property
    def rounding(self) -> float:
        """The relative size of rounding in the precision that the models compute in now."""
        models = self.models()
        if self.casting or any("__call__" in vars(type(model)) for model in models):
            return BFLOAT16
        on_gpu = any(param.is_cuda for model in models for param in model.parameters())
        return TF32 if on_gpu and _has_tf32(self._torch) else ROUNDING

    def models(self) -> List[Any]:
        """Return the modules that were called, of the calls kept or of those kept last."""
        if not self._kept:
            return [module for module in (held() for held in self._known) if module is not None]
        return list({id(module): module for module, *_ in self._kept}.values())

    def calls(self) -> List[Tuple[Any, Any, Any, Any]]:
        """Return the calls kept: the module, its arguments, those by name, and the precision they were made in."""
        return [(module, args, kwargs, cast) for module, args, kwargs, cast, _ in self._kept]

    @contextmanager
    def replaying(self, params: List[Any], *, drops: bool = False) -> Iterator[None]:
        """Leave no trace of calls made meanwhile in random state, running statistics or the calls kept.

        `drops`: layers of dropout drop as in a step.
        """
        torch = self._torch
        devices = sorted({param.device.index for param in params if param.is_cuda})
        buffers = [buffer for model in self.models() for buffer in model.buffers()]
        kept = [buffer.detach().clone() for buffer in buffers]
        self._depth += 1
        with torch.random.fork_rng(devices), _without_dropout([] if drops else self.models()):
            torch.manual_seed(0)
            try:
                yield
            finally:
                self._depth -= 1
                with torch.no_grad():
                    for buffer, value in zip(buffers, kept):
                        buffer.copy_(value)

    def run(
        self, shaken: float = 0.0, direction: int = 0, only: Optional[Container[int]] = None
    ) -> Iterator[Tuple[int, Any]]:
        """Repeat calls and yield the number and the result of each; `shaken` is by how much its inputs are off."""
        for number, (module, args, kwargs, cast, _) in enumerate(self._kept):
            if only is not None and number not in only:
                continue
            self._torch.manual_seed(direction)
            given = _shaken(self._torch, (args, kwargs), shaken) if shaken else (args, kwargs)
            self._torch.manual_seed(number)  # what the model draws itself is the same in every run
            with cast():
                yield number, module(*given[0], **given[1])

    def _note(self, module: Any, args: Any, kwargs: Any) -> None:
        # A module whose weights are no part of the training, as a criterion has none, is called after the model.
        if next(iter(module.parameters()), None) is None:
            return
        casts = self._torch.is_autocast_enabled() or self._torch.is_autocast_cpu_enabled()
        self._kept.append((module, _copied(args), _copied(kwargs), _casting(self._torch), casts))
        del self._kept[:-CALLS]


def _has_tf32(torch: Any) -> bool:
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn
    try:
        return bool(matmul.allow_tf32 or conv.allow_tf32)
    except RuntimeError:  # set by the newer API alone
        return "tf32" in {matmul.fp32_precision, conv.conv.fp32_precision}


class Proof:
    """The owner's results, made twice; `compare` makes them once more and raises Refused where they differ."""

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
        self._used: Dict[int, List[int]] = {}
        """Of each call, the numbers of the weights that its gradients are those of."""
        self._owner: List[Dict[int, Rows]] = []
        self._sizes: Dict[int, Squares] = {}
        """Squares of the lengths of the owner's results and gradients."""
        self._shaken: Dict[int, List[Shake]] = {}
        if not calls.trusted:
            self._owner = [self.repeat(), self.repeat()]
            self._sizes = {number: _square_all(rows) for number, rows in self._owner[0].items()}
            self._shake_all()

    def compare(self) -> None:
        """Raise Refused where results or gradients differ by more than rounding explains."""
        if not self._owner:
            return
        try:
            arm = self.repeat()
        except RuntimeError as error:
            raise Refused("the model fails with it: %s" % str(error).splitlines()[0][:200]) from None
        if any(_count(rows) != _count(arm.get(number)) for number, rows in self._owner[0].items()):
            raise Refused("the model's results or gradients are others in number or size with it")
        for what, differs, explained in self.measure(arm):
            if not math.isfinite(differs):
                raise Refused("%s of the same batches are no numbers with it" % what)
            if not differs <= explained:
                raise Refused(
                    "%s of the same batches differ by %.2g, rounding explains %.2g" % (what, differs, explained)
                )

    def measure(self, arm: Dict[int, Rows]) -> Iterator[Tuple[str, float, float]]:
        """Yield, of results and gradients of each call, how far an arm's are from the owner's, and what is explained.

        Infinity is explained for a call that tells nothing of an arm. At last come the lengths of the gradients of each
        layer, in the mean of all calls.
        """
        telling = self._find_telling()
        gradients: List[Tuple[float, float]] = []
        for number, rows in arm.items():
            for kind, what in enumerate(("results", "gradients")):
                every = difference(self._owner[0][number][kind], rows[kind])
                if number not in telling or not math.isfinite(every):
                    yield what, every, math.inf
                    continue
                places = telling[number] if kind else range(len(rows[kind]))
                measured = self._measure(number, kind, places, rows)
                if kind:
                    gradients.append(measured)
                else:
                    yield (what, *measured)
        for differs, explained in self._allow_jumps(gradients, telling):
            yield "gradients", differs, explained
        for differs, explained in self._measure_lengths(arm, telling):
            yield "lengths of gradients", differs, explained

    def _measure(self, number: int, kind: int, places: Sequence[int], rows: Rows) -> Tuple[float, float]:
        every = (*(owner[number] for owner in self._owner), rows)
        first, second, seen = ([each[kind][place] for place in places] for each in every)
        rounding = min(SHAKEN * self._find_moved(number, kind, places), APART_MAX[kind])
        explained = max(3 * difference(first, second), rounding, self.explained, FLOOR)
        return difference(first, seen), explained

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
        self, arm: Dict[int, Rows], telling: Dict[int, Sequence[int]]
    ) -> Iterator[Tuple[float, float]]:
        arms: Dict[int, List[lengths.Stretch]] = {}
        shaken: Dict[int, List[lengths.Stretch]] = {}
        for number, places in telling.items():
            for layer, stretch in self._find_stretches(number, places, self._compare_squares(number, arm[number])):
                arms.setdefault(layer, []).append(stretch)
            for shake in self._shaken[number]:
                for layer, stretch in self._find_stretches(number, places, shake):
                    shaken.setdefault(layer, []).append(stretch)
        for layer, found in arms.items():
            judged = lengths.explain(found, shaken.get(layer, []), max(self.explained, FLOOR))
            if judged is not None:
                yield judged

    def _find_stretches(
        self, number: int, places: Sequence[int], found: Shake
    ) -> Iterator[Tuple[int, lengths.Stretch]]:
        squares = [(self._sizes[number][1][place], found.seen[1][place], found.apart[1][place]) for place in places]
        return lengths.sum_layers([self._layers[self._used[number][place]] for place in places], squares)

    def _compare_squares(self, number: int, rows: Rows) -> Shake:
        owners = self._owner[0][number]
        apart = [[_squared(item - other) for item, other in zip(*pair)] for pair in zip(owners, rows)]
        return Shake(_square_all(rows), (apart[0], apart[1]))

    def _find_telling(self) -> Dict[int, Sequence[int]]:
        """Return the calls by which an arm is judged and the places of their gradients that tell, which are steady.

        Of some batches rounding alone makes another gradient, as where a layer normalises numbers close to zero: often
        of a few weights, whose gradients are then the largest by far. What an arm makes of these tells nothing; it is
        judged by the others of the call, if they are most, and by the other calls, if they are most.
        """
        steady: Dict[int, Sequence[int]] = {}
        every = {number: range(len(rows[1])) for number, rows in self._owner[0].items()}
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
        size = sum(self._sizes[number][kind][place] for place in places)
        return max(_share(sum(shake.apart[kind][place] for place in places), size) for shake in self._shaken[number])

    def _shake_all(self) -> None:
        """Shake each call in the first directions, and in all of them where these have moved its gradients."""
        only: Optional[List[int]] = None
        for direction in range(1, SHAKES_MAX + 1):
            shakes = shake_weights(self._torch, self._params, self._rounding, direction)
            with fill_zeros(self._torch, self._zeros), shakes:
                found = self.repeat(self._rounding, direction, only)
            for number, rows in found.items():
                self._shaken.setdefault(number, []).append(self._compare_squares(number, rows))
            if direction >= SHAKES_MIN:
                every = {number: range(len(rows[1])) for number, rows in self._owner[0].items()}
                only = [number for number, places in every.items() if self._find_moved(number, 1, places) >= MOVED]
                if not only:
                    break

    def repeat(self, shaken: float = 0.0, direction: int = 0, only: Optional[Container[int]] = None) -> Dict[int, Rows]:
        """Return, for each call, its results and the gradients that the sum of their squares has, with rows cut.

        Weights that are all zeros are filled: a head of zeros shows nothing of what comes before it.
        """
        torch, found = self._torch, {}
        modules = list_open(torch, self._calls.models(), self._closed)
        with self._calls.replaying(self._params), fill_zeros(torch, self._zeros), cut_rows(torch, modules):
            for number, result in self._calls.run(shaken, direction, only):
                loss = sum_squares(result)
                if loss is None:
                    continue
                grads = torch.autograd.grad(loss, self._trained, allow_unused=True)
                self._used[number] = [place for place, grad in enumerate(grads) if grad is not None]
                found[number] = (
                    [sample(item) for item in list_tensors(result) if item.requires_grad],
                    [sample(grad) for grad in grads if grad is not None],
                )
        if not found:
            raise Refused("the results of its model have no gradients")
        return found


@contextmanager
def shake_weights(torch: Any, params: List[Any], size: float, direction: int = 1) -> Iterator[None]:
    """Have weights off by a relative size meanwhile."""
    kept = [param.detach().clone() for param in params]
    devices = sorted({param.device.index for param in params if param.is_cuda})
    with torch.random.fork_rng(devices), torch.no_grad():
        torch.manual_seed(direction)
        for param in params:
            param.mul_(1 + size * torch.randn_like(param))
    try:
        yield
    finally:
        with torch.no_grad():
            for param, value in zip(params, kept):
                param.copy_(value)


@contextmanager
def fill_zeros(torch: Any, params: List[Any]) -> Iterator[None]:
    """Have those weights that are all zeros be such numbers as others begin with meanwhile.

    What comes before a head or within a branch that begins with zeros has no gradients, and what comes after it sees
    nothing of it: neither shows what is wrong there, as the next steps would.
    """
    zeros = [param for param in params if not param.any()]
    devices = sorted({param.device.index for param in zeros if param.is_cuda})
    with torch.random.fork_rng(devices), torch.no_grad():
        torch.manual_seed(0)
        for param in zeros:
            param.normal_(0, param[0].numel() ** -0.5)
    try:
        yield
    finally:
        with torch.no_grad():
            for param in zeros:
                param.zero_()


def _list_zeros(torch: Any, model: Any) -> Iterator[Any]:
    """Yield the trained weights of a model that are all zeros; a bias of zeros hides nothing."""
    for name, param in model.named_parameters():
        if "bias" in name.rpartition(".")[2] or not param.requires_grad or param.dim() == 0 or param.numel() == 0:
            continue
        if not param.any() and not torch.signbit(param).any():  # nothing but zeros comes back after the replay
            yield param


@contextmanager
def _without_dropout(models: List[Any]) -> Iterator[None]:
    """Drop nothing meanwhile: another layout or kernel draws other random numbers, by which results always differ."""
    kept = [
        (module, name, getattr(module, name))
        for model in models
        for module in model.modules()
        for name in _dropout_rates(module)
    ]
    for module, name, _ in kept:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, rate in kept:
            setattr(module, name, rate)


def _dropout_rates(module: Any) -> Tuple[str, ...]:
    """Return the names of a module's dropout rates: that of torch's own kinds, and that of transformers' attention."""
    names = ("p",) if type(module).__name__ in DROPOUTS else ("attention_dropout",)
    return tuple(name for name in names if type(getattr(module, name, None)) is float and getattr(module, name) > 0)


def list_open(torch: Any, models: List[Any], closed: Sequence[Any] = ()) -> List[Any]:
    """Return the modules inside some models whose gradients are seen; a compiled graph shows none of its own."""
    compiled = [module for model in models for module in model.modules() if is_compiled(module)]
    hidden = {id(part) for module in [*compiled, *closed] for part in module.modules()}
    inside = (module for model in models for module in model.modules() if module is not model)
    scripted = torch.jit.ScriptModule
    return [module for module in inside if id(module) not in hidden and not isinstance(module, scripted)]


def is_compiled(module: Any) -> bool:
    """Whether calls of a module are compiled graphs."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


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


def _square_all(rows: Rows) -> Squares:
    return [_squared(item) for item in rows[0]], [_squared(item) for item in rows[1]]


def _share(apart: float, size: float) -> float:
    return (apart / size) ** 0.5 if size > 0 else apart**0.5


def _casting(torch: Any) -> Callable[[], Any]:
    """Return a context as autocast is at present."""
    kind = "cuda" if torch.is_autocast_enabled() else "cpu"
    if kind == "cuda":
        dtype = torch.get_autocast_gpu_dtype()
        return lambda: torch.autocast("cuda", dtype=dtype)
    on, dtype = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
    return lambda: torch.autocast("cpu", dtype=dtype, enabled=on)


def _copied(value: Any) -> Any:
    """Return arguments with every tensor copied, so that a training that reuses its buffers changes none."""
    if hasattr(value, "detach"):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_copied(item) for item in value)
    return value


def _shaken(torch: Any, value: Any, size: float) -> Any:
    """Return arguments with every tensor of real numbers off by a relative size."""
    if hasattr(value, "is_floating_point"):
        shakes = value.is_floating_point() and not _counts(value)
        return value * (1 + size * torch.randn_like(value)) if shakes else value
    if isinstance(value, dict):
        return {name: _shaken(torch, item, size) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_shaken(torch, item, size) for item in value)
    return value


def _counts(value: Any) -> bool:
    """Whether a tensor may hold numbers of something: a YOLO has the kind of each box, and its picture, as floats."""
    return value.dim() <= COUNTING_DIMENSIONS and bool((value == value.round()).all())
