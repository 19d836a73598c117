"""Statistics of a checkpoint's tensors, by the part of it that contains them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.core.foreign_values import as_dict, as_float, as_int, as_list, as_text

OPTIMIZER = re.compile(r"(?P<optimizer>(?:.*\.)?optimizer\w*(?:\.\d+)?)\.state\.(?P<index>\d+)\.(?P<what>\w+)\Z")
"""Name of a tensor in an optimizer's state, as torch writes it."""
NO_MODEL = re.compile(
    r"(?:^|\.)(?:optimizer\w*|scaler|lr_schedulers?|scheduler|rng\w*|random\w*|loops|callbacks|train_metrics|"
    r"train_results)(?:\.|\Z)|@|^rocm_supervisor\.(?:counters|gradients|position)\."
)
"""Tensors that are none of the model's: `@` marks what a module keeps besides its parameters and buffers. What a
snapshot holds of the epoch under way comes and goes: after an epoch's first batch ultralytics' mean loss is the newest
loss itself, one tensor where two are later."""
SHARD = re.compile(r"rank\d+of\d+")
"""In front of the name of a tensor in a shard: its rank, and how many ranks there were."""
ROWS_LIMIT = 20_000
DIMENSIONS_MAX, SIGNS_MAX = 16, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFigures:
    """One tensor; rms and zeros are None for integer tensors, and taken over a sample of large ones."""

    shape: tuple[int, ...]
    kind: str
    rms: float | None = None
    zeros: float | None = None
    """Share of exact zeros."""
    largest: int = 0
    """How many of its numbers are the largest that its kind can hold."""
    signs: str | None = None
    """Signs of up to 256 of its numbers, at the same places in every checkpoint."""

    @property
    def matrix(self) -> bool:
        """Whether it has rows and columns, as weights have."""
        return len(self.shape) > 1 and 0 not in self.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The contents of a checkpoint, by name."""

    tensors: Mapping[str, TensorFigures]
    optimizers: Mapping[str, int] = field(default_factory=dict)
    """How many parameters the groups of each optimizer count."""
    updates: int | None = None
    """How often the running average was updated, where the checkpoint says."""
    step: int | None = None
    """Step of the training that it holds, where that is known."""
    fit: int = 1
    """Which of the trainings that a script makes one after another it is of; the first where it does not say."""

    def parts(self) -> dict[str, dict[str, TensorFigures]]:
        """Return the model's tensors by the part of the checkpoint that they lie in (`ema`, `model`, `state_dict`)."""
        found: dict[str, dict[str, TensorFigures]] = {}
        # A program names its optimizer as it likes: `opt`, `optim_g`. Its averages of gradients are no weights.
        states = tuple(f"{name}.state.".removeprefix(".") for name in self.optimizers)
        for name, tensor_figures in self.tensors.items():
            if NO_MODEL.search(name) is None and not name.startswith(states):
                part, _, rest = _split_name(name)
                found.setdefault(part, {})[rest] = tensor_figures
        return found

    def states(self) -> dict[str, dict[int, dict[str, TensorFigures]]]:
        """Return the optimizers' states by optimizer and number of the parameter."""
        found: dict[str, dict[int, dict[str, TensorFigures]]] = {}
        for name, tensor_figures in self.tensors.items():
            if match := OPTIMIZER.match(name):
                numbers = found.setdefault(match["optimizer"], {})
                numbers.setdefault(int(match["index"]), {})[match["what"]] = tensor_figures
        return found


def _split_name(name: str) -> tuple[str, str, str]:
    """Return (part, dot, name within): what our agent adds lies one level deeper, a bare state dict at the top."""
    first, dot, rest = name.partition(".")
    if first == "rocm_supervisor" or SHARD.fullmatch(first):
        second, dot, rest = rest.partition(".")
        return f"{first}.{second}", dot, rest
    if first in ("ema", "model", "state_dict", "model_state_dict", "net", "module"):
        return first, dot, rest
    return "", dot, name


def profile_of(answer: object) -> Profile | None:
    """Return the profile in a prover's answer; None where it has none or it is invalid."""
    if not isinstance(answer, dict) or not isinstance(answer.get("tensors"), list):
        return None
    tensors = {}
    for row in answer["tensors"][:ROWS_LIMIT]:
        read = _read_row(row)
        if read is None:
            return None
        tensors[read[0]] = read[1]
    counts = {name: as_int(item) for name, item in as_dict(answer.get("optimizers")).items()}
    optimizers = {name: count for name, count in counts.items() if count is not None}
    updates, fit = as_int(answer.get("updates")), as_int(answer.get("fit"))
    return Profile(tensors=tensors, optimizers=optimizers, updates=updates, fit=1 if fit is None else fit)


def _read_row(row: object) -> tuple[str, TensorFigures] | None:
    if not isinstance(row, list) or len(row) != 7:
        return None
    name, kind, largest = as_text(row[0]) if row[0] != "" else "", as_text(row[1]), as_int(row[5])
    shape = [as_int(size) for size in as_list(row[2], DIMENSIONS_MAX)]
    sizes = tuple(size for size in shape if size is not None)
    if name is None or kind is None or largest is None or not isinstance(row[2], list) or len(sizes) < len(row[2]):
        return None
    rms, zeros = as_float(row[3], 0.0), as_float(row[4], 0.0, 1.0)
    if (row[3] is not None and rms is None) or (row[4] is not None and zeros is None):
        return None
    signs = as_text(row[6], SIGNS_MAX)
    return name, TensorFigures(shape=sizes, kind=kind, rms=rms, zeros=zeros, largest=largest, signs=signs)
