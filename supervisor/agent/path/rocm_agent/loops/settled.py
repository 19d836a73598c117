"""Decides which tests have the same outcome in each pass of a loop: those of settings, not of what the loop changes."""

from __future__ import annotations

import argparse
import ast
from types import ModuleType
from typing import Any, FrozenSet, Iterator, Optional, Sequence

from .values import UNKNOWN, Scope, decide, evaluate, is_plain

_QUIET = (
    ast.Name, ast.Attribute, ast.Constant, ast.Compare, ast.UnaryOp, ast.boolop, ast.unaryop, ast.cmpop,
    ast.expr_context, ast.BoolOp,
)  # fmt: skip
_EXITS = {"exit", "_exit", "quit", "abort"}


class Settled:
    """What is settled in one loop of a frame, or, outside any loop, over several calls of a function."""

    def __init__(self, scope: Scope, loop: Optional[ast.AST], changed_globals: FrozenSet[str]) -> None:
        self._scope, self._changed = scope, changed_globals
        self._in_loop = loop is not None
        self._stored = frozenset(_list_stored(loop)) if loop is not None else frozenset()

    def is_settled(self, test: ast.AST) -> bool:
        """Whether a test has the same outcome each time."""
        if not all(isinstance(node, _QUIET) for node in ast.walk(test)):
            return False
        names = [node for node in ast.walk(test) if isinstance(node, ast.Name)]
        attributes = [node for node in ast.walk(test) if isinstance(node, ast.Attribute)]
        return all(self._is_kept(name.id) for name in names) and all(self._is_setting(node) for node in attributes)

    def outcome(self, test: ast.AST) -> Any:
        """Return what a test always is, UNKNOWN where that is not settled."""
        if isinstance(test, ast.BoolOp):
            return decide(test, [self.outcome(value) for value in test.values])
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            value = self.outcome(test.operand)
            return (not value) if value is not UNKNOWN else UNKNOWN
        value = evaluate(test, self._scope) if self.is_settled(test) else UNKNOWN
        return bool(value) if is_plain(value) else UNKNOWN

    def _is_kept(self, name: str) -> bool:
        if not self._in_loop and self._scope.is_local(name):
            return False
        return name not in self._stored and name not in self._changed

    def _is_setting(self, node: ast.Attribute) -> bool:
        return type(evaluate(node.value, self._scope)) in (argparse.Namespace, ModuleType)


def list_exits(statements: Sequence[ast.stmt], settled: Settled, *, nested: bool = False) -> Iterator[ast.stmt]:
    """Yield what may leave a loop with these statements or go on with its next pass; `nested`: break is another's.

    An error is no exit: what raises it has failed. Another exception may be how the training is told to end.
    """
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        is_exit = isinstance(statement, ast.Return) or _calls_exit(statement) or _raises_signal(statement)
        if is_exit or (isinstance(statement, (ast.Break, ast.Continue)) and not nested):
            yield statement
        test = settled.outcome(statement.test) if isinstance(statement, ast.If) else UNKNOWN
        is_loop = isinstance(statement, (ast.For, ast.While, ast.AsyncFor))
        if test is not False:
            yield from list_exits(getattr(statement, "body", []), settled, nested=nested or is_loop)
        if test is not True:
            yield from list_exits(getattr(statement, "orelse", []), settled, nested=nested)
        yield from list_exits(getattr(statement, "finalbody", []), settled, nested=nested)
        for branch in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
            yield from list_exits(branch.body, settled, nested=nested)


def list_changed_globals(tree: ast.Module) -> FrozenSet[str]:
    """Return the names that functions of a module declare global or nonlocal, which they may change at any time."""
    declared = [node.names for node in ast.walk(tree) if isinstance(node, (ast.Global, ast.Nonlocal))]
    return frozenset(name for names in declared for name in names)


def _calls_exit(statement: ast.stmt) -> bool:
    """Whether the program may end here as if all were done."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    failed = len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value not in (0, None)
    return name in _EXITS and not failed


def _raises_signal(statement: ast.stmt) -> bool:
    raised = statement.exc if isinstance(statement, ast.Raise) else None
    kind = raised.func if isinstance(raised, ast.Call) else raised
    name = kind.attr if isinstance(kind, ast.Attribute) else getattr(kind, "id", None)
    return name is not None and not name.endswith(("Error", "Exception"))


def _list_stored(loop: ast.AST) -> Iterator[str]:
    """Yield the names that a loop binds, and those whose items or attributes it sets."""
    for node in ast.walk(loop):
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            base: ast.AST = node
            while isinstance(base, (ast.Attribute, ast.Subscript)):
                base = base.value
            if isinstance(base, ast.Name):
                yield base.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
