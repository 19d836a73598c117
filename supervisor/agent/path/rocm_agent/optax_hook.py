"""Counts the steps of a JAX training by its updates with optax, also where the update lies inside a compiled function.

A compiled function runs none of its Python again, so its calls are followed from outside: `jax.jit` and `jax.pmap`
return an object that calls the same compiled function. A function whose tracing reached `update` of an optax
transformation makes one step a call, however often it updates; an update outside of any such call is a step itself.
Programs that do not import optax get what JAX returns. Which of a step's results is the loss is not known; a float of
one element among them that became NaN is recorded as a loss that is NaN, once it has arrived: nothing waits for it.
"""

from __future__ import annotations

import math
import sys
import threading
from functools import wraps
from types import MethodType, ModuleType
from typing import Any, Callable, List

from . import claim, origin, save_command, xla_memory
from .fence import failed, fenced
from .layout import COMPILE, STEP, VALIDATE
from .leader import Leader
from .scalars import LateArray


class _Thread(threading.local):
    """Where one thread stands."""

    def __init__(self) -> None:
        self.calls: List[FollowedCall] = []
        """Calls of compiled functions under way, the outermost first; more than one while JAX traces."""
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
_leader = Leader()
_other_calls = _OtherCalls()
_follows = False
"""Whether optax has been imported."""
_step = 0
"""Number of the last step; 0 before the first."""
_late = LateArray()


class FollowedCall:
    """A compiled function of JAX that reports its steps; all else is asked of the compiled function itself."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        vars(self).update(getattr(compiled, "__dict__", {}))  # its name, docstring, signature and wrapped function
        self._rocm_compiled = compiled
        self._rocm_makes_steps = False

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled function; a call that made a step is counted, one that raised is not."""
        calls = _thread.calls
        if _step and not calls:
            _note_call(makes_steps=self._rocm_makes_steps)
        calls.append(self)
        try:
            result = self._rocm_compiled(*args, **kwargs)
        finally:
            calls.pop()
        if self._rocm_makes_steps:
            if calls:  # traced before: its callers make steps too
                _mark_calls(calls)
                _leader.hand_over(self, calls[0])
            else:
                _count_step(self, result)
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_rocm_compiled"], name)

    def __repr__(self) -> str:
        return repr(self._rocm_compiled)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._rocm_compiled.__reduce_ex__(protocol)


def install_jax(module: ModuleType) -> None:
    """Follow functions that `jax.jit` and `jax.pmap` of `module` return after optax was imported."""
    for name in ("jit", "pmap"):
        setattr(module, name, _follow_results(getattr(module, name)))


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
        if _thread.calls:
            _mark_calls(_thread.calls)
            _mark_compiling()
        elif not _is_traced(result):
            _count_step(update)
    except Exception as error:
        failed("optax_hook.update", error)


def _mark_calls(calls: List[FollowedCall]) -> None:
    for call in calls:
        call._rocm_makes_steps = True


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
def _count_step(source: Any, result: Any = None) -> None:
    global _step
    recorder = claim.take(claim.GENERIC)
    if recorder is None or not _leader.takes_lead(source):
        return
    _step = _step + 1 if _step else origin.first_step(None)
    arrived = _late.exchange(_find_number(result))
    recorder.record(_step, None, arrived if arrived is not None and math.isnan(arrived) else None)
    recorder.stage, recorder.aside = STEP, 0
    _other_calls.saw_step()
    xla_memory.name_setting(sys.modules["jax"])
    save_command.refuse_unheard(recorder)


def _find_number(result: Any) -> Any:
    """Return the first float of one element among the results of a step, None where there is none."""
    for value in result if isinstance(result, (tuple, list)) else (result,):
        if getattr(value, "ndim", None) == 0 and hasattr(value, "is_ready") and "float" in str(value.dtype):
            return value
    return None
