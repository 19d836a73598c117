"""`supervisorctl bench loader|batch JOB`: how fast a job's own loader is, and what another micro-batch would gain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from supervisor import __version__
from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.bench.report import bar
from supervisor.cli.errors import CliError
from supervisor.cli.estimate import Probes, explain_failure, refuse_while_training
from supervisor.cli.formatting import size
from supervisor.cli.name_completion import complete_job
from supervisor.cli.table import Cell, Pen
from supervisor.cli.unneeded_root import refuse_root

DRAWS = 16
TIMED_STEPS = 10
KNEE = 1.03
"""A larger micro-batch whose rate is not higher by this factor gains nothing."""
STARVED = 0.1
BATCHES_LIMIT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Of one micro-batch."""

    batch: int
    step_ms: float
    wait_ms: float
    peak_bytes: int | None

    @property
    def samples_per_s(self) -> float:
        """Return the rate."""
        return self.batch / self.step_ms * 1e3


def find_knee(rates: Sequence[Rate]) -> Rate:
    """Return the smallest micro-batch within 3 % of the best rate."""
    best = max(rate.samples_per_s for rate in rates)
    return next(rate for rate in sorted(rates, key=lambda rate: rate.batch) if rate.samples_per_s * KNEE >= best)


def decide_batch(rates: Sequence[Rate], configured: int) -> str:
    """Return what the rates decide, in a sentence."""
    knee = find_knee(rates)
    now = next((rate for rate in rates if rate.batch == configured), None)
    if now is None:
        return f"micro-batch: {knee.batch} is the smallest within 3 % of the best; {configured} did not run"
    gain = knee.samples_per_s / now.samples_per_s
    if gain < KNEE:
        return f"micro-batch: {configured} is as fast as any; {knee.batch} is the smallest within 3 % of the best"
    return f"micro-batch: {knee.batch} would train {gain:.2f}x as many samples a second as {configured}"


def decide_loader(draw_ms: float, step_ms: float, wait_ms: float, workers: int | None) -> str:
    """Return what the loader's times decide, in a sentence."""
    share = wait_ms / step_ms if step_ms else 0.0
    with_workers = "" if workers is None else f" with {workers} workers"
    if share >= STARVED:
        return f"loader: it starves the training{with_workers}: {share:.0%} of a step is waiting for it"
    return f"loader: fast enough{with_workers}: {share:.0%} of a step is waiting, a batch takes {draw_ms:.1f} ms"


_report = click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Also write a file to send.")
_limit = click.option("--limit-s", type=click.FloatRange(1), default=600.0, show_default=True, help="Of each run.")
_training = click.option("--while-training", is_flag=True, help="Run even while the job trains.")


@click.command("loader", short_help="A job's own loader: whether it starves the training.")
@click.argument("job", shell_complete=complete_job)
@_report
@_limit
@_training
@json_option
@pass_app
def loader_command(app: App, /, job: str, *, report: Path | None, limit_s: float, while_training: bool) -> None:
    """Time the loader of JOB: batches drawn alone, then waited for by the training's first steps; nothing is kept."""
    probes = _make_probes(app, f"bench loader {job}", job, limit_s, while_training=while_training)
    drawn = probes.run(draws=DRAWS)
    stepped = probes.run(timed=True, steps=TIMED_STEPS)
    if "draw_ms" not in drawn.timing or "step_ms" not in stepped.timing:
        raise explain_failure(drawn if "draw_ms" not in drawn.timing else stepped)
    draw_ms, step_ms, wait_ms = drawn.timing["draw_ms"], stepped.timing["step_ms"], stepped.timing["wait_ms"]
    workers = int(drawn.timing["workers"]) if "workers" in drawn.timing else None
    numbers = {"draw_ms": draw_ms, "step_ms": step_ms, "wait_ms": wait_ms, "workers": workers, "batch": drawn.batch}
    decides = decide_loader(draw_ms, step_ms, wait_ms, workers)
    rows = [
        [Cell(name), Cell(f"{value:.1f} ms", right=True), Cell(bar(value, max(draw_ms, step_ms)))]
        for name, value in (("a batch alone", draw_ms), ("a step", step_ms), ("of it waiting", wait_ms))
    ]
    _print_answer(
        app, report, {"bench": "loader", **numbers, "decides": decides}, [app.pen.table(["", "time", ""], rows)]
    )


@click.command("batch", short_help="A job at other micro-batches: which one is the smallest that is fast.")
@click.argument("job", shell_complete=complete_job)
@_report
@_limit
@_training
@json_option
@pass_app
def batch_command(app: App, /, job: str, *, report: Path | None, limit_s: float, while_training: bool) -> None:
    """Time the first steps of JOB at micro-batches from an eighth to four times its own; nothing of it is kept."""
    probes = _make_probes(app, f"bench batch {job}", job, limit_s, while_training=while_training)
    seen = probes.run(look=True)
    if seen.configured is None or seen.configured != seen.batch:
        problem = "the script draws from no DataLoader whose micro-batch can be changed"
        raise CliError(
            problem if seen.batch is None else "its loader makes its own batches, whose size cannot be changed",
            "",
            "not_known",
        )
    rates = _measure_rates(probes, seen.configured)
    if not rates:
        raise CliError("no micro-batch completed its steps", f"supervisorctl estimate {job}", "not_known")
    decides = decide_batch(rates, seen.configured)
    numbers = [asdict(rate) | {"samples_per_s": rate.samples_per_s} for rate in rates]
    answer = {"bench": "batch", "configured": seen.configured, "rates": numbers, "decides": decides}
    _print_answer(app, report, answer, [_format_table(rates, app.pen)])


def _measure_rates(probes: Probes, configured: int) -> list[Rate]:
    """Return the rates of micro-batches by a factor of two; the first that runs out of memory is the last."""
    rates: list[Rate] = []
    wanted = sorted({max(1, configured >> shift) for shift in (3, 2, 1, 0)} | {configured * 2, configured * 4})
    for batch in wanted[-BATCHES_LIMIT:]:
        result = probes.run(batch, configured, timed=True, steps=TIMED_STEPS)
        if result.out_of_memory:
            break
        if result.point is None or result.point.batch != batch or "step_ms" not in result.timing:
            continue
        peak = result.point.peak_bytes if result.on_gpu else None
        times = result.timing
        rates.append(Rate(batch=batch, step_ms=times["step_ms"], wait_ms=times["wait_ms"], peak_bytes=peak))
    return rates


def _make_probes(app: App, command: str, job: str, limit_s: float, *, while_training: bool) -> Probes:
    refuse_root(app, command)
    refuse_while_training(app, job, allowed=while_training)
    return Probes(app, job, limit_s)


def _format_table(rates: Sequence[Rate], pen: Pen) -> str:
    highest = max(rate.samples_per_s for rate in rates)
    rows = [
        [
            Cell(str(rate.batch), right=True),
            Cell(f"{rate.step_ms:.1f}", right=True),
            Cell(f"{rate.samples_per_s:,.1f}", right=True),
            Cell(bar(rate.samples_per_s, highest)),
            Cell(size(rate.peak_bytes), right=True),
        ]
        for rate in rates
    ]
    return pen.table(["micro-batch", "ms", "samples/s", "", "peak"], rows)


def _print_answer(app: App, path: Path | None, answer: dict[str, Any], text: list[str]) -> None:
    document = {"schema": 1, "version": __version__, **answer}
    if path is not None:
        try:
            path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise CliError(f"{path}: {error.strerror}", "give a writable file") from error
    if app.json:
        app.print_json(document)
    else:
        app.print("\n".join([*text, str(answer["decides"])]))
