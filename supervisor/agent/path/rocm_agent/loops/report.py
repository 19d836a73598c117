"""Reports the epochs and steps that the loops around a training's first step come to, and nothing that is in doubt.

Where the batches of an epoch cannot be told in advance, they are counted over the first epoch: they are believed if
they are as many as the loader has, or as the steps that accelerate makes of them where it accumulates gradients.
"""

from __future__ import annotations

import ast
import builtins
import sys
import threading
import weakref
from dataclasses import dataclass, replace
from types import FrameType, FunctionType
from typing import Any, Callable, Dict, List, Optional

from rocm_agent import claim, events
from rocm_agent.fence import fenced

from .chain import Doubt, Loop, loops_around
from .values import UNKNOWN, evaluate, length_of, loader_length

PROGRESS_BARS = {("tqdm", "tqdm"), ("tqdm", "tqdm_asyncio"), ("tqdm", "tqdm_notebook"), ("rich", "track")}


@dataclass
class _Passes:
    """How often a loop runs."""

    made: Optional[int]
    """Passes before the present one; None: not known."""
    left: int
    """With the present one."""
    first: int = 0
    """What a range begins with."""
    batches: bool = False
    """Whether they are the batches of a loader."""


@dataclass
class _Found:
    made: int
    """Steps before the first of this process."""
    epochs_made: Optional[int] = None
    epochs_left: Optional[int] = None
    first_epoch: Optional[int] = None
    steps_per_epoch: Optional[int] = None
    total_steps: Optional[int] = None
    awaits_epoch: bool = False
    """Whether the batches of an epoch are still to be counted."""


@dataclass
class _Epoch:
    """A loader's pass that is under way."""

    loader: Callable[[], Any]
    step: int
    """The last one before it; 0 before the first of this process."""


_found: Optional[_Found] = None
_epoch: Optional[_Epoch] = None


@fenced
def begin(frame: FrameType, made: int) -> None:
    """Read the loops around `frame`, from which the first step was just made; `made` steps were made before it."""
    global _found
    if _found is not None or claim.rank != 0 or threading.current_thread() is not threading.main_thread():
        return
    _found = _Found(made)
    try:
        _found = _reckon(loops_around(frame), made)
    except Doubt:
        return
    _tell(_found)


@fenced
def loader_begins(loader: Any, step: int) -> None:
    """Note that a pass through a loader begins, after `step` steps: the one before it may have been an epoch."""
    global _epoch, _found
    if _found is not None and not _found.awaits_epoch:
        return
    if threading.current_thread() is not threading.main_thread():
        return
    before = _epoch
    if before is None or before.step == step or _is_either(before.loader(), loader):
        _epoch = _Epoch(weakref.ref(loader), step)  # a validation's between two epochs takes no one's place
    if _found is None or before is None or before.loader() is not loader:
        return
    length, _found = loader_length(loader), replace(_found, awaits_epoch=False)
    begun = before.step or _found.made
    each = step - begun
    if length and each in (length, _count_accumulated(length)) and begun == _found.made:
        _found = _with_steps(_found, each)
        _tell(_found)


def _count_accumulated(batches: int) -> Optional[int]:
    """Return the steps that accelerate makes of a pass over so many batches; None where it makes other ones in each."""
    kind = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    settings = getattr(kind, "_shared_state", {}).get("plugin_kwargs", {})
    together = settings.get("num_steps", 1)
    if batches % together and not settings.get("sync_with_dataloader", True):
        return None
    return int(-(-batches // together))


def _is_either(former: Any, loader: Any) -> bool:
    """Whether a loader is the one before, or that one is gone."""
    return former is None or former is loader


def _reckon(loops: List[Loop], made: int) -> _Found:
    found = _Found(made)
    if not loops:
        return found
    outer, inner = loops[0], loops[-1]
    outer_passes, inner_passes = _count_passes(outer), _count_passes(inner)
    runs_epochs = isinstance(outer.node, ast.For) and (_is_of_epochs(outer.node) or _is_loader(loops[1:], inner_passes))
    if outer_passes is not None and runs_epochs and not outer_passes.batches and not outer.ends_early:
        found = replace(
            found, epochs_made=outer_passes.made, epochs_left=outer_passes.left, first_epoch=outer_passes.first
        )
    each = _steps_of_pass(loops[1:], inner_passes)
    if len(loops) > 2 or outer.ends_early or not outer.always:
        return found
    if outer_passes is None:
        return replace(found, steps_per_epoch=each if inner_passes is not None and inner_passes.batches else None)
    if each is None:
        waits = found.epochs_left is not None and not inner.ends_early
        return replace(found, awaits_epoch=waits)
    if not runs_epochs:
        whole = outer_passes.made == 0 if outer_passes.batches else True
        return replace(found, total_steps=made + outer_passes.left * each if whole else None)
    return _with_steps(found, each)


def _is_loader(inner: List[Loop], passes: Optional[_Passes]) -> bool:
    return len(inner) == 1 and passes is not None and passes.batches


def _steps_of_pass(inner: List[Loop], passes: Optional[_Passes]) -> Optional[int]:
    """Return the steps of one pass of the outer loop; None where not each of them is sure to step, and to its end."""
    if not inner:
        return 1
    if len(inner) > 1 or passes is None or passes.made != 0 or inner[0].ends_early or not inner[0].always:
        return None
    return passes.left


def _with_steps(found: _Found, each: int) -> _Found:
    """Return the totals with the steps of an epoch; what goes on amid an epoch has none."""
    total = None
    if found.epochs_left is not None and found.made % each == 0:
        total = found.made + found.epochs_left * each
    return replace(found, steps_per_epoch=each, total_steps=total)


def _count_epochs(found: _Found) -> Optional[int]:
    """Return the epochs of the whole training: a range that begins with 1 or more may count them from 0 or from 1."""
    if found.epochs_left is None or found.epochs_made is None or found.first_epoch is None:
        return None
    here = found.epochs_made + found.epochs_left
    if found.first_epoch == 0 or (found.first_epoch == 1 and found.made == 0):
        return here
    if found.total_steps is None or found.steps_per_epoch is None:
        return None
    whole = found.total_steps // found.steps_per_epoch
    return whole if whole - here in (found.first_epoch, found.first_epoch - 1) else None


def _tell(found: _Found) -> None:
    known = _list_known(found)
    if known:
        events.write("loops", **known)


def _list_known(found: _Found) -> Dict[str, int]:
    facts = {
        "epochs": _count_epochs(found),
        "steps_per_epoch": found.steps_per_epoch,
        "total_steps": found.total_steps,
    }
    return {name: number for name, number in facts.items() if number}


def _is_of_epochs(node: ast.For) -> bool:
    parts = [*ast.walk(node.target), *ast.walk(node.iter)]
    names = [getattr(part, "id", getattr(part, "attr", "")) for part in parts]
    return any("epoch" in name.lower() for name in names if isinstance(name, str))


def _count_passes(loop: Loop) -> Optional[_Passes]:
    """Return how often a loop runs, None where that is not known."""
    if not isinstance(loop.node, ast.For):
        return None
    target, source = loop.node.target, loop.node.iter
    if _is_name(source, "enumerate", loop) and isinstance(source, ast.Call) and source.args:
        return _count_enumerated(target, source.args, loop)
    span = _read_range(source, loop)
    if span is None:
        return _read_passes(source, loop)
    place = evaluate(target, loop.scope)
    if type(place) is not int or place not in span or _is_changed(target, loop.node):
        return None
    made = span.index(place)
    return _Passes(made, len(span) - made, first=span.start)


def _count_enumerated(target: ast.expr, args: List[ast.expr], loop: Loop) -> Optional[_Passes]:
    index = target.elts[0] if isinstance(target, ast.Tuple) else target
    passes, place = _read_passes(args[0], loop), evaluate(index, loop.scope)
    first = evaluate(args[1], loop.scope) if len(args) == 2 else 0
    if passes is None or type(place) is not int or type(first) is not int or not isinstance(target, ast.Tuple):
        return None
    made = place - first
    return replace(passes, made=made, left=passes.left - made) if 0 <= made < passes.left else None


def _is_changed(target: ast.AST, node: ast.For) -> bool:
    name = getattr(target, "id", None)
    inside = [inner for statement in node.body for inner in ast.walk(statement)]
    bound = [inner for inner in inside if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load)]
    return any(inner.id == name for inner in bound)


def _read_passes(source: ast.AST, loop: Loop) -> Optional[_Passes]:
    """Return the passes over something of a known length."""
    span = _read_range(source, loop)
    if span is not None:
        return _Passes(0, len(span), first=span.start) if len(span) else None
    value = _unwrap(_strip_bar(source, loop), loop)
    if value is UNKNOWN or type(value) is list:  # a list may grow
        return None
    length = length_of(value)
    return _Passes(0, length, batches=loader_length(value) is not None) if length else None


def _read_range(source: ast.AST, loop: Loop) -> Optional[range]:
    source = _strip_bar(source, loop)
    is_range = _is_name(source, "range", loop)
    if not isinstance(source, ast.Call) or not (is_range or _bar_of(source, loop) == "trange"):
        value = _unwrap(source, loop)
        return value if type(value) is range else None
    numbers = [evaluate(arg, loop.scope) for arg in source.args]
    if not 1 <= len(numbers) <= 3 or any(type(number) is not int for number in numbers):
        return None
    return range(*numbers) if len(numbers) < 3 or numbers[2] > 0 else None


def _strip_bar(source: ast.AST, loop: Loop) -> ast.AST:
    """Return what a progress bar is drawn around."""
    while isinstance(source, ast.Call) and _bar_of(source, loop) in ("tqdm", "track"):
        named = [word.value for word in source.keywords if word.arg in ("iterable", "sequence")]
        inner = [*source.args[:1], *named]
        if len(inner) != 1:
            break
        source = inner[0]
    return source


def _bar_of(source: ast.Call, loop: Loop) -> Optional[str]:
    value = evaluate(source.func, loop.scope)
    if not isinstance(value, (type, FunctionType)):
        return None
    name, package = value.__name__, value.__module__.split(".")[0]
    if (package, name) in PROGRESS_BARS:
        return "track" if name == "track" else "tqdm"
    return "trange" if package == "tqdm" and name in ("trange", "tnrange") else None


def _unwrap(source: ast.AST, loop: Loop) -> Any:
    """Return the value of what is run through; of a progress bar, what it is drawn around."""
    value = evaluate(source, loop.scope)
    kind = type(value)
    if (kind.__module__.split(".")[0], kind.__name__) in PROGRESS_BARS:
        return vars(value).get("iterable", UNKNOWN)
    return value


def _is_name(source: ast.AST, name: str, loop: Loop) -> bool:
    if not isinstance(source, ast.Call) or source.keywords:
        return False
    return evaluate(source.func, loop.scope) is getattr(builtins, name)
