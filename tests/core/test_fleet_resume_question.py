"""What all nodes resume from is asked until it is proven: never in a loop, and never without an end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.leading import Leading
from supervisor.core.fleet.messages import ResumeOffers
from supervisor.core.fleet.resume import NoneProven, Offer, choose_resume
from supervisor.core.fleet.resume_question import ResumeQuestion
from supervisor.core.fleet.training import Stage

from .test_every_leading import OneByOne
from .test_fleet_leading import BEGAN_S, LIMITS, Nodes, generation

AT_ONE_TIME = [Offer(name=f"/data/{name}", digest=name, saved_unix_s=9.0, proven=True) for name in ("best", "last")]
"""Saved in the same second, on a file system that keeps no parts of it."""


def asked(nodes: Nodes) -> int:
    return nodes.order.count("FindResume")


@pytest.mark.parametrize("reverse", [False, True])
def test_of_states_that_are_equally_new_all_nodes_prove_the_same_first(reverse: bool) -> None:
    """However their file systems list them."""
    nodes = OneByOne(Leading(Epoch("run", 0, 0), LIMITS, BEGAN_S))
    for name, listed in (("n0", AT_ONE_TIME), ("n1", AT_ONE_TIME[::-1] if reverse else AT_ONE_TIME)):
        nodes.saved[name] = tuple(sorted(listed, key=lambda offer: offer.order, reverse=True))
    nodes.join("n0", "n1")
    nodes.wait(0.2)
    assert nodes.leading.stage is Stage.RUNNING
    assert {order.resume_from for order in nodes.launches} == {"/data/last"}
    assert asked(nodes) == 2


def test_what_is_not_proven_yet_is_asked_for_again_after_a_pause_and_not_for_ever() -> None:
    nodes = Nodes(Leading(Epoch("run", 0, 0), replace(LIMITS, choose_s=60.0, ask_again_s=5.0), BEGAN_S))
    nodes.saved = {"n0": (generation(10),), "n1": (replace(generation(10), proven=None),)}
    nodes.join("n0", "n1")
    nodes.wait(14.0)
    assert nodes.leading.stage is Stage.CHOOSING
    assert 2 * 2 <= asked(nodes) <= 4 * 2
    nodes.wait(50.0)
    assert [over.reason for over in nodes.overs] == [
        "what to resume from is not known: n0: the newest state is not proven yet"
    ]


def test_a_node_that_can_look_again_has_no_problem_any_more() -> None:
    question = ResumeQuestion(LIMITS, BEGAN_S)
    question.take("n0", ResumeOffers(number=1, problem="/data does not answer"))
    question.take("n1", ResumeOffers(number=1))
    assert question.find_problem(["n0", "n1"]) == "n0: /data does not answer"
    question.take("n0", ResumeOffers(number=2))
    assert question.find_problem(["n0", "n1"]) is None


def test_a_proof_that_comes_later_is_taken() -> None:
    nodes = Nodes(Leading(Epoch("run", 0, 0), LIMITS, BEGAN_S))
    nodes.saved = {"n0": (generation(10),), "n1": (replace(generation(10), proven=None),)}
    nodes.join("n0", "n1")
    nodes.wait(1.0)
    nodes.saved["n1"] = (generation(10),)
    nodes.wait(6.0)
    assert {order.resume_from for order in nodes.launches} == {"step-000000000010"}


def test_a_node_that_cannot_look_is_named_until_it_can() -> None:
    nodes = Nodes(Leading(Epoch("run", 0, 0), LIMITS, BEGAN_S))
    nodes.blind = {"n1": "/shared: has not answered for 30 s"}
    nodes.join("n0", "n1")
    for _ in range(120):
        nodes.wait(0.1)
        assert nodes.leading.resume_problem == "n1: /shared: has not answered for 30 s", "also while it is asked again"
    nodes.blind.clear()
    nodes.wait(6.0)
    assert nodes.leading.stage is Stage.RUNNING
    assert nodes.leading.resume_problem is None


def own_format(node: str, digest: str = "a") -> Offer:
    """Return a file of a program's own format as a node sees it: that of share 0 looks into it, the others do not."""
    found = Offer(name="/data/model.own", digest=digest, saved_unix_s=9.0, proven=True)
    return replace(found, proven=False, reason="of another format", loads_itself=True) if node == "n0" else found


def test_a_program_that_loads_its_own_format_is_launched_to_go_on_by_itself() -> None:
    nodes = OneByOne(Leading(Epoch("run", 0, 0), LIMITS, BEGAN_S))
    for name in ("n0", "n1"):
        nodes.saved[name] = (own_format(name),)
    nodes.join("n0", "n1")
    nodes.wait(0.2)
    assert [(order.resume_from, order.loads_itself) for order in nodes.launches] == [(None, True)] * 2


def test_a_program_is_left_to_itself_only_where_every_node_sees_the_same() -> None:
    for other in ((own_format("n1", "b"),), ()):
        found = choose_resume({"n0": (own_format("n0"),), "n1": other}, rejected=frozenset())
        assert isinstance(found, NoneProven)


def test_a_state_that_is_to_be_left_out_is_refused_though_every_node_proves_it() -> None:
    proven = generation(10)
    found = choose_resume({"n0": (proven,), "n1": (proven,)}, rejected=frozenset({proven.name}))
    assert found == NoneProven(reason="none of 1 saved states is proven on every node (step-000000000010: rejected)")
