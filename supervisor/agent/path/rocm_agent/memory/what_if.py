"""Changes that a probe makes to a training to see what they would cost: micro-batch, precision, checkpointing."""

from __future__ import annotations

import weakref
from functools import wraps
from itertools import islice
from typing import Any, Dict, Iterator, List, Optional

from rocm_agent.fence import fenced

from .cudnn_attention import Attention
from .cudnn_skip import Convolutions

LEAST_BLOCKS = 3
"""Modules of one kind in a row that are taken for the blocks of a network."""
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


class Samplers:
    """The batch samplers of a process: DataLoader makes one in every case."""

    def __init__(self, torch: Any) -> None:
        self._kind = torch.utils.data.sampler.BatchSampler
        self._made: List[Any] = []
        """Each with the size that it was made with; it is referred to weakly."""
        self._sizes: Dict[int, int] = {}

    def install(self) -> None:
        """Follow the samplers that are made, and have them draw as many samples as they have at the moment."""
        original = self._kind.__init__

        @wraps(original)
        def __init__(self_: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes its place
            original(self_, *args, **kwargs)
            size = self_.batch_size
            self._made.append((weakref.ref(self_), size))
            self_.batch_size = self._sizes.get(size, size)

        self._kind.__init__ = __init__
        self._kind.__iter__ = _draw

    def change(self, configured: int, wanted: int) -> None:
        """Have every sampler of the configured size draw `wanted` samples from now on."""
        self._sizes = {configured: wanted}
        for reference, size in self._made:
            sampler = reference()
            if sampler is not None and size == configured:
                sampler.batch_size = wanted

    def follows(self, sampler: Any) -> bool:
        """Whether a sampler draws another number as soon as it is changed."""
        return getattr(type(sampler), "__iter__", None) is _draw


def _draw(sampler: Any) -> Iterator[List[Any]]:
    """Yield batches of the size that the sampler has when each is drawn."""
    indices = iter(sampler.sampler)
    while True:
        batch = list(islice(indices, sampler.batch_size))
        if not batch or (sampler.drop_last and len(batch) < sampler.batch_size):
            return
        yield batch


class Outermost:
    """Calls of the outermost module of a training, by which precision and checkpointing are changed."""

    def __init__(self, torch: Any, *, precision: Optional[str], checkpointing: Optional[bool]) -> None:
        self._torch = torch
        self._precision = precision
        self._checkpointing = checkpointing
        self._depth = 0
        self.convolutions = Convolutions(torch)
        self.attention = Attention(torch)
        self.largest: Dict[str, Any] = {}
        """The largest output of a module: its name's kind and its bytes."""
        self.checkpointed: Optional[str] = None
        """How checkpointing was switched; None: it was not."""

    def install(self) -> None:
        """Follow every call of a module, and of attention."""
        self.attention.install()
        module = self._torch.nn.Module
        original, training = module.__call__, self._torch.is_grad_enabled

        @wraps(original)
        def __call__(called: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it takes its place
            if self._depth or not training():
                if self.convolutions.follows(called):
                    given = args[0] if args else None
                    result = self.convolutions.call(called, given, lambda: original(called, *args, **kwargs))
                else:
                    result = original(called, *args, **kwargs)
                self._note(called, result)
                return result
            if self._checkpointing is not None and self.checkpointed is None:
                fenced(self._switch_checkpointing)(called)
            self._depth += 1
            try:
                with self._autocast(called):
                    result = original(called, *args, **kwargs)
            finally:
                self._depth -= 1
            self._note(called, result)
            return result

        module.__call__ = __call__
        if self._precision == "fp32":
            _disable_autocast(self._torch)

    def begin(self, wanted: Dict[str, Any]) -> None:
        """Begin with a request."""
        without, may_skip = bool(wanted.get("without_cudnn")), bool(wanted.get("skips_cudnn"))
        self.convolutions.begin(may_skip=may_skip or without, is_skipped=without)
        self.attention.begin(may_skip=may_skip or bool(wanted.get("without_cudnn_attention")))

    def _note(self, called: Any, result: Any) -> None:
        if not hasattr(result, "untyped_storage") or not result.requires_grad:
            return
        size = result.numel() * result.element_size()
        if size > self.largest.get("bytes", 0):
            single = 4 * result.numel()
            self.largest = {
                "kind": type(called).__name__, "bytes": size, "columns": int(result.shape[-1]), "single_bytes": single,
            }  # fmt: skip

    def _autocast(self, called: Any) -> Any:
        import contextlib  # noqa: PLC0415 - in a probe only

        if self._precision not in DTYPES:
            return contextlib.nullcontext()
        parameter = next(iter(called.parameters()), None)
        device = "cuda" if parameter is None else parameter.device.type
        dtype = getattr(self._torch, DTYPES[self._precision])
        return self._torch.autocast("cuda" if device == "cpu" else device, dtype=dtype)

    def _switch_checkpointing(self, model: Any) -> None:
        name = "gradient_checkpointing_enable" if self._checkpointing else "gradient_checkpointing_disable"
        owner = next((item for item in model.modules() if hasattr(item, name)), None)
        if owner is not None:
            getattr(owner, name)()
            self.checkpointed = name
        elif self._checkpointing:
            self.checkpointed = _checkpoint_blocks(self._torch, model)
        else:
            _never_checkpoint(self._torch)
            self.checkpointed = "torch.utils.checkpoint"


def _checkpoint_blocks(torch: Any, model: Any) -> str:
    """Have the blocks of a network checkpointed, or the segments of its rows of layers; return what was, in words."""
    blocks = list_blocks(torch, model)
    for block in blocks:
        _checkpoint(torch, block)
    if blocks:
        return "%d blocks" % len(blocks)
    rows = list_rows(torch, model)
    return ", ".join("%d segments of %d layers" % (_checkpoint_row(torch, row), len(row)) for row in rows)


def list_blocks(torch: Any, model: Any) -> List[Any]:
    """Return the blocks of a network: the outermost modules that come three times or more among their siblings."""
    members = list(model.children()) if isinstance(model, (torch.nn.Sequential, torch.nn.ModuleList)) else []
    kinds = [type(member) for member in members if next(iter(member.children()), None) is not None]
    repeated = {kind for kind in kinds if kinds.count(kind) >= LEAST_BLOCKS}
    if repeated:
        return [member for member in members if type(member) in repeated]
    return [block for child in model.children() for block in list_blocks(torch, child)]


def list_rows(torch: Any, model: Any) -> List[Any]:
    """Return the outermost rows of single layers, three of which or more have weights."""
    if type(model) is torch.nn.Sequential:
        weighted = [child for child in model.children() if next(iter(child.parameters()), None) is not None]
        if len(weighted) >= LEAST_BLOCKS:
            return [model]
    return [row for child in model.children() for row in list_rows(torch, child)]


def _checkpoint_row(torch: Any, row: Any) -> int:
    """Have a row of layers checkpointed in as many segments as its length has root; return how many.

    The last segment is not: its backward pass comes first, and would compute it twice for nothing.
    """
    from torch.utils.checkpoint import checkpoint  # noqa: PLC0415 - in a probe only

    layers, count = list(row), max(2, round(len(row) ** 0.5))
    segments = [layers[len(layers) * at // count : len(layers) * (at + 1) // count] for at in range(count)]

    def run(segment: List[Any], given: Any) -> Any:
        for layer in segment:
            given = layer(given)
        return given

    def checkpointed(given: Any) -> Any:
        for segment in segments[:-1]:
            given = checkpoint(run, segment, given, use_reentrant=False)
        return run(segments[-1], given)

    row.forward = checkpointed
    return count


def _checkpoint(torch: Any, block: Any) -> None:
    from torch.utils.checkpoint import checkpoint  # noqa: PLC0415 - in a probe only

    forward = block.forward

    @wraps(forward)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    block.forward = checkpointed


def _never_checkpoint(torch: Any) -> None:
    own = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")

    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **{name: value for name, value in kwargs.items() if name not in own})

    import torch.utils.checkpoint as home  # noqa: PLC0415 - in a probe only

    home.checkpoint = checkpoint


def _disable_autocast(torch: Any) -> None:
    kind = torch.amp.autocast_mode.autocast
    original = kind.__init__

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes its place
        original(self, *args, **kwargs)
        self._enabled = False

    kind.__init__ = __init__
