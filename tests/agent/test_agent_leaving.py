"""A loop that was left is no late step: where the main thread is tells it, while steps are made and when none come."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from agent_by_hand import Attempt, interpreters, name_of

PROGRAM = """
import sys
from rocm_agent import layout
from rocm_agent.loops.leaving import LoopWatch

class Recorder:
    written, stage, aside = 0, layout.STEP, layout.DATA_WAIT

recorder, watch = Recorder(), LoopWatch()

def step():
    recorder.written += 1
    recorder.stage = layout.STEP
    if recorder.written == 1 or watch.is_elsewhere:
        print("learned", watch.learn(sys._getframe()))

def look(where):
    # As the thread does: where the main thread is now.
    watch.look(recorder, sys._getframe(1))
    print(where, layout.STAGES[recorder.stage])

"""
LEFT = """
for number in range(3):
    step()
    look("in the loop")
look("left")
"""
BETWEEN_EPOCHS = """
def train():
    for batch in range(2):
        step()
        look("a batch")

def evaluate():
    look("evaluation")

for epoch in range(2):
    train()
    evaluate()
look("over")
"""
GAMES_BETWEEN = """
def train(batches):
    for batch in range(batches):
        step()
        if batch < batches - 1:
            look("a batch")

for generation in range(2):
    train(3)
    look("games")
    look("more games")
"""
SHORT_PASSES = """
for generation in range(2):
    for batch in range(3):
        step()
    look("games")
    look("more games")
"""
FAST_AND_NESTED = """
for batch in range(3):
    for optimizer in range(2):
        step()
    look("next batch")
    if batch == 2:
        look("late")
look("over")
"""
SLOW_AND_NESTED = """
for batch in range(2):
    for optimizer in range(1):
        step()
    look("next batch soon")
    look("next batch late")
look("over")
"""
TWO_PHASES = """
def first():
    for number in range(2):
        step()
        look("first")

def second():
    while recorder.written < 5:
        step()
        look("second")
        look("second late")

first()
look("between")
second()
look("over")
"""
WITHOUT_A_LOOP = """
step()
"""
STORIES = {
    "the loop is over": (LEFT, "learned True, in the loop step, in the loop step, in the loop step, left validate"),
    "an evaluation between epochs": (
        BETWEEN_EPOCHS,
        "learned True, a batch step, a batch step, evaluation validate, a batch step, a batch step, "
        "evaluation validate, over validate",
    ),
    "games after a pass, whose last step was just made": (
        GAMES_BETWEEN,
        "learned True, a batch step, a batch step, games step, more games validate, a batch step, a batch step, "
        "games step, more games validate",
    ),
    "games after passes that are over between two looks": (
        SHORT_PASSES,
        "learned True, games step, more games validate, games step, more games validate",
    ),
    "fast steps in an inner loop": (
        FAST_AND_NESTED,
        "learned True, next batch step, next batch step, next batch step, late step, over validate",
    ),
    "slow steps in an inner loop": (
        SLOW_AND_NESTED,
        "learned True, next batch soon step, next batch late step, next batch soon step, next batch late step, "
        "over validate",
    ),
    "a second loop": (
        TWO_PHASES,
        "learned True, first step, first step, between validate, second step, second late validate, learned True, "
        "second step, second late step, second step, second late step, over validate",
    ),
    "no loop": (WITHOUT_A_LOOP, "learned False"),
}


@pytest.mark.parametrize("python", interpreters(), ids=name_of)
@pytest.mark.parametrize("story", STORIES)
def test_where_the_main_thread_is_tells_whether_a_step_is_due(
    attempt: Attempt, python: Path, tmp_path: Path, story: str
) -> None:
    """What is known of a loop is known from its second look on: the first one only learns that steps were made."""
    text, expected = STORIES[story]
    script = tmp_path / "train.py"
    script.write_text(PROGRAM + textwrap.dedent(text))
    finished = attempt.run([python, script])
    assert not attempt.failures()
    assert ", ".join(finished.output.splitlines()) == expected


PLAIN = """
import threading, time, torch
from rocm_agent import claim, layout

weights = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(weights.parameters(), lr=0.1)
for number in range(30):
    weights(torch.ones(2, 4)).sum().backward()
    optimizer.step()
recorder = claim.holding()
print(layout.STAGES[recorder.stage], [thread.name for thread in threading.enumerate()][1:])
while recorder.stage == layout.STEP:
    time.sleep(0.1)
print(layout.STAGES[recorder.stage])
optimizer.step()
print(layout.STAGES[recorder.stage])
"""


def test_a_plain_training_that_works_on_after_its_last_step_is_late_for_none(
    attempt: Attempt, quickest_python: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    finished = attempt.run([quickest_python, script])
    assert finished.output.splitlines() == ["step ['rocm-agent-loop']", "validate", "step"]
