"""Turns tensors that are spread over ranks into this rank's plain part of them, and back, without asking any rank.

A part of a DTensor (FSDP2, tensor parallelism) is kept with the shape of the complete tensor, where in it the part
begins, and how it is spread. On as many ranks it is put back as it was; on another number of ranks the complete tensor
is joined from the parts of all and cut again, where it is spread evenly along one dimension of its own.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Optional, Tuple

PART = "rocm_supervisor_part"
"""Marks, in a state, what stands for a tensor that is spread."""
LOCAL = "local"
Place = Tuple[str, ...]
PLAIN = frozenset({int, float, bool, str, bytes, type(None)})
"""Types of values in which there is no tensor."""

_layouts: Dict[Tuple[Any, ...], Dict[str, Any]] = {}
"""How tensors of a mesh, a shape and a spreading lie; there are few of them, and they do not change."""


def is_spread(value: Any) -> bool:
    """Whether a value is a tensor of which a rank holds a part."""
    return hasattr(value, "placements") and hasattr(value, "device_mesh") and hasattr(value, "to_local")


def to_parts(state: Any) -> Any:
    """Return a state with this rank's part in place of each tensor that is spread; nothing is copied."""
    return _mapped(state, is_spread, lambda _, tensor: _part_of(tensor))


def from_parts(torch: Any, state: Any, meshes: List[Any]) -> Any:
    """Return a state with tensors that are spread over this training's `meshes`; raise ValueError where none fits."""

    def whole(place: Place, part: Dict[str, Any]) -> Any:
        mesh = next((each for each in meshes if _mesh_key(each) == _plain(part["mesh"])), None)
        if mesh is None:
            raise ValueError("%s was spread over other ranks than now: %s" % (".".join(place), part["mesh"]))
        placements = [_placement_from(torch, text) for text in part["placements"]]
        return _spread(torch, part["local"].to(mesh.device_type), mesh, placements, tuple(part["shape"]))

    return _mapped(state, _is_part, whole)


def cut_again(torch: Any, states: List[Any], meshes: List[Any]) -> Any:
    """Return the first of the `states` of all earlier ranks, its parts joined over all and cut for this rank.

    Raises ValueError for what cannot be cut: only even spreading along one dimension, over one mesh, is known here.
    """
    if len(meshes) != 1 or meshes[0].ndim != 1:
        raise ValueError("weights spread over %d meshes are not put on another number of ranks" % len(meshes))
    mesh = meshes[0]
    others = [dict(_parts_in(state)) for state in states]

    def whole(place: Place, part: Dict[str, Any]) -> Any:
        if len(part["placements"]) != 1 or not part["placements"][0].startswith(("Shard(", "Replicate(")):
            raise ValueError("%s is spread as %s: not put on another number of ranks" % (place[-1], part["placements"]))
        placement = _placement_from(torch, part["placements"][0])
        full = _joined(torch, ".".join(place), [each[place] for each in others])
        local = _local_of(full, placement, mesh)
        return _spread(torch, local.to(mesh.device_type), mesh, [placement], tuple(part["shape"]))

    return _mapped(states[0], _is_part, whole)


def meshes_of(modules: Dict[str, Any]) -> List[Any]:
    """Return the meshes over which parameters of modules are spread, each once."""
    found: Dict[Any, Any] = {}
    for module in modules.values():
        for parameter in module.parameters():
            if is_spread(parameter):
                found.setdefault(_mesh_key(parameter.device_mesh), parameter.device_mesh)
    return list(found.values())


def layout_of(state: Any, roots: Optional[List[str]]) -> str:
    """Return a digest of names, shapes, kinds and spreading in a state of parts: the same on every rank."""
    lines: List[str] = []
    for root in sorted(state if roots is None else roots):
        _describe(state.get(root), (root,), lines)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def replicas_in(modules: Dict[str, Any]) -> List[Any]:
    """Return the parameters that are not spread, of which every rank has to hold the same."""
    found = [parameter for module in modules.values() for parameter in module.parameters()]
    return [parameter.detach() for parameter in found if not is_spread(parameter)]


def is_plain(values: Any) -> bool:
    """Whether a list or a tuple holds plain values alone, as the 625 numbers of Python's random state do.

    The training waits meanwhile: a call for each of them takes longer than the copy's begin.
    """
    return PLAIN.issuperset(map(type, values))


def local_of(tensor: Any) -> Any:
    """Return this rank's part of a tensor that is spread, not copied; raise ValueError while it is being gathered.

    `detach` and `to_local` of a DTensor are operations that torch dispatches, for each tensor of each snapshot.
    """
    local = getattr(tensor, "_local_tensor", None)
    if local is None:
        local = tensor.detach().to_local()
    if type(local).__name__ == "AsyncCollectiveTensor":
        raise ValueError("a weight is being gathered: no step boundary")
    return local


def layout_at(tensor: Any) -> Dict[str, Any]:
    """Return how a tensor that is spread lies, and which part of it is this rank's."""
    key = (tensor.device_mesh, tensor.shape, tensor.placements)
    layout = _layouts.get(key)
    if layout is None:
        layout = _layouts[key] = _layout_of(tensor)
    return layout


def _part_of(tensor: Any) -> Dict[str, Any]:
    return {PART: 1, LOCAL: local_of(tensor).detach(), **layout_at(tensor)}


def _layout_of(tensor: Any) -> Dict[str, Any]:
    return {
        "shape": tuple(tensor.shape),
        "offset": _offset_of(tensor),
        "placements": [str(placement) for placement in map(_text_of, tensor.placements)],
        "mesh": _mesh_key(tensor.device_mesh),
        "at": tuple(tensor.device_mesh.get_coordinate() or ()),
    }


def _offset_of(tensor: Any) -> Tuple[int, ...]:
    """Return where in the complete tensor this part begins; reckoned from shape and place alone."""
    offset = [0] * tensor.dim()
    extent = list(tensor.shape)
    for size, at, placement in zip(tensor.device_mesh.shape, tensor.device_mesh.get_coordinate(), tensor.placements):
        if type(placement).__name__ == "Shard":
            begin, length = _chunk(extent[placement.dim], size, at)
            offset[placement.dim] += begin
            extent[placement.dim] = length
    return tuple(offset)


def _chunk(length: int, parts: int, number: int) -> Tuple[int, int]:
    """Return (first, length) of one of the chunks that torch.chunk makes of a dimension; the last may be empty."""
    size = -(-length // parts)
    begin = min(number * size, length)
    return begin, min(size, length - begin)


def _local_of(full: Any, placement: Any, mesh: Any) -> Any:
    if type(placement).__name__ != "Shard":
        return full
    begin, length = _chunk(full.shape[placement.dim], mesh.size(), mesh.get_local_rank())
    return full.narrow(placement.dim, begin, length).contiguous()


def _joined(torch: Any, name: str, parts: List[Dict[str, Any]]) -> Any:
    """Return the complete tensor of all its parts; raise ValueError where they are not all of it."""
    first = parts[0]
    if first["placements"][0].startswith("Replicate("):
        return first["local"]
    full = torch.empty(first["shape"], dtype=first["local"].dtype)
    filled = 0
    for part in parts:
        local = part["local"]
        if tuple(part["shape"]) != tuple(first["shape"]):
            raise ValueError("%s has another shape on another rank" % name)
        window = tuple(slice(begin, begin + length) for begin, length in zip(part["offset"], local.shape))
        full[window] = local
        filled += local.numel()
    if filled != math.prod(first["shape"]):
        raise ValueError("the parts of %s are not all of it: %d of %d numbers" % (name, filled, full.numel()))
    return full


def _spread(torch: Any, local: Any, mesh: Any, placements: List[Any], shape: Tuple[int, ...]) -> Any:
    tensor = getattr(torch.distributed, "tensor", None) or torch.distributed._tensor
    stride = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    with torch.no_grad():
        return tensor.DTensor.from_local(
            local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
        )


def _placement_from(torch: Any, text: str) -> Any:
    """Return a placement by its text; raise ValueError for one that is not known here."""
    tensor = getattr(torch.distributed, "tensor", None) or torch.distributed._tensor
    if text == "Replicate()":
        return tensor.Replicate()
    if text.startswith("Shard(") and text[6:-1].isdigit():
        return tensor.Shard(int(text[6:-1]))
    raise ValueError("weights spread as %s are not put back by this version" % text)


def _text_of(placement: Any) -> str:
    if type(placement).__name__ == "Shard":
        return "Shard(%d)" % placement.dim
    if type(placement).__name__ == "Replicate":
        return "Replicate()"
    raise ValueError("weights spread as %s are not saved in mid-epoch" % placement)


def _mesh_key(mesh: Any) -> Tuple[Any, ...]:
    return tuple(mesh.shape), tuple(mesh.mesh_dim_names or ())


def _plain(key: Any) -> Tuple[Any, ...]:
    return tuple(key[0]), tuple(key[1])


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and value.get(PART) == 1


def _parts_in(state: Any) -> List[Tuple[Place, Dict[str, Any]]]:
    found: List[Tuple[Place, Dict[str, Any]]] = []
    _mapped(state, _is_part, lambda place, part: found.append((place, part)))
    return found


def _describe(value: Any, place: Place, lines: List[str]) -> None:
    name = ".".join(place)
    if _is_part(value):
        lines.append("%s %s %s %s" % (name, value["shape"], value["local"].dtype, value["placements"]))
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        lines.append("%s %s %s" % (name, tuple(value.shape), value.dtype))
    elif isinstance(value, dict):
        for key, item in value.items():
            _describe(item, (*place, str(key)), lines)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _describe(item, (*place, str(index)), lines)


def _mapped(state: Any, chosen: Callable[[Any], bool], function: Callable[[Place, Any], Any], place: Place = ()) -> Any:
    """Return the state with `function(its place, it)` in place of each value that is `chosen`."""
    if chosen(state):
        return function(place, state)
    if isinstance(state, dict):
        items = [(key, _mapped(value, chosen, function, (*place, str(key)))) for key, value in state.items()]
        if not isinstance(state, OrderedDict):
            return dict(items)
        made: Any = OrderedDict(items)
        if hasattr(state, "_metadata"):
            made._metadata = state._metadata  # by which modules know the layout that a state has
        return made
    if isinstance(state, (list, tuple)):
        if is_plain(state):
            return state if isinstance(state, tuple) else list(state)
        parts = [_mapped(value, chosen, function, (*place, str(index))) for index, value in enumerate(state)]
        if hasattr(state, "_fields"):
            return type(state)(*parts)
        return tuple(parts) if isinstance(state, tuple) else parts
    return state
