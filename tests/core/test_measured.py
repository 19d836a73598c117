"""A measured field is found with the type of a known value and with where it goes."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.measured import Column, Measure, measured, measures_of

FAN = Column("FAN", "{} rpm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    gpu: str
    fan_rpm: int | None = measured(record=True, column=FAN)
    throttled_by: tuple[str, ...] | None = measured(api=True)


def test_measured_fields_are_found_in_order_with_the_type_of_a_known_value() -> None:
    assert list(measures_of(Reading).items()) == [
        ("fan_rpm", Measure(name="fan_rpm", type=int, record=True, api=False, column=FAN)),
        ("throttled_by", Measure(name="throttled_by", type=tuple[str, ...], record=False, api=True, column=None)),
    ]


def test_a_field_that_is_not_measured_goes_nowhere() -> None:
    assert "gpu" not in measures_of(Reading)
    assert Reading(gpu="0000:0a:00.0").fan_rpm is None, "it is unknown until it was measured"
