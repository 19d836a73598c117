"""Counts the samples and tokens that a training draws for each step, by the shapes of its batches alone."""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import Any, Optional, Tuple

DEPTH_LIMIT = 4
IDS = ("input_ids", "tokens", "token_ids")
"""What token ids are called in a batch: Hugging Face's word, and those of torchtune and its like."""


class BatchCount:
    """What was drawn since the last step."""

    def __init__(self) -> None:
        self.samples = 0
        self.tokens = 0
        self._begun = False
        self._loader = 0
        """The identity of the iterator that the newest batch was drawn from, 0 where that has ended."""
        self._look: Any = None
        """What the newest batch's counts followed from, and those counts."""
        self._counts = (0, 0)
        self._aside = {}  # type: Dict[int, Tuple[int, int]]
        """What was drawn after the end of a pass, by the identity of its data: a validation's, or the next pass's."""
        self._owed = (0, 0)
        """Of the batch that a pass ended with: it was added when that ended, and the next one drawn is less by it."""
        self._kind = self._first = self._dtype = self._shape = None  # type: Any
        """By these the next batch is known to be like the newest one at a glance; its kind None: by none."""
        self._length = 0
        self.joined = 1
        """Micro-batches whose losses a tune has computed as one, in the backward pass under way."""

    def saw(self, batch: Any, loader: Any = None) -> bool:
        """A batch has come, by `loader`, an iterator of torch.utils.data; return whether it is like the last one.

        Then it has as many samples and tokens: most trainings draw thousands of batches that look alike.
        """
        if type(batch) is self._kind and len(batch) == self._length and id(loader) == self._loader:
            first = batch[0]
            if type(first) is self._first and first.shape == self._shape and first.dtype is self._dtype:
                samples, tokens = self._counts
                self.samples += samples
                if tokens:
                    self.tokens += tokens
                return True
        return self._look_at(batch, loader)

    def _look_at(self, batch: Any, loader: Any) -> bool:
        """See a batch of which it does not show at a glance that it is like the last one."""
        kind, self._kind = type(batch), None
        if (kind is list or kind is tuple) and batch and hasattr(batch[0], "shape"):
            first, length = batch[0], len(batch)
            second = getattr(batch[1], "shape", None) if length == 2 else None
            dtype = getattr(first, "dtype", None)
            look = (kind, length, first.shape, dtype, second)  # type: Any
            if dtype is not None and not (length == 2 and _holds_integers(first)):  # a second one may make it text
                self._kind, self._length = kind, length
                self._first, self._shape, self._dtype = type(first), first.shape, dtype
        else:
            look = _look_of_names(batch) if kind is dict else None
        alike = look is not None and look == self._look and id(loader) == self._loader
        if not alike:
            self._loader, expected = id(loader), expected_samples(loader)
            self._counts = (count_samples(batch, expected) or 0, count_tokens(batch) or 0)
            self._look = look
        samples, tokens = self._counts
        self.samples += samples - self._owed[0]
        self.tokens += tokens - self._owed[1]
        self._owed = (0, 0)
        return alike

    def saw_aside(self, batch: Any, loader: Any, data: int) -> bool:
        """As `saw`, of a batch drawn between two passes: it counts where the next step is made of the same `data`."""
        samples, tokens, owed, self._owed = self.samples, self.tokens, self._owed, (0, 0)
        alike = self.saw(batch, loader)
        before = self._aside.get(data, (0, 0))
        self._aside[data] = (before[0] + self.samples - samples, before[1] + self.tokens - tokens)
        self.samples, self.tokens, self._owed = samples, tokens, owed
        return alike

    def ended(self, loader: Any) -> None:
        """A pass has ended; where its last step is still to be made, a batch was drawn ahead, as accelerate does."""
        if not (self.samples or self.tokens) and id(loader) == self._loader and self._owed == (0, 0):
            self._owed = self.samples, self.tokens = self._counts
            self._kind = self._look = None  # the next batch is looked at

    def begins(self) -> None:
        """An iterator is made: it may have the identity of one that has ended."""
        self._loader = 0

    def take(self, data: Optional[int] = None) -> Tuple[int, int]:
        """Return the samples and the tokens of the step just made, 0 for unknown ones; `data`: what it was made of.

        Before its first step a training draws what it will not use: a resumed one skips to its place in the data.
        """
        samples, tokens, begun = self.samples, self.tokens, self._begun
        if self._aside:
            aside = self._aside.get(data or 0, (0, 0))
            if aside != (0, 0):
                samples, tokens, self._owed = samples - self._owed[0], tokens - self._owed[1], (0, 0)
            samples, tokens, self._aside = max(0, samples + aside[0]), max(0, tokens + aside[1]), {}
        self.samples, self.tokens, self._begun = 0, 0, True
        return (samples, tokens) if begun else (0, 0)


drawn = BatchCount()
"""Of this process."""


def expected_samples(loader: Any) -> Optional[int]:
    """Return how many samples a loader collates to a batch, None where the data comes in batches by itself."""
    if not getattr(loader, "_auto_collation", False):
        return None
    size = getattr(getattr(loader, "_index_sampler", None), "batch_size", None)
    return size if isinstance(size, int) and size > 0 else None


def count_samples(batch: Any, expected: Optional[int]) -> Optional[int]:
    """Return the samples in a batch, None where it holds no tensor.

    The first dimension of its first tensor is the number, unless the loader's own is nearby: graphs and detections
    are collated to tensors that count nodes, channels or boxes first, sequences to ones that count time first.
    """
    known = _graphs_in(batch)
    if known is not None:
        return known
    lengths = _leading_lengths(batch)
    if expected is not None and (not lengths or expected in lengths or lengths[-1] > expected):
        return expected
    return lengths[-1] if lengths else None


def _graphs_in(batch: Any) -> Optional[int]:
    """Return the graphs that a batch says it was joined from, or the nodes that it was sampled around.

    Its tensors count edges, nodes and the two ends of an edge. In a list of a graph and labels it is the first item.
    """
    item = batch[0] if isinstance(batch, (list, tuple)) and batch else batch
    if isinstance(item, dict) or hasattr(item, "shape"):
        return None
    for name in ("num_graphs", "batch_size"):  # of torch_geometric, and of its samplers and DGL
        number = getattr(item, name, None)
        if type(number) is int and number > 0:
            return number
    return None


def _look_of_names(batch: Any) -> Any:
    """Return what the counts and the shape of a batch follow from, None for one without token ids."""
    if "input_ids" in batch and "img" not in batch:
        first, ids = next(iter(batch.values())), batch["input_ids"]
        if hasattr(first, "shape") and hasattr(ids, "shape"):
            return (first.shape, ids.shape, getattr(ids, "dtype", None))
    return None


def _leading_lengths(batch: Any) -> Tuple[int, ...]:
    """Return the lengths on the way to the first tensor: of lists around it, of its second and its first dimension."""
    found = ()  # type: Tuple[int, ...]
    for _ in range(DEPTH_LIMIT):
        shape = getattr(batch, "shape", None)
        if shape is not None:
            dimensions = len(shape)
            if dimensions < 2:
                return (*found, int(shape[0])) if dimensions else found
            return (*found, int(shape[1]), int(shape[0]))
        if hasattr(batch, "keys"):
            batch = _named_first(batch)
        elif isinstance(batch, (list, tuple)) and batch:
            found = (*found, len(batch))
            batch = next((item for item in batch if _may_hold_tensor(item)), None)
        else:
            return ()
    return ()


def _named_first(batch: Any) -> Any:
    """Return the item of a mapping that is counted: the token ids, the images, or the first that may hold a tensor."""
    for name in (*IDS, "img", "pixel_values"):
        if name in batch:
            return batch[name]
    return next((item for item in batch.values() if _may_hold_tensor(item)), None)


def _may_hold_tensor(item: Any) -> bool:
    return hasattr(item, "shape") or hasattr(item, "keys") or (isinstance(item, (list, tuple)) and len(item) > 0)


def count_tokens(batch: Any) -> Optional[int]:
    """Return the tokens of a batch of text, padding included; None where it is not known to be text.

    Text is what is named so, or a pair of equal tables of whole numbers: tokens, and those that follow them.
    """
    if hasattr(batch, "keys"):
        named = next((batch[name] for name in IDS if name in batch), None)
        return _table_size(named)
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        size = _table_size(batch[0])
        return size if size is not None and tuple(batch[0].shape) == tuple(getattr(batch[1], "shape", ())) else None
    return None


def _table_size(item: Any) -> Optional[int]:
    """Return the elements of a table of whole numbers, None for anything else."""
    if item is None or not _holds_integers(item):
        return None
    shape = item.shape
    if len(shape) not in {1, 2}:
        return None
    size = 1
    for length in shape:
        size *= int(length)
    return size


def _holds_integers(item: Any) -> bool:
    kind = getattr(item, "dtype", None)
    return kind is not None and not getattr(kind, "is_floating_point", False) and "int" in str(kind)
