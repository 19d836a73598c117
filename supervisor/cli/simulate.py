"""`supervisorctl simulate`: how much of its time a training on many nodes would lose to faults, and to which."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.errors import WrongUsageError
from supervisor.cli.formatting import span
from supervisor.cli.table import Cell

if TYPE_CHECKING:
    from supervisor.simulation.outcome import Outcome
    from supervisor.simulation.scenario import Scenario

HELP = "supervisorctl simulate --help"
SECONDS = ("save_every_s", "save_s", "evidence_s", "restart_s", "spare_s", "requeue_s", "repair_s", "person_s")


@click.command("simulate")
@click.option("--nodes", type=click.IntRange(1, 16_384), required=True, help="Nodes of the training.")
@click.option(
    "--faults-per-node-day",
    type=click.FloatRange(0),
    default=0.0038,
    show_default=True,
    help="Faults of a node in a day (Llama 3's training: 0.0038; RSC-1 of Meta: 0.0065).",
)
@click.option(
    "--program-faults-per-day", type=click.FloatRange(0), default=0.0, help="Faults of the training's own code."
)
@click.option("--spares", type=click.IntRange(0), help="Spare nodes in the allocation (default: 1 for each 64 nodes).")
@click.option(
    "--days", type=click.FloatRange(0.01, 3660), default=54.0, show_default=True, help="Length of the training."
)
@click.option(
    "--save-every", "save_every_s", type=click.FloatRange(0.1), default=60.0, show_default=True, help="Seconds."
)
@click.option("--save", "save_s", type=click.FloatRange(0), default=0.0, help="Seconds that a save holds the training.")
@click.option(
    "--restart",
    "restart_s",
    type=click.FloatRange(0),
    default=120.0,
    show_default=True,
    help="Seconds to the first step.",
)
@click.option(
    "--lemons", "lemon_share", type=click.FloatRange(0, 1), default=0.0, help="Share of nodes that fail 20x as often."
)
@click.option(
    "--life-shape", type=click.FloatRange(0.1, 10), default=1.0, help="Weibull shape of a node's life (1: exponential)."
)
@click.option(
    "--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Trainings that are simulated."
)
@json_option
@pass_app
def command(app: App, /, nodes: int, spares: int | None, seeds: int, **assumed: float) -> None:
    """Simulate a training on many nodes, its faults, and its restarts, with the policy of this program.

    Who is at fault and how all ranks start again is decided by the functions that decide it for a real training. The
    shares of the kinds of faults are those of Llama 3's training (arXiv 2407.21783). All assumptions are printed.
    """
    from supervisor.simulation.run import simulate  # noqa: PLC0415 - imported on use: keeps --help fast
    from supervisor.simulation.scenario import Scenario, ScenarioError  # noqa: PLC0415 - the same

    try:
        scenario = Scenario(nodes=nodes, spares=max(1, nodes // 64) if spares is None else spares, **assumed)
    except ScenarioError as error:
        raise WrongUsageError(str(error), HELP) from error
    outcomes = [simulate(scenario, seed) for seed in range(seeds)]
    if app.json:
        app.print_json(as_json(scenario, outcomes))
    else:
        app.print("\n".join(lines(app, scenario, outcomes)))


def as_json(scenario: Scenario, outcomes: list[Outcome]) -> dict[str, Any]:
    """Return the assumptions, and what came of them: means over the seeds, with the range of the whole."""
    shares = sorted(outcome.unproductive_share for outcome in outcomes)
    faults = sum((outcome.faults for outcome in outcomes), Counter[str]())
    count = faults.total()
    return {
        "schema": 1,
        "assumptions": asdict(scenario),
        "seeds": len(outcomes),
        "unproductive_share": {"mean": sum(shares) / len(shares), "low": shares[0], "high": shares[-1]},
        "by_part": _mean_shares(outcomes, [outcome.spent_s for outcome in outcomes]),
        "by_kind": _mean_shares(outcomes, [outcome.cost_s for outcome in outcomes]),
        "faults": {kind: number / len(outcomes) for kind, number in sorted(faults.items())},
        "running_s_per_fault": sum(outcome.total_s for outcome in outcomes) / count if count else None,
        "restarts": _mean_restarts(outcomes),
        "nodes_excluded": sum(outcome.excluded for outcome in outcomes) / len(outcomes),
        "healthy_nodes_excluded": sum(outcome.wrongly_excluded for outcome in outcomes) / len(outcomes),
    }


def _mean_shares(outcomes: list[Outcome], spent: list[dict[str, float]]) -> dict[str, float]:
    """Return for each name the share of the time that it took, as a mean over the outcomes."""
    names = sorted({name for seconds in spent for name in seconds})
    pairs = list(zip(outcomes, spent, strict=True))
    return {name: sum(took.get(name, 0.0) / whole.total_s for whole, took in pairs) / len(pairs) for name in names}


def _mean_restarts(outcomes: list[Outcome]) -> dict[str, float]:
    rungs = sorted({rung.value for outcome in outcomes for rung in outcome.rungs})
    return {
        name: sum(count for outcome in outcomes for rung, count in outcome.rungs.items() if rung.value == name)
        / len(outcomes)
        for name in rungs
    }


def lines(app: App, scenario: Scenario, outcomes: list[Outcome]) -> list[str]:
    """Return the result as lines of text."""
    answer = as_json(scenario, outcomes)
    share, between = answer["unproductive_share"], answer["running_s_per_fault"]
    parts = [[Cell(name.replace("_", " ")), _percent(value)] for name, value in _dearest_first(answer["by_part"])]
    kinds = [
        [Cell(name.replace("_", " ")), Cell(f"{answer['faults'].get(name, 0.0):.1f}", right=True), _percent(value)]
        for name, value in _dearest_first(answer["by_kind"])
    ]
    assumed = answer["assumptions"]
    return [
        f"unproductive: {100 * share['mean']:.2f} % of the time ({100 * share['low']:.2f} to {100 * share['high']:.2f} "
        f"in {answer['seeds']} trainings)",
        f"a fault every {span(between)}" if between else "no fault came",
        "",
        app.pen.table(("SPENT ON", "SHARE"), parts),
        "",
        app.pen.table(("FAULT", "TIMES", "COST"), kinds),
        "",
        "restarts: "
        + ", ".join(f"{number:.1f} {name.replace('_', ' ')}" for name, number in answer["restarts"].items()),
        f"nodes excluded: {answer['nodes_excluded']:.1f}, of them healthy {answer['healthy_nodes_excluded']:.1f}",
        "",
        app.pen.table(("ASSUMED", "VALUE"), [_assumption_row(name, value) for name, value in assumed.items()]),
    ]


def _dearest_first(shares: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(((name, share) for name, share in shares.items() if share > 0), key=lambda pair: -pair[1])


def _percent(share: float) -> Cell:
    return Cell(f"{100 * share:.3f} %", right=True)


def _assumption_row(name: str, value: float) -> list[Cell]:
    words, shown = (name.removesuffix("_s"), span(value)) if name in SECONDS else (name, f"{value:g}")
    return [Cell(words.replace("_", " ")), Cell(shown, right=True)]
