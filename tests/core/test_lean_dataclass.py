"""The project's `dataclass`: behaves as the standard library's, and shares the methods that need not differ."""

from __future__ import annotations

import gc
import weakref
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from supervisor.core import lean_dataclass


def declare(decorator: Any) -> Any:
    @decorator(frozen=True, slots=True, kw_only=True)
    class Reading:
        gpu: str
        celsius: float | None = None
        secret: str = field(default="", repr=False)

    return Reading


def test_it_behaves_as_the_standard_librarys() -> None:
    lean, standard = (declare(kind)(gpu="gpu0", celsius=60.5) for kind in (lean_dataclass.dataclass, dataclass))
    assert repr(lean) == repr(standard)
    assert hash(lean) == hash(standard)
    assert lean == replace(lean)
    assert lean != replace(lean, gpu="gpu1")
    assert refusals(lean) == refusals(standard)


def refusals(reading: Any) -> list[str]:
    """Return the errors of an assignment and a deletion."""
    with pytest.raises(FrozenInstanceError) as assigned:
        reading.gpu = "gpu1"
    with pytest.raises(FrozenInstanceError) as deleted:
        del reading.gpu
    return [str(assigned.value), str(deleted.value)]


def test_what_a_class_says_of_itself_is_kept() -> None:
    @lean_dataclass.dataclass(slots=True)
    class Named:
        name: str

        def __repr__(self) -> str:
            return f"<{self.name}>"

    named = Named("one")
    named.name = "two"
    assert repr(named) == "<two>"


def test_a_subclass_is_named_and_as_frozen_as_its_parent() -> None:
    @lean_dataclass.dataclass(frozen=True)
    class Parent:
        a: int

    @lean_dataclass.dataclass(frozen=True)
    class Child(Parent):
        b: tuple[object, ...] = ()

    child = Child(1, (Parent(2),))
    own = "test_a_subclass_is_named_and_as_frozen_as_its_parent.<locals>."
    assert repr(child) == f"{own}Child(a=1, b=({own}Parent(a=2),))"
    with pytest.raises(FrozenInstanceError):
        child.a = 2  # type: ignore[misc]  # what is tested


def test_the_class_from_before_the_slots_is_freed() -> None:
    kept = []

    def remember(cls: type) -> type:
        kept.append(weakref.ref(cls))
        return cls

    @lean_dataclass.dataclass(frozen=True, slots=True)
    @remember
    class Slotted:
        value: int

    gc.collect()
    assert Slotted(1).value == 1
    assert kept[0]() is None
