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


@st.composite
def notices(draw: st.DrawFn) -> KeptNotice:
    """Return a notice of any type with any texts."""
    data: dict[str, Any] = {name: draw(clean_text) for name in draw(st.sets(st.sampled_from(TEXTS)))}
    data |= {name: draw(st.integers(-(2**63), 2**63)) for name in draw(st.sets(st.sampled_from(NUMBERS)))}
    data["downtime_s"] = draw(st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers())
    data["loss"] = draw(st.none() | st.floats(allow_nan=False, allow_infinity=False))
    data["severity"] = draw(st.sampled_from(("info", "warning", "critical", "of another version")))
    data["since"] = draw(st.sampled_from(("2026-11-21T02:57:00.000Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z")))
    data["given_up_at"] = data["since"]
    data["advice"] = draw(st.lists(clean_text, max_size=3))
    data["alerts"] = draw(st.lists(clean_text, max_size=6))
    numbers = st.none() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    keys = ("epoch_before", "epoch", "loss_before", "loss", "steps", "effective", "lost_s", "incidents", "resumed")
    texts = st.fixed_dictionaries({"job": clean_text, "phase": clean_text, "reason": clean_text})
    facts = st.dictionaries(st.sampled_from(keys), numbers)
    data["trainings"] = draw(st.lists(st.builds(lambda a, b: {**a, **b}, texts, facts), max_size=3))
    data["undelivered"] = draw(
        st.lists(st.fixed_dictionaries({"receiver": clean_text, "error": clean_text}), max_size=2)
    )
    data["triage"] = {"verdict": "data", "words": draw(clean_text), "files": draw(st.lists(clean_text, max_size=4))}
    timestamp = draw(st.sampled_from(("2026-11-21T03:00:00.000Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "")))
    return notice(draw(st.sampled_from(TYPES)), timestamp=timestamp, **data)


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
