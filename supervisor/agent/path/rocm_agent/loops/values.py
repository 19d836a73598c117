"""Evaluates the expressions of a running function that no code of the training's has to run for.

Names, attributes that lie in an object's own dictionary, numbers and their arithmetic, and the lengths of what is
known. Anything else is UNKNOWN.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import operator
import sys
from types import FrameType, ModuleType
from typing import Any, Callable, Dict, List, Optional

UNKNOWN: Any = object()
NUMBER_MAX = 1 << 53
_ARITHMETIC: Dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARISONS: Dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip


class Scope:
    """The names that a frame sees now."""

    def __init__(self, frame: FrameType, function: ast.AST) -> None:
        self._frame, self._function = frame, function
        self._locals: Optional[Dict[str, Any]] = None

    @property
    def path(self) -> str:
        """The source file."""
        return self._frame.f_code.co_filename

    def lookup(self, name: str) -> Any:
        """Return the value of a name, UNKNOWN where it has none."""
        if self._locals is None:
            self._locals = self._read_locals()
        code, frame = self._frame.f_code, self._frame
        if name in self._locals:
            return self._locals[name]
        if name in code.co_varnames or name in code.co_cellvars or name in code.co_freevars:
            return UNKNOWN
        return frame.f_globals.get(name, getattr(builtins, name, UNKNOWN))

    def is_local(self, name: str) -> bool:
        """Whether a name belongs to this call of its function, not to the module."""
        code = self._frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED
        return bool(is_function) and name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars)

    def owns(self, name: str) -> bool:
        """Whether a name is a parameter or variable of this very function, not of one around it."""
        code = self._frame.f_code
        return bool(code.co_flags & inspect.CO_OPTIMIZED) and name in (*code.co_varnames, *code.co_cellvars)

    def _read_locals(self) -> Dict[str, Any]:
        """Return the locals, and leave nothing behind in the frame.

        Before Python 3.13 a function's locals are copied into a dictionary that lives as long as the call does, and
        would keep the first step's tensors. It is the one that the function itself was given where it called locals().
        """
        if not self._frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return self._frame.f_locals
        if _asks_for_locals(self._function):
            return {}
        held = self._frame.f_locals
        names = dict(held)
        if type(held) is dict:
            held.clear()
        return names


def _asks_for_locals(function: ast.AST) -> bool:
    """Whether a function may hold its locals as a dictionary, or is run text that may."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in {"locals", "exec", "eval"}:
            return True
        bare = node.func if isinstance(node, ast.Call) and not node.args else None
        if isinstance(bare, ast.Name) and bare.id in {"vars", "dir"}:
            return True
    return False


def evaluate(node: ast.AST, scope: Scope) -> Any:
    """Return the value of an expression, UNKNOWN where it cannot be had without running the training's own code."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return scope.lookup(node.id)
    if isinstance(node, ast.Attribute):
        return _read_attribute(evaluate(node.value, scope), node.attr)
    if isinstance(node, ast.Subscript):
        return _read_item(evaluate(node.value, scope), node.slice, scope)
    if isinstance(node, ast.BinOp):
        return _calculate(_ARITHMETIC.get(type(node.op)), evaluate(node.left, scope), evaluate(node.right, scope))
    if isinstance(node, ast.Call):
        return _call(node, scope)
    return truth_value(node, scope)


def truth_value(node: ast.AST, scope: Scope) -> Any:
    """Return the value of a negation, comparison, `and` or `or`; UNKNOWN where it is not decided."""
    if isinstance(node, ast.UnaryOp):
        value = evaluate(node.operand, scope)
        if isinstance(node.op, ast.Not):
            return not value if is_plain(value) else UNKNOWN
        return -value if isinstance(node.op, ast.USub) and _is_number(value) else UNKNOWN
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = evaluate(node.left, scope), evaluate(node.comparators[0], scope)
        compare = _COMPARISONS.get(type(node.ops[0]))
        known = left is not UNKNOWN and right is not UNKNOWN
        is_identity = isinstance(node.ops[0], (ast.Is, ast.IsNot)) and known
        if compare is not None and (is_identity or (is_plain(left) and is_plain(right))):
            return _calculate_any(compare, left, right)
    if isinstance(node, ast.BoolOp):
        return decide(node, [evaluate(value, scope) for value in node.values])
    return UNKNOWN


def decide(node: ast.BoolOp, values: List[Any]) -> Any:
    """Return the truth of an `and` or `or`: operands that are unknown do not matter where another decides."""
    decisive = isinstance(node.op, ast.Or)
    if any(is_plain(value) and bool(value) is decisive for value in values):
        return decisive
    return (not decisive) if all(is_plain(value) for value in values) else UNKNOWN


def is_plain(value: Any) -> bool:
    """Whether a value is None, a number, a truth value or a text."""
    return value is None or type(value) in (int, float, bool, str)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -NUMBER_MAX < value < NUMBER_MAX


def _calculate(operation: Optional[Callable[[Any, Any], Any]], left: Any, right: Any) -> Any:
    if operation is None or not _is_number(left) or not _is_number(right):
        return UNKNOWN
    return _calculate_any(operation, left, right)


def _calculate_any(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    try:
        return operation(left, right)
    except (ArithmeticError, TypeError, ValueError):
        return UNKNOWN


def _read_attribute(value: Any, name: str) -> Any:
    """Return an attribute that no descriptor and no `__getattr__` computes."""
    if value is UNKNOWN or isinstance(value, type):
        return UNKNOWN
    if type(value) is not ModuleType and type(value).__getattribute__ is not object.__getattribute__:
        return UNKNOWN
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    inherited = next((vars(kind)[name] for kind in type(value).__mro__ if name in vars(kind)), UNKNOWN)
    if type(own) is dict and name in own and not hasattr(type(inherited), "__set__"):
        return own[name]
    return inherited if is_plain(inherited) else UNKNOWN


def _read_item(value: Any, key: ast.AST, scope: Scope) -> Any:
    key = getattr(key, "value", key) if type(key).__name__ == "Index" else key  # Python 3.8
    item = evaluate(key, scope)
    if type(value) is dict and type(item) in (str, int):
        return value.get(item, UNKNOWN)
    if type(value) in (tuple, list) and type(item) is int and -len(value) <= item < len(value):
        return value[item]
    return UNKNOWN


def _call(node: ast.Call, scope: Scope) -> Any:
    if node.keywords or len(node.args) > 1 or any(isinstance(arg, ast.Starred) for arg in node.args):
        return UNKNOWN
    if isinstance(node.func, ast.Attribute) and node.func.attr == "size" and node.args:
        sizes, place = _tensor_sizes(evaluate(node.func.value, scope)), evaluate(node.args[0], scope)
        return sizes[place] if sizes and type(place) is int and -len(sizes) <= place < len(sizes) else UNKNOWN
    function = evaluate(node.func, scope)
    value = evaluate(node.args[0], scope) if node.args else UNKNOWN
    if function is len:
        length = length_of(value)
        return UNKNOWN if length is None else length
    if any(function is known for known in (int, math.ceil, math.floor)) and _is_number(value):
        return _calculate_any(lambda number, _: function(number), value, None)
    return UNKNOWN


def length_of(value: Any) -> Optional[int]:
    """Return how many items an object has whose length needs no code of the training's, None for others."""
    if type(value) in (range, tuple, str, dict, list):
        return len(value)
    sizes = _tensor_sizes(value)
    return sizes[0] if sizes else loader_length(value)


def _tensor_sizes(value: Any) -> Any:
    torch = sys.modules.get("torch")
    return tuple(value.shape) if torch is not None and type(value) is torch.Tensor else ()


def loader_length(value: Any) -> Optional[int]:
    """Return the batches of a torch DataLoader over a data set of known length, drawn in torch's own ways."""
    torch = sys.modules.get("torch")
    kind = torch.utils.data.DataLoader if torch is not None else None
    if kind is None or not issubclass(type(value), kind):
        return None
    own = vars(value)
    if type(value).__iter__ is not kind.__iter__ or type(value).__len__ is not kind.__len__:
        return None
    samplers = [item for item in (own.get("batch_sampler"), own.get("sampler")) if item is not None]
    if own.get("_dataset_kind") != 0 or not all(_is_from_torch(item) for item in samplers):
        return None
    return len(value)


def _is_from_torch(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "torch"
