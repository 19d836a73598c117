"""Leaves out the arithmetic of a training whose tensors are counted: results have their shapes, and no values.

A large result is a tensor as ever, in memory that nothing has written to: zeros that take none of the machine's. What
is small is computed, as are integers that come from the data, so that masks, lengths and indices have their values.
Where the training would decide by a value that was not computed, whoever counts is asked to have them all computed.
"""

from __future__ import annotations

import mmap
import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

LARGE = 1 << 15
"""Elements of a tensor from which on an operation is not computed."""
SMALL = 1 << 8
"""Elements of all that is given, up to which it is computed without a look at its result."""
MAPPED_BYTES = 1 << 16
"""From which on memory is taken from the system for a tensor by itself."""
MAP_NORESERVE = 0x4000
"""Linux'; Python's module has no name for it before 3.13."""
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
PLAIN = (torch.Tensor, torch.nn.Parameter)
VALUES_DECIDE = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
PLACEHOLDER = 1.0
"""Of small results in place of a loss or a norm: what a program may divide by, or take the logarithm of."""
IN_HEALTH = {
    getattr(home, name): name == "isfinite"
    for home in (torch, torch.Tensor)
    for name in ("isnan", "isinf", "isfinite")
    if hasattr(home, name)
}
"""What is found in every element where a healthy training looks for NaN and infinity."""


COMPARISONS = frozenset(
    getattr(getattr(torch.ops.aten, name), kind)
    for name in ("lt", "le", "gt", "ge", "eq", "ne")
    for kind in ("Scalar", "Tensor")
)


class _Kind(NamedTuple):
    way: str
    """"computed" in every case, a "view", "in place", "shaped" by what is given, or "decides" by values."""
    written: Tuple[Tuple[int, str], ...] = ()
    """Places and names of the arguments that are written to."""


class ShapesOnly:
    """Runs operations; `needs_values` is called with the name of one that decides by values that there are not."""

    def __init__(self, needs_values: Callable[[str], None]) -> None:
        self._needs_values = needs_values
        self._kinds: Dict[Any, _Kind] = {}
        self._empty: Dict[int, Any] = {}
        """References to the storages without values, by their address."""

    def call(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Return the result of an operation below autograd."""
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _sort(func)
        given = list(_list_tensors((args, kwargs)))
        if kind.way == "decides" and any(self._decides(func, tensor) for tensor in given):
            self._needs_values(str(func))
        if kind.way in ("shaped", "in place") and all(map(_is_plain, given)):
            found = (self._change if kind.way == "in place" else self._shape)(func, kind, args, kwargs, given)
            if found is not None:
                return found[0]
        result = func(*args, **kwargs)
        if kind.way != "view" and any(map(self.is_empty, given)) and not _compares_numbers(func, given):
            self._mark((result, _list_written(kind, args, kwargs)))
        return result

    def is_empty(self, tensor: Any) -> bool:
        """Whether a tensor has no values."""
        return bool(self._empty) and tensor.layout == torch.strided and _address(tensor) in self._empty

    def fill_in_health(self, result: Any, *, value: bool) -> None:
        """Give a result the value that it has in each element while a training is healthy."""
        with _disable_current_modes():
            result.fill_(value)
        self._empty.pop(_address(result), None)

    def _decides(self, func: Any, tensor: Any) -> bool:
        """Whether a training decides by a tensor without values: numbers with fractions are read for a log."""
        if not self.is_empty(tensor):
            return False
        if func is torch.ops.aten.index.Tensor:
            return tensor.dtype in (torch.bool, torch.uint8)
        return func is not torch.ops.aten._local_scalar_dense.default or not tensor.dtype.is_floating_point

    def _is_large(self, tensor: Any) -> bool:
        return tensor.numel() >= LARGE and (_has_fractions(tensor) or self.is_empty(tensor))

    def _mark(self, value: Any) -> None:
        """Note that tensors have no values."""
        for tensor in _list_tensors(value):
            if tensor.layout != torch.strided:
                continue
            storage = tensor.untyped_storage()
            address = storage._cdata
            if address not in self._empty and storage.nbytes():
                self._empty[address] = weakref.ref(storage, lambda _, address=address: self._empty.pop(address, None))

    def _change(self, func: Any, kind: _Kind, args: Any, kwargs: Any, given: List[Any]) -> Optional[Tuple[Any]]:
        """Leave out what writes to its arguments, and return them as it does; None where it is better computed."""
        if not any(map(self._is_large, given)):
            return None
        written = _list_written(kind, args, kwargs)
        self._mark(written)
        return (written[0] if func._schema.returns else None,)

    def _shape(self, func: Any, kind: _Kind, args: Any, kwargs: Any, given: List[Any]) -> Optional[Tuple[Any]]:
        """Return a result without values; None where it is better computed."""
        if given and sum(tensor.numel() for tensor in given) < SMALL:
            return None
        metas: Dict[int, Any] = {}
        try:
            found = func(*_to_meta(args, metas), **_to_meta(kwargs, metas))
            if func is torch.ops.aten.convolution.default:
                found = _lay_out_as(args[:2], found)
            made = list(_list_tensors(found))
            shared = {_address(meta) for meta in metas.values()}
            is_view = any(_address(tensor) in shared for tensor in made)
        except Exception:  # it is computed then, and raises there what is wrong
            return None
        if is_view or not (any(map(self._is_large, given)) or any(map(_is_worth_leaving, made))):
            return None
        try:
            result = _allocate_like(found)
        except (OSError, RuntimeError, ValueError):  # no memory is left for it
            return None
        self._mark((result, _list_written(kind, args, kwargs)))
        return (result,)


def _sort(func: Any) -> _Kind:
    if not isinstance(func, torch._ops.OpOverload):
        return _Kind("computed")
    schema = func._schema
    written = tuple(
        (place, argument.name)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    aliases = [item.alias_info for item in schema.returns]
    if any(tag in func.tags for tag in VALUES_DECIDE):
        return _Kind("decides", written)
    if any(alias is not None and not alias.is_write for alias in aliases):
        return _Kind("view", written)
    is_out = any(argument.is_out for argument in schema.arguments)
    some = any(alias is not None for alias in aliases)
    if torch.Tag.inplace_view in func.tags or is_out or (some and (len(aliases) > 1 or not written)):
        return _Kind("computed", written)
    return _Kind("in place" if written and (some or not aliases) else "shaped", written)


def _list_written(kind: _Kind, args: Any, kwargs: Any) -> List[Any]:
    return [args[place] if place < len(args) else kwargs.get(name) for place, name in kind.written]


def _list_tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _list_tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _list_tensors(item)


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in PLAIN and tensor.layout == torch.strided and tensor.device.type == "cpu"


def _compares_numbers(func: Any, given: List[Any]) -> bool:
    """Whether single numbers are compared, as a loss with the best before it: what is taken in their place will do."""
    return func in COMPARISONS and all(tensor.dim() == 0 and _has_fractions(tensor) for tensor in given)


def _has_fractions(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _is_worth_leaving(meta: Any) -> bool:
    return meta.numel() >= LARGE and _has_fractions(meta)


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _to_meta(value: Any, metas: Dict[int, Any]) -> Any:
    """Return arguments with tensors that have a shape alone, which are kept by the address of their originals."""
    if isinstance(value, torch.Tensor):
        if id(value) not in metas:
            metas[id(value)] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return metas[id(value)]
    if isinstance(value, torch.device):
        return torch.device("meta") if value.type == "cpu" else value
    if isinstance(value, (list, tuple)):
        return type(value)([_to_meta(item, metas) for item in value])
    if isinstance(value, dict):
        return {key: _to_meta(item, metas) for key, item in value.items()}
    return value


def _lay_out_as(given: Any, found: Any) -> Any:
    """Return what a convolution makes with its channels last, where its input or its weights have them so."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(found.dim())
    if last is not None and any(item.is_contiguous(memory_format=last) and not item.is_contiguous() for item in given):
        return found.contiguous(memory_format=last)
    return found


def _allocate_like(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return _allocate(found)
    if isinstance(found, (list, tuple)):
        return type(found)([_allocate_like(item) for item in found])
    return found


def _allocate(meta: Any) -> Any:
    """Return a tensor on the CPU as another of its shape is."""
    size = meta.untyped_storage().nbytes()
    if size < MAPPED_BYTES:
        result = torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype)
        return result.fill_(PLACEHOLDER if _has_fractions(meta) else 0)
    memory = torch.frombuffer(mmap.mmap(-1, size, flags=PRIVATE), dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=meta.dtype).set_(memory, meta.storage_offset(), meta.shape, meta.stride())
