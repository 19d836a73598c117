"""Several micro-batches of one update computed as one, in transformers' Trainer: the effective batch stays as it is.

The Trainer draws the batches of an update first and counts their items, by whose number it divides each loss: gradients
of joined batches are the sum of the single ones. Loops of other kinds, and nets whose results depend on what else is in
a batch, are refused. Where memory is short after all, the update is computed again as the owner has it.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from functools import wraps
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from rocm_agent import batch_count

from . import Refused, list_params, proofs, refuse, replay
from .rows import count_rows, cut_rows

CARD_SHARE = 0.85
"""Of a GPU's memory that may be in use after a joined replay: longer batches may come."""
APART = 25.0
"""Roundings by which losses and gradients of joined and of single batches may differ; another scale differs by one."""
APART_MIN = 1e-3
APART_MAX = 0.3
"""Of gradients, however sensitive they are to rounding."""


class Merging:
    """The micro-batches of an update that are computed as one."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._count = 1
        self._trainer: Any = lambda: None
        self._counts_items = False
        self._waiting: List[Any] = []
        self._waiting_since: Any = None
        self._optimizer: Any = None
        self._calls: Any = None

    def install(self) -> None:
        """Follow transformers' Trainer from now on, where there is one."""
        module = sys.modules.get("transformers.trainer")
        kind = getattr(module, "Trainer", None)
        if kind is None or not hasattr(kind, "get_batch_samples"):
            return
        original = kind.training_step

        @wraps(original)
        def training_step(trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._trainer = weakref.ref(trainer)
            items = args[0] if args else kwargs.get("num_items_in_batch")
            self._counts_items = items is not None
            if self._count <= 1 or items is None:
                return original(trainer, model, inputs, *args, **kwargs)
            return self._step(original, trainer, model, inputs, items)

        training_step._of_rocm_agent = True  # type: ignore[attr-defined]
        kind.training_step = training_step

    def follow(self, optimizer: Any, calls: replay.Calls) -> Merging:
        """Return itself, as the knob of the loop that steps `optimizer`."""
        self._optimizer, self._calls = optimizer, calls
        return self

    @property
    def batches(self) -> Optional[int]:
        """How many micro-batches an update has; None where it is not known."""
        trainer = self._trainer()
        return None if trainer is None else int(trainer.args.gradient_accumulation_steps)

    def why_not(self) -> Optional[str]:
        """Return why micro-batches cannot be joined."""
        trainer = self._trainer()
        if trainer is None:
            return "no Trainer of transformers was seen"
        if (self.batches or 1) < 2:
            return "an update has one micro-batch"
        if not hasattr(type(trainer).training_step, "_of_rocm_agent"):
            return "%s has a training step of its own" % type(trainer).__name__
        if not self._counts_items:
            return "its loss is not divided by the number of items of an update"
        if trainer.args.n_gpu > 1 or str(trainer.accelerator.distributed_type.value) != "NO":
            return "its model is spread over several processes or GPUs"
        for model in self._calls.models() if self._calls is not None else ():
            for module in model.modules():
                if "BatchNorm" in type(module).__name__:
                    return "%s depends on what else is in a micro-batch" % type(module).__name__
        return None

    def apply(self, value: Any) -> None:
        """Join `value` micro-batches, if their gradients are then what the single ones add up to."""
        if 1 < int(value) <= self._count:
            self._count = int(value)  # more of them were proven
            return
        if self._count > 1:
            raise Refused("its newest calls had joined micro-batches: more can be tried from the owner's settings only")
        refuse(self.why_not() or self._calls.why_not())
        try:
            if not self._calls.trusted:
                self._prove(int(value))
        except RuntimeError as error:
            self._free()
            raise Refused("the model fails with joined batches: %s" % str(error).splitlines()[0][:200]) from None
        self._count = int(value)

    def revert(self) -> None:
        """Compute every micro-batch by itself again."""
        if self._count > 1:
            self._count = 1
            self._free()

    def _free(self) -> None:
        if self._torch.cuda.is_initialized():
            self._torch.cuda.empty_cache()

    def _step(self, original: Callable[..., Any], trainer: Any, model: Any, inputs: Any, items: Any) -> Any:
        """Keep a micro-batch, or compute all of them where it is the last one of its update; return the loss."""
        if trainer.state.global_step != self._waiting_since:
            self._waiting, self._waiting_since = [], trainer.state.global_step
        self._waiting.append(inputs)
        if not trainer.accelerator.gradient_state.sync_gradients:
            return self._torch.zeros((), device=trainer.args.device)
        waiting, self._waiting = self._waiting, []
        try:
            return self._compute(original, trainer, model, _join_all(self._torch, waiting, self._count), items)
        except self._torch.cuda.OutOfMemoryError:
            self.revert()
        warnings.warn("memory was short for joined micro-batches: each is computed by itself", stacklevel=2)
        for param in list_params(self._optimizer):
            param.grad = None
        return self._compute(original, trainer, model, [(1, batch) for batch in waiting], items)

    @staticmethod
    def _compute(original: Callable[..., Any], trainer: Any, model: Any, batches: List[Any], items: Any) -> Any:
        loss = None
        for count, batch in batches:
            batch_count.drawn.joined = count
            try:
                found = original(trainer, model, batch, items)
            finally:
                batch_count.drawn.joined = 1
            loss = found if loss is None else loss + found
        return loss

    def _prove(self, count: int) -> None:
        """Raise Refused where gradients of joined batches are not the sum of the single ones'."""
        calls = self._calls.calls()[-count:]
        kinds = {id(module) for module, *_ in calls}
        joined = _join(self._torch, [kwargs for _, args, kwargs, _ in calls if not args])
        if len(calls) < 2 or len(kinds) != 1 or joined is None:
            raise Refused("its micro-batches have different shapes, or are given in a way that is not known")
        module, _, _, cast = calls[0]
        params = list_params(self._optimizer)
        with self._calls.replaying(params):
            modules = self._list_batched(calls, joined)
            with cut_rows(self._torch, modules):
                losses, single = self._add_up(calls)
                shakes = self._shake(calls, params, single)
            with cut_rows(self._torch, modules, len(calls)):
                loss, arm = self._grads(module, joined, cast)
        apart = abs(loss - losses) / max(abs(losses), 1e-12)
        if not apart <= max(APART_MIN, APART * self._calls.rounding):
            raise Refused("the loss of joined micro-batches is %.6g, that of single ones %.6g" % (loss, losses))
        places = _find_steady(single, shakes)
        differs = proofs.difference([single[place] for place in places], [arm[place] for place in places])
        moved = max(_find_moved(single, shake, places) for shake in shakes)
        limit = max(APART_MIN, APART * self._calls.rounding, min(proofs.SHAKEN * moved, APART_MAX))
        if not differs <= limit:
            raise Refused("gradients of joined micro-batches differ by %.2g, rounding explains %.2g" % (differs, limit))
        self._check_room()

    def _list_batched(self, calls: List[Any], joined: Dict[str, Any]) -> List[Any]:
        """Return the modules whose results have the batch in their first dimension."""
        module, _, kwargs, cast = calls[0]
        found = replay.list_open(self._torch, [module])
        with self._torch.no_grad(), cast():
            with count_rows(found) as alone:
                module(**kwargs)
            with count_rows(found) as together:
                module(**joined)
        wanted = {key: [len(calls) * count for count in counts] for key, counts in alone.items()}
        return [part for part in found if id(part) in wanted and wanted[id(part)] == together.get(id(part))]

    def _shake(self, calls: List[Any], params: List[Any], single: List[Any]) -> List[List[float]]:
        """Return, of each shake of weights, by how much it has moved the gradient of each weight."""
        found: List[List[float]] = []
        for direction in range(1, proofs.SHAKES_MAX + 1):
            with replay.shake_weights(self._torch, params, self._calls.rounding, direction):
                moved = [float((grad - seen).norm()) for grad, seen in zip(single, self._add_up(calls)[1])]
            found.append(moved)
            every = max(_find_moved(single, shake, range(len(single))) for shake in found)
            if direction >= proofs.SHAKES_MIN and every < proofs.MOVED:
                break
        return found

    def _add_up(self, calls: List[Any]) -> Tuple[float, List[Any]]:
        """Return the sums of the losses and of the gradients of micro-batches, each computed by itself."""
        losses, total = 0.0, []  # type: float, List[Any]
        for module, _, kwargs, cast in calls:
            loss, found = self._grads(module, kwargs, cast)
            losses += loss
            total = [first + other for first, other in zip(total, found)] if total else found
        return losses, total

    def _grads(self, module: Any, kwargs: Dict[str, Any], cast: Any) -> Tuple[float, List[Any]]:
        with cast():
            result = module(**kwargs)
        loss = getattr(result, "loss", None)
        if loss is None:
            raise Refused("its model returns no loss")
        params = [param for param in list_params(self._optimizer) if param.requires_grad]
        grads = self._torch.autograd.grad(loss, params, allow_unused=True)
        return float(loss.detach()), [proofs.sample(grad) for grad in grads if grad is not None]

    def _check_room(self) -> None:
        for device in {param.device for param in list_params(self._optimizer) if param.is_cuda}:
            free, total = self._torch.cuda.mem_get_info(device)
            if total - free > CARD_SHARE * total:
                self._free()
                share = 100 * (total - free) / total
                raise Refused("%.0f %% of the GPU's memory is in use with it (limit %.0f %%)" % (share, 85))


def _find_steady(single: List[Any], shakes: List[List[float]]) -> Sequence[int]:
    """Return the numbers of the weights whose gradients rounding leaves alone, of all where these are not most."""
    every = range(len(single))
    limit = APART_MAX / proofs.SHAKEN
    if all(_find_moved(single, shake, every) <= limit for shake in shakes):
        return every
    steady = [place for place in every if all(_find_moved(single, shake, [place]) <= limit for shake in shakes)]
    return steady if 2 * len(steady) > len(single) else every


def _find_moved(single: List[Any], shake: List[float], places: Sequence[int]) -> float:
    """Return by how much a shake has moved the gradients of some weights, as a share of their length."""
    size = sum(float(single[place].norm()) ** 2 for place in places)
    moved = sum(shake[place] ** 2 for place in places)
    return float((moved / size) ** 0.5 if size > 0 else moved**0.5)


def _join_all(torch: Any, batches: List[Any], count: int) -> List[Any]:
    """Return batches joined by `count`, each with how many it is made of; those of unequal shapes as they are."""
    found: List[Any] = []
    for first in range(0, len(batches), count):
        group = batches[first : first + count]
        joined = _join(torch, group)
        found += [(1, batch) for batch in group] if joined is None else [(len(group), joined)]
    return found


def _join(torch: Any, batches: List[Any]) -> Optional[Dict[str, Any]]:
    """Return dictionaries of tensors as one; None where they do not fit together."""
    if not batches or not all(isinstance(batch, dict) or hasattr(batch, "keys") for batch in batches):
        return None
    first = batches[0]
    if any(set(batch.keys()) != set(first.keys()) for batch in batches):
        return None
    found: Dict[str, Any] = {}
    for name, value in first.items():
        values = [batch[name] for batch in batches]
        if hasattr(value, "dim") and value.dim() > 0:
            if any(not hasattr(item, "shape") or item.shape[1:] != value.shape[1:] for item in values):
                return None
            found[name] = torch.cat(values)
        elif all(_is_same(value, item) for item in values):
            found[name] = value
        else:
            return None
    return found


def _is_same(first: Any, other: Any) -> bool:
    return bool(type(first) is type(other) and (first == other if not hasattr(first, "dim") else first.equal(other)))
