"""Where a loop of the user's own stands in its data: the batches of the pass that it was given, and the passes.

accelerate puts a loader of its own around torch's, which looks one batch ahead: the loop has the newest batch that
torch's has given out only where the end was met.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any, Callable, Dict, Optional, Union

from . import randomness
from .position import Positioned, positioned

END_MET, PASSES = "end_of_dataloader", "iteration"
"""Of accelerate's loaders: whether the end was met, and the number of the pass, by which its order is drawn."""


WAITING = "_iterator"
"""Of a torchdata loader: the iterator that its first pass will be of, once its state was asked for."""


class Batches:
    """The place in a torch DataLoader over a data set with an index, which accelerate may hand out from."""

    def __init__(self, made: Positioned, outer: Any, loader: Any) -> None:
        """`loader` is torch's own, `outer` the one that the loop has: the same, or accelerate's around it."""
        self._positioned = made
        self._outer = outer
        self._batch_size = made.batch_samples
        self._skipped = 0
        self._resumed_pass = -1
        self._is_over = False
        """Whether nothing is left of the pass that is resumed."""
        self._iterator: Any = lambda: None
        original = loader._get_iterator

        def get_iterator() -> Any:
            iterator = original()
            self._iterator = weakref.ref(iterator)
            return iterator

        loader._get_iterator = get_iterator
        if not loader.num_workers:
            self._take_over(getattr(loader, WAITING, None))

    def _take_over(self, iterator: Any) -> None:
        """Have an iterator that was made before, by a loader that was asked for its state first, draw from here."""
        if iterator is not None and not iterator._num_yielded:
            iterator._sampler_iter = iter(self._positioned)
            self._iterator = weakref.ref(iterator)

    @property
    def passes_before_this(self) -> int:
        """Passes that this process began before the one under way."""
        return max(0, self._positioned.passes - 1)

    def state(self, random: Dict[str, Any]) -> Optional[Dict[str, Any]]:
        """Return how the pass under way began and how many of its batches were given out; None before the first."""
        number, iterator = self._positioned.passes - 1, self._iterator()
        if number < 0 or iterator is None:
            return None
        made = iterator._num_yielded + (self._skipped if number == self._resumed_pass else 0)
        end_met, passes = getattr(self._outer, END_MET, None), getattr(self._outer, PASSES, None)
        if end_met is False:
            made -= 1  # the newest is not given out yet
        return {
            "begun": self._positioned.begun[number],
            "batches": made,
            "batch_size": self._batch_size,
            "random": self._positioned.random_from(made, random),
            "workers": self._positioned.workers_at(number, made),
            END_MET: bool(end_met),
            PASSES: None if passes is None else passes + bool(end_met),
        }

    def resume(self, state: Dict[str, Any], _: Any) -> None:
        """Begin the next pass behind those batches."""
        samples = state["batches"] * state["batch_size"]
        self._positioned.resume(state["begun"], samples, state["batches"], state["random"], state.get("workers"))
        self._resumed_pass = self._positioned.passes
        self._skipped = -(-samples // self._batch_size)
        passes = state.get(PASSES)
        if passes is not None:
            setattr(self._outer, PASSES, passes)
        if state.get(END_MET):
            self._is_over = True
            _watch_passes(self._outer, self._begin_pass)

    def _begin_pass(self, begin: Callable[[], Any]) -> Any:
        """Return a pass over accelerate's loader; where nothing is left of one, most of its releases give out None."""
        if not self._is_over:
            return begin()
        self._is_over = False
        return iter([None for _ in self._positioned])


class Stateful:
    """The place in a loader that keeps account of itself, such as torchdata's StatefulDataLoader."""

    def __init__(self, torch: Any, outer: Any, loader: Any) -> None:
        self._torch = torch
        self._loader = outer
        self._passes = 0
        self._random: Optional[Dict[str, Any]] = None
        _watch_passes(loader, self._begin_pass)

    @property
    def passes_before_this(self) -> int:
        """Passes that this process began before the one under way."""
        return max(0, self._passes - 1)

    def _begin_pass(self, begin: Callable[[], Any]) -> Any:
        """Return a pass; what a loader draws to find its place again was not drawn in mid-pass."""
        made = begin()
        self._passes += 1
        random, self._random = self._random, None
        if random is not None:
            randomness.restore(self._torch, random)
        return made

    def state(self, _: Any) -> Dict[str, Any]:
        """Return the loader's own state, and the number of the pass where that is in none."""
        return {"own": self._loader.state_dict(), PASSES: getattr(self._loader, PASSES, None)}

    def resume(self, state: Dict[str, Any], random: Dict[str, Any]) -> None:
        """Have the loader find its place again; once it has, the random states are `random`."""
        self._loader.load_state_dict(state["own"])
        self._random = random
        passes = state.get(PASSES)
        if passes is not None:
            setattr(self._loader, PASSES, passes)


def _watch_passes(loader: Any, begin_pass: Callable[[Callable[[], Any]], Any]) -> None:
    """Have `begin_pass`, which is given what begins one, return each pass over this very loader.

    `iter` asks an object's class alone.
    """
    kind = type(loader)
    if not hasattr(kind, "__iter__"):
        return

    def __iter__(self: Any) -> Any:  # noqa: N807 - it takes that method's place
        return begin_pass(lambda: kind.__iter__(self))

    names = {"__iter__": __iter__, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    with suppress(TypeError):  # a class of another layout: its passes are not counted
        # accelerate's loaders have a `__class__` of their own, which cannot be set.
        object.__dict__["__class__"].__set__(loader, type(kind.__name__, (kind,), names))


def _draws_again(loader: Any) -> bool:
    """Whether torchdata's loader would find its place in an order that is drawn again, in another way than before.

    Its own samplers have a state, torch's have none.
    """
    batches = getattr(loader, "batch_sampler", None)
    order = getattr(loader, "sampler", None) if batches is None else batches
    is_of_torch = type(order).__module__.split(".")[0] == "torch"
    is_of_torchdata = type(loader).__module__.split(".")[0] == "torchdata"
    return is_of_torchdata and is_of_torch and not hasattr(loader.dataset, "state_dict")


def place_in(torch: Any, outer: Any) -> Union[Batches, Stateful]:
    """Return the place in `outer`, the loader that the loop has; raise ValueError where there is none to go back to."""
    loader = getattr(outer, "base_dataloader", outer)
    keeps_account = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    made = None
    if not keeps_account or ((loader is outer or not loader.num_workers) and _draws_again(loader)):
        made = positioned(torch, loader, ahead=hasattr(outer, END_MET))
    if made is not None:
        return Batches(made, outer, loader)
    if keeps_account:
        return Stateful(torch, outer, loader)
    raise ValueError(
        "%s has no place to go back to: give a DataLoader over a data set with an index, or a loader with state_dict "
        "and load_state_dict" % type(outer).__name__
    )
