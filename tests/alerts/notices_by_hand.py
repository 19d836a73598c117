"""Notices for the tests of channels: stories as the daemon tells them, and any text in any field."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from supervisor.alerts.channel import KeptNotice, read_notice

TYPES = (
    "incident.opened",
    "incident.triaged",
    "incident.resumed",
    "job.gave_up",
    "job.finished",
    "job.last_resort",
    "flag.warning",
    "flag.critical",
    "test",
    "report",
    "digest",
    "of.another.version",
)
TEXTS = ("host", "job", "message", "rule", "reason", "incident", "outcome", "remedy", "remedy_why", "subject", "kind")
NUMBERS = (
    "step_before",
    "resumed_step",
    "lost_steps",
    "epoch",
    "restarts",
    "last_step",
    "count",
    "reminder",
    "stopped",
    "unresolved",
)
MARKUP = "*_~`|<>&@#:[]()\\-+=!.\"'/ \n\t\r\x1b\x00\u202e\u200b😀é漢字🏳️‍🌈"
any_text = st.one_of(
    st.text(max_size=60),
    st.text(alphabet=st.sampled_from(MARKUP), max_size=80),
    st.tuples(st.text(alphabet=st.sampled_from(MARKUP), min_size=1, max_size=6), st.integers(1, 3000)).map(
        lambda pair: pair[0] * pair[1]
    ),
    st.sampled_from(
        (
            "<!channel> <@U1> <https://evil.example|click>",
            "@everyone <@&1> <t:0> [click](https://evil.example) ||x||",
            "line\r\nBcc: evil@evil.example\r\n\r\nbody",
            "\r\n.\r\nMAIL FROM:<evil@evil.example>\r\n",
            "```\n# head\n- item\n> quote\n1. item\n```",
        )
    ),
)
clean_text = any_text.map(lambda text: text.encode("utf-8", "ignore").decode())


_finite = st.floats(allow_nan=False, allow_infinity=False)
_number = st.none() | st.integers(-(2**63), 2**63) | _finite
_keys = ("epoch_before", "epoch", "loss_before", "loss", "steps", "effective", "lost_s", "incidents", "resumed")
_training = st.builds(
    lambda a, b: {**a, **b},
    st.fixed_dictionaries({"job": clean_text, "phase": clean_text, "reason": clean_text}),
    st.dictionaries(st.sampled_from(_keys), _number),
)
_data: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "downtime_s": st.none() | _finite | st.integers(),
        "loss": st.none() | _finite,
        "severity": st.sampled_from(("info", "warning", "critical", "of another version")),
        "since": st.sampled_from(("2026-11-21T02:57:00.000Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z")),
        "advice": st.lists(clean_text, max_size=3),
        "alerts": st.lists(clean_text, max_size=6),
        "trainings": st.lists(_training, max_size=3),
        "undelivered": st.lists(st.fixed_dictionaries({"receiver": clean_text, "error": clean_text}), max_size=2),
        "triage": st.fixed_dictionaries(
            {"verdict": st.just("data"), "words": clean_text, "files": st.lists(clean_text, max_size=4)}
        ),
    }
)
_timestamp = st.sampled_from(("2026-11-21T03:00:00.000Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", ""))
_names_of_texts, _names_of_numbers = st.sets(st.sampled_from(TEXTS)), st.sets(st.sampled_from(NUMBERS))
_integer, _type = st.integers(-(2**63), 2**63), st.sampled_from(TYPES)


@st.composite
def notices(draw: st.DrawFn) -> KeptNotice:
    """Return a notice of any type with any texts; what it is made of is put together once, not for each."""
    data: dict[str, Any] = {name: draw(clean_text) for name in draw(_names_of_texts)}
    data |= {name: draw(_integer) for name in draw(_names_of_numbers)}
    data |= draw(_data)
    data["given_up_at"] = data["since"]
    return notice(draw(_type), timestamp=draw(_timestamp), **data)


def notice(type_: str, /, timestamp: str = "2026-11-21T03:00:00.000Z", **data: Any) -> KeptNotice:
    """Return one notice as the record keeps it."""
    content = json.dumps({"type": type_, "timestamp": timestamp, "data": {"severity": "critical", **data}})
    return read_notice("msg_0123456789abcdef0123456789abcdef", content.encode())


def resumed() -> KeptNotice:
    """A training that goes on after a stall."""
    return notice(
        "incident.resumed",
        job="yolo",
        host="gpubox",
        rule="stall",
        message="no step for 41 s",
        since="2026-11-21T02:57:10.000Z",
        step_before=1_204_882,
        epoch=31,
        outcome="resumed",
        resumed_step=1_204_600,
        lost_steps=282,
        downtime_s=49.2,
        remedy="no_workers",
        remedy_why="the same stall at the same place",
        incident="yolo-12",
    )
