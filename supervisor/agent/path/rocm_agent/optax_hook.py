"""Counts the steps of a JAX training by its updates with optax, also where the update lies inside a compiled function.

A compiled function runs none of its Python again, so its calls are followed from outside: `jax.jit` and `jax.pmap`
return an object that calls the same compiled function, as do `lower` and `compile`, which make one ahead of its calls.
A function whose tracing reached `update` of an optax transformation makes one step a call, however often it updates; an
update outside of any such call is a step itself. Programs that do not import optax get what JAX returns. Which of a
step's results is the loss is not known; a float of one element among them that became NaN is recorded as a loss that is
NaN, once it has arrived: nothing waits for it.

Steps within a compiled loop (`jax.lax.scan`, `fori_loop`, `while_loop`) are not seen: the call around it is one step,
and it is reported from its tracing on that such a loop is under way, which may last as long as the training.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from functools import partial, wraps
from time import monotonic_ns
from types import MethodType, ModuleType
from typing import Any, Callable, List, Optional

from . import claim, events, origin, save_command, xla_memory
from .fence import failed, fenced
from .layout import COMPILE, LOOP, STEP, VALIDATE
from .leader import Leader
from .scalars import LateArray


class _Thread(threading.local):
    """Where one thread stands."""

    def __init__(self) -> None:
        self.calls: List[FollowedCall] = []
        """Calls of compiled functions under way, the outermost first; more than one while JAX traces."""
        self.depths: List[int] = []
        """How many loops were under way when each of these calls began."""
        self.loops: List[Any] = []
        """Bodies of the loops that are being traced, the outermost first."""
        self.updates = 0
        """Updates under way: a transformation made of others calls theirs."""


class _OtherCalls:
    """Calls of functions that make no steps: what comes before every step is no validation."""

    def __init__(self) -> None:
        self._made = 0
        self._gaps = (0, 0)

    def saw_call(self) -> bool:
        """Count a call; return whether it is one more than lay between the last steps."""
        self._made += 1
        return self._made > min(self._gaps)

    def saw_step(self) -> None:
        """Count from here."""
        self._gaps, self._made = (self._gaps[1], self._made), 0


_thread = _Thread()
_stepping_bodies = weakref.WeakSet()
"""Bodies of loops in which steps were traced: JAX traces a body once, and other loops may run it."""
_leader = Leader()
_other_calls = _OtherCalls()
_follows = False
"""Whether optax has been imported."""
_step = 0
"""Number of the last step; 0 before the first."""
AHEAD = ("trace", "lower", "compile")
"""Methods by which a function is made ready before its first call, of `jax.jit` and of what they return."""
_late = LateArray()
_device: Optional[str] = None


class FollowedCall:
    """A compiled function of JAX that reports its steps; all else is asked of the compiled function itself."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        known = getattr(compiled, "__dict__", {})  # its name, docstring, signature and wrapped function
        # In JAX 0.4 also the methods that have to be followed.
        vars(self).update({name: value for name, value in known.items() if name not in AHEAD})
        self._rocm_compiled = compiled
        self._rocm_makes_steps = False
        self._rocm_loops = False

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled function; a call that made a step is counted, one that raised is not."""
        calls = _thread.calls
        if _step and not calls:
            _note_call(makes_steps=self._rocm_makes_steps)
        if self._rocm_loops and not calls:
            _report_loop()
        calls.append(self)
        _thread.depths.append(len(_thread.loops))
        try:
            result = self._rocm_compiled(*args, **kwargs)
        finally:
            calls.pop()
            _thread.depths.pop()
        if self._rocm_makes_steps:
            if calls:  # traced before: its callers make steps too
                _mark_calls(loops=self._rocm_loops)
                _leader.hand_over(self, calls[0])
            else:
                _count_step(self, result, loops=self._rocm_loops)
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        found = getattr(vars(self)["_rocm_compiled"], name)
        return partial(_make_ahead, self, found) if name in AHEAD else found

    def __repr__(self) -> str:
        return repr(self._rocm_compiled)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._rocm_compiled.__reduce_ex__(protocol)


def _make_ahead(source: FollowedCall, make: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Return what JAX makes of a function before its first call, followed as the function is where that makes steps.

    It is traced by that, and never again: what is compiled of it is called in place of it.
    """
    _thread.calls.append(source)
    _thread.depths.append(len(_thread.loops))
    try:
        made = make(*args, **kwargs)
    finally:
        _thread.calls.pop()
        _thread.depths.pop()
    if not source._rocm_makes_steps:
        return made
    followed = FollowedCall(made)
    followed._rocm_makes_steps, followed._rocm_loops = True, source._rocm_loops
    return followed


def install_jax(module: ModuleType) -> None:
    """Follow functions that `jax.jit` and `jax.pmap` of `module` return after optax was imported, and its loops."""
    for name in ("jit", "pmap"):
        setattr(module, name, _follow_results(getattr(module, name)))
    lax = getattr(module, "lax", None)
    for name, position, keyword in (("scan", 0, "f"), ("while_loop", 1, "body_fun"), ("fori_loop", 2, "body_fun")):
        if hasattr(lax, name):
            setattr(lax, name, _follow_loop(getattr(lax, name), position, keyword))


def install(module: ModuleType) -> None:
    """Watch the `update` of every transformation that `module`, optax, makes from now on."""
    global _follows
    kind = module.GradientTransformation
    make = kind.__new__

    @wraps(make)
    def __new__(cls: type, init: Any, update: Any) -> Any:  # noqa: N807 - it takes that method's place
        return make(cls, init, _watch_update(update) if callable(update) else update)

    kind.__new__ = staticmethod(__new__)
    _follows = True


def _follow_results(compile_function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(compile_function)
    def compile_and_follow(*args: Any, **kwargs: Any) -> Any:
        made = compile_function(*args, **kwargs)
        if not _follows:
            return made
        if args or "fun" in kwargs:
            return FollowedCall(made)
        return lambda function: FollowedCall(made(function))  # without a function JAX returns a decorator

    return compile_and_follow


def _follow_loop(run_loop: Callable[..., Any], position: int, keyword: str) -> Callable[..., Any]:
    """Return a loop of JAX that knows its body, which is argument `position` or `keyword`."""

    @wraps(run_loop)
    def run_and_follow(*args: Any, **kwargs: Any) -> Any:
        if not _follows:
            return run_loop(*args, **kwargs)
        body = args[position] if len(args) > position else kwargs.get(keyword)
        _thread.loops.append(body)
        try:
            _note_known_body(body)
            result = run_loop(*args, **kwargs)
        finally:
            _thread.loops.pop()
        _note_loop(run_and_follow, body, result)
        return result

    return run_and_follow


def _is_stepping(body: Any) -> bool:
    try:
        return body in _stepping_bodies
    except TypeError:  # no weak reference to it can be made, or it has no hash
        return False


@fenced
def _note_known_body(body: Any) -> None:
    """Mark what runs a body that was traced before and is not traced again."""
    if _is_stepping(body):
        _mark_loops()


@fenced
def _note_loop(source: Any, body: Any, result: Any) -> None:
    """Count a loop that the program itself has run, outside of every compiled function, as one step."""
    if not _thread.calls and not _thread.loops and _is_stepping(body) and not _is_traced(result):
        _count_step(source, loops=True)


def _mark_loops() -> None:
    """Note that the loops under way, and the calls around them, make steps, and report that they do."""
    for body in _thread.loops:
        try:
            _stepping_bodies.add(body)
        except TypeError:  # as in _is_stepping
            continue
    _mark_calls()
    _report_loop()


def _watch_update(update: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(update)
    def watched_update(*args: Any, **kwargs: Any) -> Any:
        _thread.updates += 1
        try:
            result = update(*args, **kwargs)
        finally:
            _thread.updates -= 1
        if not _thread.updates:
            _note_update(watched_update, result)
        return result

    return watched_update


def _note_update(update: Callable[..., Any], result: Any) -> None:
    """Take note of an outermost update: by what is being traced, or by the program itself, which is a step."""
    try:
        traced = _is_traced(result)
        if _thread.loops and traced:
            _mark_loops()
        elif _thread.calls:
            _mark_calls()
            _mark_compiling()
        elif not traced:
            _count_step(update)
    except Exception as error:
        failed("optax_hook.update", error)


def _mark_calls(*, loops: bool = False) -> None:
    """Note that the calls under way make steps, and which of them do so in a loop."""
    for call, depth in zip(_thread.calls, _thread.depths):
        call._rocm_makes_steps = True
        call._rocm_loops = call._rocm_loops or loops or len(_thread.loops) > depth


@fenced
def _report_loop() -> None:
    """Report that a loop is under way, or about to be compiled: its steps are not seen, and no step is due."""
    recorder = claim.take(claim.GENERIC)
    if recorder is not None:
        recorder.stage, recorder.aside = STEP, LOOP
        _report_device()


def _report_device() -> None:
    """Report once what JAX computes on: without a GPU there is no reading of one to wait for."""
    global _device
    if _device is None:
        _device = str(sys.modules["jax"].default_backend())
        events.write("device", device=_device)


def _mark_compiling() -> None:
    """Report that the step under way compiles; it is traced, and compiled afterwards."""
    recorder = claim.holding()
    if recorder is not None and recorder.stage == STEP and claim.is_reporting(claim.GENERIC):
        recorder.aside = COMPILE


def _is_traced(result: Any) -> bool:
    """Whether values are those of a trace that no followed call began, as of `jax.make_jaxpr`: nothing is computed."""
    jax = sys.modules["jax"]
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(result))


@fenced
def _note_call(*, makes_steps: bool) -> None:
    """Report what the training begins: more calls that make no step than usual are a validation, until the next step.

    Threads that prepare batches ahead do not change the stage.
    """
    recorder = claim.holding()
    if recorder is None or recorder.stage not in (STEP, VALIDATE) or not claim.is_reporting(claim.GENERIC):
        return
    if makes_steps:
        recorder.stage = STEP
        return
    if threading.current_thread() is threading.main_thread() and _other_calls.saw_call():
        recorder.stage = VALIDATE


@fenced
def _count_step(source: Any, result: Any = None, *, loops: bool = False) -> None:
    global _step
    recorder = claim.take(claim.GENERIC)
    if recorder is None or not _leader.takes_lead(source, monotonic_ns()):
        return
    _step = _step + 1 if _step else origin.first_step(None)
    arrived = _late.exchange(_find_number(result))
    _report_device()
    recorder.record(_step, None, arrived if arrived is not None and math.isnan(arrived) else None)
    recorder.stage, recorder.aside = STEP, LOOP if loops else 0
    _other_calls.saw_step()
    xla_memory.name_setting(sys.modules["jax"])
    save_command.refuse_unheard(recorder)


def _find_number(result: Any) -> Any:
    """Return the first float of one element among the results of a step, None where there is none."""
    for value in result if isinstance(result, (tuple, list)) else (result,):
        if getattr(value, "ndim", None) == 0 and hasattr(value, "is_ready") and "float" in str(value.dtype):
            return value
    return None
