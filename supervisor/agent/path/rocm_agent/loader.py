"""Which loader an iterator of torch.utils.data was made for: what a tune later needs of an iteration under way."""

from __future__ import annotations

from typing import Any

OWNER = "_rocm_agent_owner"
SUCCESSOR = "_rocm_agent_successor"
"""What follows the iterator, once a tune has exchanged it."""
MET = "_rocm_agent_met"
ITERATORS = ("_iterator", "iterator")
"""Where loaders keep their iterators: one that held them would keep itself and its workers alive."""


def begins(kind: Any, loader: Any, iterator: Any) -> None:
    """An iteration begins; a loader with persistent workers begins each with the same iterator.

    What is kept is a loader of torch's own class with the settings of this one, which the script may drop while it
    iterates. A copy of its own class would not serve: some end the workers of the first when the second is deleted.
    """
    held = getattr(iterator, "__dict__", None)
    if held is None:
        return
    settings = object.__new__(kind)
    settings.__dict__.update({name: value for name, value in loader.__dict__.items() if name not in ITERATORS})
    held[OWNER] = settings
    held.pop(SUCCESSOR, None)
    held.pop(MET, None)


def draws_at_random(torch: Any, sampler: Any) -> bool:
    """Whether a sampler draws in random order, as that of a training does and that of a validation does not."""
    data = torch.utils.data
    return isinstance(sampler, (data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler))


def owner_of(iterator: Any) -> Any:
    """Return a loader with the settings of the one that an iterator was made for, None where they are not known."""
    return iterator.__dict__.get(OWNER)
