"""Finds the syntax tree of a function that is running, in the source file that it was compiled from.

A file that was changed since, code without a file and generated code have none: the compiled text is compared with the
code that runs.
"""

from __future__ import annotations

import ast
import os
import stat
from types import CodeType
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

FILE_BYTES_MAX = 400_000
FILES_MAX = 12

Function = Union[ast.FunctionDef, ast.Lambda, ast.Module]


class Sources:
    """The source files of one reading, each read and compiled once."""

    def __init__(self) -> None:
        self._files: Dict[str, Optional[Tuple[ast.Module, List[CodeType]]]] = {}

    def find(self, code: CodeType) -> Optional[Tuple[ast.Module, Function]]:
        """Return the file's tree and the function within it, None where the file is not what runs."""
        path = code.co_filename
        if path not in self._files:
            self._files[path] = _read(path) if len(self._files) < FILES_MAX else None
        read = self._files[path]
        if read is None or not any(_is_same(code, candidate) for candidate in read[1]):
            return None
        functions = [node for node in ast.walk(read[0]) if _is_defined_by(node, code)]
        return (read[0], functions[0]) if len(functions) == 1 else None


def _read(path: str) -> Optional[Tuple[ast.Module, List[CodeType]]]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        return None
    try:
        tree = compile(text, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        return tree, list(_walk_codes(compile(tree, path, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _walk_codes(code: CodeType) -> Iterator[CodeType]:
    waiting = [code]
    while waiting:
        code = waiting.pop()
        yield code
        waiting.extend(const for const in code.co_consts if isinstance(const, CodeType))


def _is_same(code: CodeType, other: CodeType) -> bool:
    return _outline(code) == _outline(other)


def _outline(code: CodeType) -> Tuple[Any, ...]:
    """Return what two compilations of one text have in common, and those of two texts have not."""
    lines = code.co_lnotab if not hasattr(code, "co_linetable") else code.co_linetable
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return code.co_name, code.co_firstlineno, code.co_code, names, lines, repr([_plain(c) for c in code.co_consts])


def _plain(const: Any) -> Any:
    if isinstance(const, CodeType):
        return const.co_name
    return sorted(map(repr, const)) if isinstance(const, frozenset) else const


def _is_defined_by(node: ast.AST, code: CodeType) -> bool:
    if isinstance(node, ast.Module):
        return code.co_name == "<module>"
    if isinstance(node, ast.FunctionDef):
        # The code of a decorated function begins with its first decorator.
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        return node.name == code.co_name and first == code.co_firstlineno
    return isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
