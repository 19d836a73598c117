"""Chooses what all ranks resume from: the newest state that every node sees alike and has proven its share of.

A generation exists only by its manifest, which names one step, one epoch and the hash of each rank's shard. Nodes that
see manifests with different digests under one name do not see the same state. Either all resume from it or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

SHOWN = 4
"""States that a reason names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A state to resume from as one node sees it."""

    name: str
    """The same on every node; each knows where it lies."""
    digest: str
    """Of its content, as far as that identifies it; the same on every node that sees the same."""
    epoch: tuple[int, ...] = ()
    """The launch that saved it, as numbers; () where it does not say."""
    step: int | None = None
    saved_unix_s: float = 0.0
    """Orders states of which neither epoch nor step is known; by the clock of the one that saved them."""
    proven: bool | None = None
    """Whether this node has proven its share of it; None: not looked at yet."""
    reason: str | None = None
    """Why it was rejected."""
    loads_itself: bool = False
    """Whether it was rejected for a format that cannot be verified, and the program has to find and load it by itself.
    """

    @property
    def order(self) -> tuple[tuple[int, ...], int, float, str]:
        """What makes one newer: a later launch, then a later step.

        No two are equal: nodes that prove one after the other must not each begin with another one.
        """
        return self.epoch, -1 if self.step is None else self.step, self.saved_unix_s, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """From where all ranks go on; without an offer from the beginning, or from what the program itself finds."""

    offer: Offer | None
    loads_itself: bool = False
    """Whether the program has saved what only it can load, and is launched by a resume command that takes no file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAgain:
    """Some node has rejected what others have proven: an older one is to be looked at."""

    rejected: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoneProven:
    """States are there, and none may be resumed from: starting from the beginning would hide that loss."""

    reason: str


def choose_resume(
    offers: Mapping[str, Sequence[Offer]], rejected: frozenset[str], passed_over: frozenset[str] = frozenset()
) -> Resume | AskAgain | NoneProven:
    """Return where all nodes resume; `offers` are by node, `rejected` what was asked to be left out already.

    `passed_over` are states that launches resumed from again and again without a new step: an older one comes before.
    As on a single machine (`checkpoint.choose`) files of a format that cannot be verified are no sign of damage where
    all that was saved is of such, and no file is handed to the training.
    """
    newest = {offer.name: offer for found in offers.values() for offer in found}
    if not newest:
        return Resume(offer=None)
    refused: set[str] = set(rejected)
    by_age = sorted(newest.values(), key=lambda offer: offer.order, reverse=True)
    for offer in sorted(by_age, key=lambda offer: offer.name in passed_over):
        verdicts = [_find(found, offer) for found in offers.values()]
        if offer.name in refused:
            continue
        if all(verdict is True for verdict in verdicts):
            return Resume(offer=offer)
        if any(verdict is False for verdict in verdicts):
            refused.add(offer.name)
            continue
        return AskAgain(rejected=frozenset(refused))  # some node has not come to it yet
    if all(_is_left_to_program(offers.values(), offer) for offer in by_age):
        return Resume(offer=None, loads_itself=True)
    return NoneProven(reason=describe_rejected(offers, by_age))


def _is_left_to_program(offers: Iterable[Sequence[Offer]], wanted: Offer) -> bool:
    """Whether every node sees the same state, and none has another fault to find with it than its format."""
    found = [next((offer for offer in of_node if offer.name == wanted.name), None) for of_node in offers]
    seen = [offer for offer in found if offer is not None and offer.digest == wanted.digest]
    sound = all(offer.loads_itself or offer.proven is not False for offer in seen)
    return len(seen) == len(found) and sound and any(offer.loads_itself for offer in seen)


def _find(found: Sequence[Offer], wanted: Offer) -> bool | None:
    """Return whether a node has proven it; False where it does not see the same under that name."""
    for offer in found:
        if offer.name == wanted.name:
            return False if offer.digest != wanted.digest else offer.proven
    return False


def describe_rejected(offers: Mapping[str, Sequence[Offer]], by_age: Sequence[Offer]) -> str:
    """Return why none of the states is resumed from, the newest first, and what to do where not all nodes see one."""
    parts, blind = [], set[str]()
    for offer in by_age[:SHOWN]:
        why = (f"{node}: {_explain(found, offer)}" for node, found in offers.items() if not _find(found, offer))
        parts.append(f"{offer.name}: {next(why, 'rejected')}")
        blind |= {node for node, found in offers.items() if not _sees(found, offer)}
    reason = f"none of {len(by_age)} saved states is proven on every node ({'; '.join(parts)})"
    return f"{reason}. {_advise(by_age[0], blind)}" if blind else reason


def _advise(newest: Offer, blind: Set[str]) -> str:
    nodes = ", ".join(sorted(blind))
    return (
        f"Ranks resume together only from a folder that all nodes share: mount it on {nodes}, or copy {newest.name} "
        "there with its times (cp -a, rsync -a), and submit again. Nothing was removed"
    )


def _sees(found: Sequence[Offer], wanted: Offer) -> bool:
    return any(offer.name == wanted.name and offer.digest == wanted.digest for offer in found)


def _explain(found: Sequence[Offer], wanted: Offer) -> str:
    for offer in found:
        if offer.name == wanted.name:
            return "is another one there" if offer.digest != wanted.digest else offer.reason or "not proven"
    return "is not there" if found else "is not there, nor is any other"
