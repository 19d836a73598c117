"""The words of an alert at 3 am: state and training first, then what, since when, what was done, what it cost."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from notices_by_hand import notice, notices, resumed

from supervisor.alerts.channel import KeptNotice, read_notice
from supervisor.alerts.fit import count_bytes, count_characters, count_utf16, fit
from supervisor.alerts.message import Urgency, compose
from supervisor.core.flags import Severity

BERLIN = ZoneInfo("Europe/Berlin")
STALL: dict[str, Any] = {
    "job": "yolo", "host": "gpubox", "rule": "stall", "message": "no step for 41 s", "incident": "yolo-12",
    "since": "2026-11-21T01:57:10.000Z", "step_before": 1_204_882, "epoch": 31,
}  # fmt: skip


def build_texts(kind_: str, /, **facts: Any) -> tuple[str, ...]:
    message = compose(notice(kind_, "2026-11-21T02:00:00.000Z", **facts), BERLIN)
    return (message.title, *message.lines)


def test_an_incident_that_opens() -> None:
    causes = {"causes": ["a deadlock of the loader's workers"], "advice": ["workers=0"]}
    assert build_texts("incident.opened", decision="stop", **STALL, **causes) == (
        "yolo: stall",
        "no step for 41 s",
        "Since 02:57, step 1,204,882, epoch 31.",
        "It is being stopped, then restarted.",
        "Likely cause: a deadlock of the loader's workers",
        "You can: workers=0",
        "Host gpubox. supervisorctl show yolo-12",
    )


def test_a_training_that_was_given_up_needs_a_person() -> None:
    facts = {**STALL, "rule": "non_finite_loss", "reason": "4 attempts failed", "remedy": "lower_lr"}
    title, *lines = build_texts("job.gave_up", **facts)
    assert title == "yolo STOPPED, needs you: non finite loss"
    assert lines == [
        "4 attempts failed",
        "no step for 41 s",
        "Since 02:57, step 1,204,882, epoch 31.",
        "Remedy: lower lr.",
        "Host gpubox. supervisorctl show yolo-12",
    ]


def test_what_the_reason_says_already_is_not_repeated() -> None:
    lines = build_texts(
        "job.gave_up", job="yolo", reason="5 restarts; last: no step for 41 s", message="no step for 41 s"
    )
    assert lines[1] == "5 restarts; last: no step for 41 s"
    assert "no step for 41 s" not in lines[2:]


def test_what_was_never_started_has_not_ended() -> None:
    facts = {"job": "yolo", "rule": "launch", "message": "could not be launched: no such file"}
    title, *lines = build_texts("incident.opened", decision="retry", **facts)
    assert title == "yolo: could not be launched"
    assert "Nothing was started; it is tried again." in lines


def test_the_other_types() -> None:
    assert build_texts("job.finished", job="yolo", reason="ended by itself", restarts=3, last_step=500, loss=0.25)[
        :4
    ] == (
        "yolo finished",
        "ended by itself",
        "Step 500, loss 0.25.",
        "Restarts: 3.",
    )
    assert build_texts("job.finished", job="yolo", reason="no step", unconfirmed=True)[:2] == (
        "yolo finished, its result needs a look",
        "no step",
    )
    triage = {"verdict": "data", "words": "img is not finite", "files": ["/data/3.png"]}
    assert build_texts("incident.triaged", **STALL, triage=triage)[:3] == (
        "yolo: cause found: data",
        "img is not finite",
        "Look at: /data/3.png",
    )
    assert build_texts("job.last_resort", job="yolo", kind="gpu_reset", reason="hung")[:2] == (
        "yolo: last resort: gpu reset",
        "hung",
    )
    assert build_texts("flag.warning", job="yolo", rule="vram_high", message="96 %")[:2] == ("yolo: vram high", "96 %")
    assert build_texts("flag.critical", job="yolo", rule="unkillable")[0] == "yolo needs you: unkillable"
    assert build_texts("test", host="box", message="test of the receiver phone") == (
        "Test alert from box",
        "test of the receiver phone",
    )
    assert build_texts("digest", host="box", count=40, alerts=["a: 1"], more={"vram_high": 30, "thermal": 9}) == (
        "40 alerts from box",
        "a: 1",
        "and 39 more: 30 vram high, 9 thermal",
    )


def test_what_began_again_from_the_beginning_says_so() -> None:
    facts = {**STALL, "outcome": "checkpoint_ignored", "lost_steps": 500, "downtime_s": 7260.0}
    assert build_texts("incident.resumed", **facts)[1] == (
        "It was restarted from the beginning. Cost: 2 h 1 min without a step, 500 steps to redo."
    )


def test_what_was_restarted_without_a_checkpoint_says_where_it_went_on() -> None:
    facts = {**STALL, "outcome": "restarted"}
    for more, words in (
        ({"went_on_step": 1500}, "It was restarted, and went on from step 1,500 by itself."),
        ({"loads_itself": True, "went_on_step": 0}, "It was restarted from the beginning."),
        (
            {"loads_itself": True},
            "It was restarted to load its own checkpoint; the step that it went on from is not known.",
        ),
    ):
        assert build_texts("incident.resumed", **facts, **more)[1].startswith(words)


def test_what_loaded_another_checkpoint_than_it_was_given_says_which() -> None:
    facts = {**STALL, "outcome": "resumed", "resumed_from": "/runs/epoch_4.pt", "resumed_step": 40}
    aside = build_texts("incident.resumed", **facts, set_aside=["/runs/epoch_8.pt", "/runs/epoch_9.pt"])[1]
    assert "Newer checkpoints were moved aside: /runs/epoch_8.pt, /runs/epoch_9.pt." in aside
    assert build_texts("incident.resumed", **facts, own_file="/runs/epoch_8.pt")[1].startswith(
        "It was relaunched to resume from /runs/epoch_4.pt, but loaded /runs/epoch_8.pt by itself."
    )


def test_a_time_of_another_day_has_its_date() -> None:
    assert "Since 2026-11-20 23:30." in build_texts("flag.warning", job="yolo", since="2026-11-20T22:30:00Z")


@pytest.mark.parametrize(
    ("kind", "urgency"),
    [
        ("job.gave_up", Urgency.URGENT),
        ("flag.critical", Urgency.URGENT),
        ("incident.opened", Urgency.HIGH),
        ("flag.warning", Urgency.NORMAL),
        ("incident.resumed", Urgency.CALM),
        ("job.finished", Urgency.CALM),
    ],
)
def test_only_what_needs_a_person_is_urgent(kind: str, urgency: Urgency) -> None:
    assert compose(notice(kind)).urgency is urgency


def test_a_finish_that_may_have_saved_spoilt_weights_is_no_good_news() -> None:
    assert compose(notice("job.finished", unconfirmed=True)).urgency is Urgency.NORMAL


@given(notices())
def test_every_notice_has_a_title_and_one_line_a_line(sent: KeptNotice) -> None:
    message = compose(sent, BERLIN)
    assert message.title.strip() == message.title != ""
    for line in (message.title, *message.lines):
        assert line.isprintable() or not any(character in line for character in "\r\n\x00\x1b\u202e")
        assert "\n" not in line


def test_the_first_forty_characters_name_the_training_and_its_state() -> None:
    assert compose(resumed()).title[:40] == "yolo is training again (nothing to do)"
    assert build_texts("job.gave_up", job="yolo")[0].startswith("yolo STOPPED, needs you")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"data": 1}', b'{"type": 1, "data": {"severity": []}}'])
def test_a_record_that_cannot_be_read_is_critical_and_has_words(content: bytes) -> None:
    kept = read_notice("msg_1", content)
    assert kept.severity is Severity.CRITICAL
    assert compose(kept).title


@pytest.mark.parametrize(
    "text",
    [
        "{job.__init__.__globals__} {host}",
        "${ALERT_SECRET} $ALERT_SECRET `id`",
        "{{ 7 * 7 }} <%= 7 %>",
        "loss🔥 is NaN",
    ],
)
def test_a_template_in_a_text_of_the_training_stays_as_it_is(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALERT_SECRET", "s3same")
    facts = {**STALL, "job": text, "message": text, "rule": text, "causes": [text], "advice": [text]}
    title, *lines = build_texts("incident.opened", decision="stop", **facts)
    assert title.startswith(f"{text}: ")
    assert lines[0] == text
    assert f"Likely cause: {text}" in lines
    assert f"You can: {text}" in lines


texts = st.text(alphabet=st.sampled_from("ab\\*<😀漢"), max_size=300)


@given(texts, st.integers(1, 300), st.sampled_from((count_characters, count_bytes, count_utf16)))
def test_a_text_is_cut_to_its_limit_in_every_way_to_count(text: str, limit: int, count: Any) -> None:
    def escape(character: str) -> str:
        return {"<": "&lt;", "*": "\\*", "\\": "\\\\"}.get(character, character)

    limit = max(limit, count("…"))
    shown = fit(text, limit, count, escape)
    assert count(shown) <= limit
    complete = "".join(map(escape, text))
    if count(complete) <= limit:
        assert shown == complete
    else:
        assert shown.endswith("…")
        kept = shown.removesuffix("…")
        assert any(kept == "".join(map(escape, text[:end])) for end in range(len(text) + 1))
        assert count(kept) > limit - count("…") - 8


def test_a_message_has_a_title_whatever_its_texts_are() -> None:
    assert build_texts("incident.opened", job="\u009d")[0] == "incident.opened"
