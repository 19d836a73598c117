"""Finds the loops that surround a call, through all functions down to the program itself.

Whoever calls the training in a way that cannot be read here might do so any number of times: then nothing is known.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, FrozenSet, Iterator, List, Optional, Sequence, Tuple, Union

from .settled import Settled, list_changed_globals, list_exits
from .source import Function, Sources
from .values import UNKNOWN, Scope, evaluate

FRAMES_MAX = 60
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_AGENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PLANNED = {"transformers", "lightning", "pytorch_lightning", "keras", "ultralytics"}
"""Frameworks that report their own totals."""
_INNERMOST = {"step", "backward"}
"""What a training calls when it steps: torch's wrappers and ours around it have names of their own."""
_DEFERRED = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Doubt(Exception):  # noqa: N818 - no error: what was asked has no certain answer
    """The loops around a call cannot be told for sure."""


@dataclass
class Loop:
    """One loop around the call."""

    node: Union[ast.For, ast.While]
    scope: Scope
    always: bool
    """Whether each of its passes comes to the loop within, or to the call."""
    ends_early: bool
    """Whether a pass may be its last before the loop is through."""


@dataclass
class _Place:
    """Where a function stands."""

    function: Function
    path: List[ast.stmt]
    """The compound statements around the call, outermost first, and the statement itself."""
    scope: Scope
    changed_globals: FrozenSet[str]
    line: int


def loops_around(frame: FrameType) -> List[Loop]:
    """Return the loops around what `frame` calls, outermost first; raises Doubt."""
    sources, frames = Sources(), _list_frames(frame)
    loops: List[Loop] = []
    trees: List[Tuple[ast.Module, str]] = []
    for frame_number in range(len(frames) - 1, -1, -1):
        current = frames[frame_number]
        if is_opaque(current):
            continue
        found = sources.find(current.f_code)
        if found is None or current.f_code.co_flags & _SUSPENDED:
            raise Doubt(current.f_code.co_filename)
        tree, function = found
        scope = Scope(current, function)
        place = _Place(
            function, _path_to(function, current.f_lineno), scope, list_changed_globals(tree), current.f_lineno
        )
        once = _check_call(tree, place, frames[frame_number - 1] if frame_number else None)
        _add_loops(loops, place, current.f_lineno)
        if loops and not once:
            loops[-1].always = False
        trees.append((tree, current.f_code.co_filename))
    for tree, path in trees:
        _check_other_loops(tree, [loop.node for loop in loops if loop.scope.path == path], loops[-1:])
    return loops


def _list_frames(frame: Optional[FrameType]) -> List[FrameType]:
    """Return a frame and its callers, up to the program's first line or the start of its process."""
    frames: List[FrameType] = []
    seen = set()
    while frame is not None and len(frames) < FRAMES_MAX:
        code = frame.f_code
        if is_planned(frame):
            break
        if code.co_name == "_bootstrap" and frame.f_globals.get("__name__") == "multiprocessing.process":
            return frames
        if not is_opaque(frame) and code in seen:
            break
        seen.add(code)
        frames.append(frame)
        if code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            return frames
        frame = frame.f_back
    raise Doubt("no beginning")


def is_planned(frame: FrameType) -> bool:
    """Whether a frame is of a framework that reports its own totals and stages."""
    return str(frame.f_globals.get("__name__")).split(".")[0] in _PLANNED


def is_opaque(frame: FrameType) -> bool:
    """Whether a frame is ours or torch's: these call a training's code once each time that they are called."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    path = frame.f_code.co_filename
    return path.startswith(_AGENT + os.sep) or (torch is not None and path.startswith(os.path.dirname(torch) + os.sep))


def _path_to(function: Function, line: int) -> List[ast.stmt]:
    path: List[ast.stmt] = []
    body: Sequence[ast.stmt] = [] if isinstance(function, ast.Lambda) else function.body
    while body:
        found = [statement for statement in body if _spans(statement, line)]
        if len(found) != 1:
            raise Doubt("line %d" % line)
        path.append(found[0])
        body = _body_at(found[0], line)
    return path


def _spans(node: Any, line: int) -> bool:
    return bool(node.lineno <= line <= (node.end_lineno or node.lineno))


def _body_at(statement: ast.stmt, line: int) -> Sequence[ast.stmt]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        raise Doubt("a definition")
    for name in ("body", "orelse", "finalbody"):
        body: Sequence[ast.stmt] = getattr(statement, name, [])
        if body and body[0].lineno <= line <= (body[-1].end_lineno or 0):
            return body
    branches = (*getattr(statement, "handlers", []), *getattr(statement, "cases", []))
    if any(_spans(branch, line) for branch in branches if hasattr(branch, "lineno")) or hasattr(statement, "cases"):
        raise Doubt("a branch")
    return []


def _check_call(tree: ast.Module, place: _Place, callee: Optional[FrameType]) -> bool:
    """Raise Doubt unless the statement calls the next function itself, and nothing outside its loop does.

    Return whether nothing else in that loop does either.
    """
    called = list(_list_calls(place))
    calls = []
    if callee is None or is_opaque(callee):
        calls = [call for call in called if _name_of(call.func) in _INNERMOST][:1]
    if not calls and callee is not None:
        calls = [call for call in called if _is_call_of(call, callee.f_code, place.scope)]
    if len(calls) != 1:
        raise Doubt("a call, line %d" % place.line)
    alike = _list_alike(tree, place, calls[0].func)
    around = [outer for outer in place.path if isinstance(outer, (ast.For, ast.While))]
    if len(alike) > 1 and not (around and all(_spans(around[-1], node.lineno) for node in alike)):
        raise Doubt("several calls, line %d" % place.line)
    return len(alike) == 1


def _list_alike(tree: ast.Module, place: _Place, called: ast.expr) -> List[ast.Call]:
    """Return the calls of the file that are written as one of this function: each may call the same.

    A parameter of that name of another function is another one. Of the functions by the same name within another, one
    was made: a decorator has a wrapper for coroutines, one for generators, and a third.
    """
    written = ast.dump(called)
    is_own = isinstance(called, ast.Name) and place.scope.owns(called.id)
    others = [] if is_own else [id(node) for other in _list_namesakes(tree, place.function) for node in ast.walk(other)]
    within = ast.walk(place.function if is_own else tree)
    calls = (node for node in within if isinstance(node, ast.Call) and id(node) not in others)
    return [node for node in calls if ast.dump(node.func) == written]


def _list_namesakes(tree: ast.Module, function: Function) -> Iterator[ast.AST]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    name = getattr(function, "name", None)
    for outer in ast.walk(tree):
        inner = list(ast.walk(outer)) if isinstance(outer, kinds) and outer is not function else []
        if any(node is function for node in inner):
            yield from (
                node for node in inner if isinstance(node, kinds) and node.name == name and node is not function
            )


def _list_calls(place: _Place) -> Iterator[ast.Call]:
    """Yield the calls that a statement makes by itself: not those of its body, nor those that are made later."""
    waiting: List[Any] = [place.function.body] if isinstance(place.function, ast.Lambda) else [place.path[-1]]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call):
            yield node
        inner = [child for child in ast.iter_child_nodes(node) if not isinstance(child, _DEFERRED)]
        waiting.extend(child for child in inner if not (isinstance(node, ast.stmt) and isinstance(child, ast.stmt)))


def _is_call_of(call: ast.Call, code: CodeType, scope: Scope) -> bool:
    return _name_of(call.func) == code.co_name or _code_of(evaluate(call.func, scope)) is code


def _name_of(node: ast.AST) -> Optional[str]:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def _code_of(value: Any) -> Optional[CodeType]:
    if type(value) is partial:
        value = value.func
    if type(value) is MethodType:
        value = value.__func__
    if type(value) is not FunctionType and value is not UNKNOWN:
        kind, name = (value, "__init__") if isinstance(value, type) else (type(value), "__call__")
        value = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    return value.__code__ if type(value) is FunctionType else None


def _add_loops(loops: List[Loop], place: _Place, line: int) -> None:
    """Append the loops of one function; what happens only sometimes is noted at the loop around it."""
    settled = Settled(place.scope, None, place.changed_globals)
    body = [] if isinstance(place.function, ast.Lambda) else place.function.body
    returns = (leaf for leaf in list_exits(body, settled, nested=True) if isinstance(leaf, ast.Return))
    if loops and any(leaf.lineno < line and not _is_in(leaf, place.path) for leaf in returns):
        loops[-1].always = False
    for depth, statement in enumerate(place.path):
        if isinstance(statement, ast.If) and loops and not _is_certain(statement, settled, place.path, depth):
            loops[-1].always = False
        if isinstance(statement, (ast.AsyncFor, ast.IfExp)):
            raise Doubt("an async loop")
        runs = statement.body if isinstance(statement, (ast.For, ast.While)) else []
        is_tested = isinstance(statement, ast.While) and statement is place.path[-1]
        if is_tested or (runs and depth + 1 < len(place.path) and place.path[depth + 1] in runs):
            settled = Settled(place.scope, statement, place.changed_globals)
            loops.append(_read_loop(statement, place, settled, line))


def _is_in(node: ast.stmt, path: Sequence[ast.stmt]) -> bool:
    """Whether a statement lies within a loop of the path, which has noted it itself."""
    return any(isinstance(outer, (ast.For, ast.While)) and _spans(outer, node.lineno) for outer in path)


def _is_certain(branch: ast.If, settled: Settled, path: Sequence[ast.stmt], depth: int) -> bool:
    """Whether the training comes by here each time: by a setting, or because both branches step."""
    if depth + 1 == len(path) or settled.is_settled(branch.test):
        return True
    both = (branch.body, branch.orelse)
    return all(any(_steps(node) for statement in body for node in ast.walk(statement)) for body in both)


def _steps(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step"


def _read_loop(node: Any, place: _Place, settled: Settled, line: int) -> Loop:
    exits = list(list_exits(node.body, settled))
    skips = [leaf for leaf in exits if isinstance(leaf, ast.Continue)]
    always = not any(leaf.lineno < line for leaf in skips)
    return Loop(node, place.scope, always=always, ends_early=len(skips) < len(exits))


def _check_other_loops(tree: ast.Module, own: Sequence[ast.AST], innermost: Sequence[Loop]) -> None:
    """Raise Doubt where another loop of the file trains as well; within the innermost, it is of one pass."""
    within = [loop.node for loop in innermost if loop.node in own]
    for node in ast.walk(tree):
        if (
            not isinstance(node, (ast.For, ast.While))
            or node in own
            or any(_spans(loop, node.lineno) for loop in within)
        ):
            continue
        if any(isinstance(inner, ast.Attribute) and inner.attr == "backward" for inner in ast.walk(node)):
            raise Doubt("another loop that trains")
