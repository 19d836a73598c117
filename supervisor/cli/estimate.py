"""`supervisorctl estimate JOB`: the memory that a training needs, before it is started."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.bench.report import BAR_CELLS, bar
from supervisor.cli.errors import CliError, RefusedError
from supervisor.cli.formatting import size
from supervisor.cli.lifecycle.request import is_training
from supervisor.cli.name_completion import complete_job
from supervisor.cli.table import Cell, Pen
from supervisor.cli.unneeded_root import refuse_root
from supervisor.core.attempt_files import ENV_CONV2D
from supervisor.core.memory.estimate import (
    PROOF_STEPS,
    Estimate,
    estimate,
    find_proof_room,
    fit_line,
    largest_micro_batch,
    prove_largest,
)
from supervisor.core.memory.kept import digest_command
from supervisor.core.memory.points import Point
from supervisor.core.memory.probing import collect_points
from supervisor.core.remedies.miopen import CONV2D_SETTINGS, conv2d_algorithm
from supervisor.core.sanitize import one_line

if TYPE_CHECKING:
    from supervisor.runner.loaded_probe import LoadedProbe

UNITS = {"": 1 << 30, "GIB": 1 << 30, "GB": 10**9, "MIB": 1 << 20, "MB": 10**6}
SMALL, LESS_SMALL = 2, 4
"""Micro-batches that are probed without a GPU; batch normalization refuses 1."""
OUTPUT_LINES = 6
JSON_FIELDS = ("bytes", "low", "high", "card_bytes", "fits", "largest_micro_batch", "limited_by")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options."""

    batch: int | None
    precision: str | None
    checkpointing: bool | None
    without_gpu: bool
    card_bytes: int | None
    quick: bool

    @property
    def is_of_job(self) -> bool:
        """Whether it is of the job as it is configured, on this machine's GPU."""
        changed = self.precision is not None or self.checkpointing is not None
        return not changed and not self.without_gpu and self.card_bytes is None


@click.command("estimate")
@click.argument("job", shell_complete=complete_job)
@click.option("--batch", type=click.IntRange(1, 1 << 20), help="Estimate for this micro-batch.")
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]), help="Estimate for this precision.")
@click.option(
    "--checkpointing", type=click.Choice(["on", "off"]), help="Estimate with or without activation checkpointing."
)
@click.option("--without-gpu", is_flag=True, help="Count tensors on the CPU; the GPU is not touched.")
@click.option("--card", help="GPU memory to fit into, as 16GiB (default: that of this machine's GPU).")
@click.option(
    "--quick",
    is_flag=True,
    help="Probe two micro-batches at most; the largest that fits is reckoned alone, and less certain.",
)
@click.option("--limit-s", type=click.FloatRange(1), default=600.0, show_default=True, help="Time limit of each probe.")
@click.option("--while-training", is_flag=True, help="Probe on the GPU even while the job trains.")
@json_option
@pass_app
def command(  # noqa: PLR0913 - one an option
    app: App,
    /,
    job: str,
    *,
    checkpointing: str | None,
    card: str | None,
    limit_s: float,
    while_training: bool,
    **given: Any,
) -> None:
    """Estimate the GPU memory of JOB from the first two steps of its own command, at two or three micro-batches.

    On a GPU the largest micro-batch is one that was seen to run, in one further probe or a few.

    What the command writes meanwhile is discarded. Without a GPU its tensors are counted on the CPU as a GPU would
    make them, at micro-batches of 2 and 4 samples. Run it as the training's user.

    One made on the GPU, of the job as configured, is kept: remedies against a full GPU use it.
    """
    asked = Asked(
        checkpointing=None if checkpointing is None else checkpointing == "on",
        card_bytes=None if card is None else parse_bytes(card),
        **given,
    )
    refuse_root(app, f"estimate {job}")
    if not asked.without_gpu:
        refuse_while_training(app, job, allowed=while_training)
    points, configured, proven, notes = _probe_points(app, job, asked, limit_s)
    batch = asked.batch or configured
    try:
        found = estimate(points, batch, asked.card_bytes)
        found = found if proven is None else replace(found, largest_micro_batch=proven)
        ran = proven is not None
    except ValueError as error:
        remedy = "omit --batch" if asked.batch is not None else "run the command by hand"
        failed = [note for note in notes if NOT_PROBED in note]
        raise CliError("; ".join([str(error), *failed]), remedy, "not_known") from error
    if asked.is_of_job and (kept := keep_estimate(app, job, read_argv(app, job), found, points, ran=ran)) is not None:
        notes.append(kept)
    if app.json:
        app.print_json(as_json(job, found, points, notes, ran=ran))
    else:
        app.print("\n".join(report_lines(one_line(job), found, points, notes, app.pen, ran=ran)))


def parse_bytes(text: str) -> int:
    """Return a size as `16GiB` in bytes, GiB where no unit is given; raise CliError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    unit = None if found is None else UNITS.get(found[2].upper())
    if found is None or unit is None or not 0 < float(found[1]) * unit < 2**60:
        raise CliError(f"--card {text!r} is not a size", "give a size such as 16GiB or 24GB", "usage")
    return round(float(found[1]) * unit)


def refuse_while_training(app: App, job: str, *, allowed: bool) -> None:
    """Raise RefusedError while a training of the job may use the GPU, unless that is allowed."""
    if not allowed and is_training(app, job):
        remedy = f"supervisorctl stop {job} first, or add --without-gpu or --while-training"
        raise RefusedError(
            f"{one_line(job)} trains, or will be started again: both would share the GPU's memory", remedy, "refused"
        )


# --- the probes ---------------------------------------------------------------------------------------------------


class Probes:
    """Runs the job's command with one micro-batch after the other; entered, from a process that has loaded it once."""

    def __init__(self, app: App, job: str, limit_s: float, asked: Asked | None = None) -> None:
        from supervisor.runner.memory_probe import WhatIf  # noqa: PLC0415  # other commands do not need it

        self._stack = contextlib.ExitStack()
        self._loaded: LoadedProbe | None = None

        self._command = _read_command(app, job, limit_s)
        self._what_if = WhatIf()
        if asked is not None:
            self._what_if = WhatIf(
                precision=asked.precision, checkpointing=asked.checkpointing, without_gpu=asked.without_gpu
            )
        self.notes: list[str] = []

    def __enter__(self) -> Probes:
        """Keep the command loaded from its first probe on; raise OSError where no folder can be made."""
        from supervisor.runner.code_copy import temporary_copy  # noqa: PLC0415  # as above
        from supervisor.runner.loaded_probe import LoadedProbe  # noqa: PLC0415  # as above

        code = self._stack.enter_context(temporary_copy())
        self._loaded = self._stack.enter_context(LoadedProbe(self._command, code))
        return self

    def __exit__(self, *_: object) -> None:
        """End the command and all that it has started."""
        self._stack.close()

    @property
    def why_alone(self) -> str:
        """Why each micro-batch had a process of its own; empty: it had not, or a process for each was asked for."""
        return "" if self._loaded is None else self._loaded.why_alone

    def run(
        self, batch: int | None = None, configured: int | None = None, *, proof: bool = False, **changed: Any
    ) -> Any:
        """Return the result at a micro-batch, None: as configured; `changed` are other fields of WhatIf.

        With `proof` running out of memory is a result after other steps too. Raises OSError where no folder can be
        made.
        """
        from supervisor.runner.code_copy import temporary_copy  # noqa: PLC0415  # as above
        from supervisor.runner.memory_probe import probe  # noqa: PLC0415  # as above

        what = "the first batch" if changed.get("look") else "as configured" if batch is None else f"{batch} samples"
        click.echo(f"probing {what}", err=True)
        what_if = replace(self._what_if, batch=batch, configured=configured, **changed)
        if self._loaded is not None:
            result = self._loaded.probe(what_if, proof=proof)
        else:
            with temporary_copy() as code:
                result = probe(self._command, what_if, code)
        if not result.discarded and GUARDED not in self.notes:
            self.notes.append(GUARDED)
        if result.why_computed and result.point is not None and COMPUTED not in self.notes:
            self.notes.append(COMPUTED)
        return result

    def rehearse(self, batch: int, configured: int, **changed: Any) -> bool | None:
        """Return whether a micro-batch probably runs, None where it takes a proof to know."""
        if self._loaded is None:
            return None
        return self._loaded.rehearse(replace(self._what_if, batch=batch, configured=configured, **changed))

    def measure(self, batch: int | None = None, configured: int | None = None) -> Point:
        """Return the point at a micro-batch; raise CliError where there is none."""
        result = self.run(batch, configured)
        if result.point is None:
            raise explain_failure(result)
        point: Point = result.point
        return point

    def vary(self, configured: int, batches: Iterable[int], *, skips_cudnn: bool = False) -> list[Point]:
        """Return points at further micro-batches; one that fails, or that the loader does not follow, gives none."""
        found: list[Point] = []
        for batch in batches:
            result = self.run(batch, configured, skips_cudnn=skips_cudnn)
            if result.point is not None and result.point.batch == batch:
                found.append(result.point)
            else:
                why = result.problem or "the loader draws another number"
                self.notes.append(f"{batch} samples {NOT_PROBED}: {why}")
        return found


def explain_failure(result: Any) -> CliError:
    """Return the error for a command that made no second step, with its last lines."""
    for line in [line for line in result.output.splitlines() if line.strip()][-OUTPUT_LINES:]:
        click.echo(f"  | {one_line(line)}", err=True)
    return CliError(one_line(result.problem), "run the command by hand; its last lines are above", "not_known")


NOT_PROBED = "could not be probed"
COMPUTED = "the steps were computed, which takes long on a CPU: the script decides by values that shapes do not give"
GUARDED = "the system allows no layer over the files: existing files were guarded, new ones may have stayed"


def read_argv(app: App, job: str) -> Sequence[str]:
    """Return the command of a job by the configuration file, empty for one that it lacks."""
    from supervisor.cli.configured import settings as read_settings  # noqa: PLC0415  # costs its memory

    settings = read_settings(app).jobs.get(job)
    return () if settings is None else settings.command


def _read_command(app: App, job: str, limit_s: float) -> Any:
    from supervisor.cli.configured import settings as read_settings  # noqa: PLC0415  # costs its memory
    from supervisor.config.derive import agent_environment  # noqa: PLC0415  # as above
    from supervisor.runner.memory_probe import Command  # noqa: PLC0415  # as above

    known = read_settings(app)
    settings = known.jobs.get(job)
    if settings is None:
        raise CliError(f"no job {one_line(job)!r} in {app.config}", "give one of its jobs", "no_job")
    conv2d: str = settings.conv2d
    if conv2d == "auto":
        conv2d = find_conv2d(Path(known.supervisor.state_dir) / "jobs" / job, Path("/sys"))
    return Command(
        argv=settings.command,
        cwd=settings.cwd or str(Path.cwd()),
        env=settings.env,
        conv2d=conv2d,
        agent_settings=agent_environment(settings),
        limit_s=limit_s,
    )


def find_conv2d(job_folder: Path, sysfs: Path) -> str:
    """Return what `conv2d = "auto"` comes to: as the last attempt was launched, or by the GPUs before a first one."""
    from supervisor.runner.stacks import launch_env  # noqa: PLC0415  # as above
    from supervisor.sources.gpu.amdgpu_cards import discover  # noqa: PLC0415  # as above
    from supervisor.untrusted_files import list_names  # noqa: PLC0415  # as above

    try:
        newest = max(int(name) for name in list_names(job_folder).names if name.isdecimal())
        launched = launch_env(job_folder / str(newest)).get(ENV_CONV2D)
    except (OSError, ValueError):  # no attempt yet, or this user may not look
        launched = None
    if launched in CONV2D_SETTINGS:
        return launched
    targets = tuple(card.gfx_version for card in discover(sysfs) if card.gfx_version is not None)
    return conv2d_algorithm("auto", targets, miopen_failed=False)


def _probe_points(
    app: App, job: str, asked: Asked, limit_s: float
) -> tuple[list[Point], int | None, int | None, list[str]]:
    """Return the points, the micro-batch that is configured, the largest that ran, and what to know about them."""
    proven = None
    try:
        with Probes(app, job, limit_s, asked) as probes:
            seen = probes.run(look=True)
            if not seen.on_gpu and not asked.without_gpu:
                probes.notes.append("torch sees no GPU here: tensors were counted on the CPU")
            follows = seen.configured is not None and seen.configured == seen.batch
            if not follows:
                points = [probes.measure()]
            else:
                points = (_probe_on_gpu if seen.on_gpu else _probe_small)(probes, asked, seen.configured)
                if seen.on_gpu and not asked.quick:
                    proven = _prove_largest(probes, asked, seen.configured, points)
            if follows and probes.why_alone:
                probes.notes.append(f"each micro-batch was probed by a process of its own: {probes.why_alone}")
    except OSError as error:
        raise CliError(f"cannot be probed: {error}", "give the calling user a writable TMPDIR") from error
    configured = seen.configured if follows else points[0].batch
    return points, configured, proven, [*probes.notes, *_list_doubts(points, asked, follows=follows)]


def _probe_on_gpu(probes: Probes, asked: Asked, configured: int) -> list[Point]:
    """Return points at the micro-batch in question, and at one that takes most of the GPU or at half of the former."""

    def measure(batch: int) -> Point | None:
        return next(iter(probes.vary(configured, [batch], skips_cudnn=not asked.quick)), None)

    points = collect_points(measure, asked.batch or configured, asked.card_bytes, quick=asked.quick)
    return points if points else [probes.measure()]


def _prove_largest(probes: Probes, asked: Asked, configured: int, points: list[Point]) -> int | None:
    """Return the largest micro-batch that was seen to run in the GPU's memory, None where none can be reckoned."""
    ordered = sorted(points, key=_batch_of)
    card = asked.card_bytes or ordered[-1].card_bytes
    largest = None if card is None else largest_micro_batch(ordered, fit_line(ordered), card)
    if not largest or card is None:
        return None
    room = find_proof_room(ordered, card, is_own_card=asked.card_bytes is None)
    how = {
        "steps": PROOF_STEPS,
        "room_bytes": room,
        "without_cudnn": any(point.without_cudnn for point in points),
        "without_cudnn_attention": any(point.without_cudnn_attention for point in points),
    }

    def runs(batch: int) -> bool:
        result = probes.run(batch, configured, proof=True, **how)
        return result.point is not None and bool(result.point.batch == batch)

    def rehearse(batch: int) -> bool | None:
        return probes.rehearse(batch, configured, **how)

    known = [point.batch for point in points if point.batch is not None]
    return prove_largest(largest, known, runs, rehearse)


def _probe_small(probes: Probes, asked: Asked, configured: int) -> list[Point]:
    """Return points at two small micro-batches: without a GPU a large one takes long.

    A net so small that both take the same is probed at the micro-batch in question as well; and one whose batches
    differ in shape, through whose small ones, of few lengths each, a line would be of chance.
    """
    points = probes.vary(configured, [SMALL, LESS_SMALL])
    wanted = asked.batch or configured
    is_line_doubted = fit_line(points) is None or any(point.shapes > 1 for point in points)
    if points and is_line_doubted and wanted not in {SMALL, LESS_SMALL}:
        points += probes.vary(configured, [wanted])
    return points if points else [probes.measure()]


def _batch_of(point: Point) -> int:
    return point.batch or 0


def _list_doubts(points: list[Point], asked: Asked, *, follows: bool) -> list[str]:
    """Return what cannot be known of this training."""
    doubts = []
    last = points[0]
    if last.batch is None:
        doubts.append("the script draws from no DataLoader: other micro-batches cannot be reckoned")
    elif not follows:
        doubts.append("the loader makes its batches by itself: other micro-batches cannot be reckoned")
    if any(point.shapes > 1 for point in points):
        doubts.append("the batches differ in shape: this holds for those of the first two steps, longer ones take more")
    if last.ranks > 1:
        doubts.append(f"of {last.ranks} ranks this is what the first takes: each takes about as much of its own GPU")
    if last.compiled and last.device == "cpu":
        doubts.append("torch.compile: without a GPU tensors were counted as if nothing were compiled")
    elif last.compiled:
        doubts.append("torch.compile: what is compiled for another micro-batch can differ from the line")
    if any(point.without_cudnn for point in points):
        doubts.append("cuDNN prepares depthwise convolutions of each micro-batch for seconds: they were run without it")
    if any(point.without_cudnn_attention for point in points):
        doubts.append("cuDNN compiles kernels for attention: another kernel, of the same memory, ran in its place")
    if asked.checkpointing and last.checkpointed == "":
        doubts.append("no row of blocks was found that could be checkpointed")
    return doubts


# --- for remedies --------------------------------------------------------------------------------------------------


KEPT = "kept: where its GPU is full, remedies shrink the batch to what fits at once"


def keep_estimate(  # noqa: PLR0913 - what an estimate is about
    app: App, job: str, command: Sequence[str], found: Estimate, points: Sequence[Point], *, ran: bool
) -> str | None:
    """Return a note on whether the daemon keeps it, None where it says nothing of the job's own GPU."""
    point = next((point for point in points if point.device == "cuda" and point.torch), None)
    if point is None or not point.configured or not point.card_bytes or found.largest_micro_batch is None:
        return None
    try:
        app.post(
            f"/v1/jobs/{job}/estimate",
            command_sha256=digest_command(command),
            torch=point.torch,
            card_bytes=point.card_bytes,
            configured=point.configured,
            largest=found.largest_micro_batch,
            ran=ran,
        )
    except CliError as error:
        return f"not kept for remedies: {one_line(str(error))}"
    return KEPT


# --- the answer ---------------------------------------------------------------------------------------------------


def as_json(job: str, found: Estimate, points: list[Point], notes: list[str], *, ran: bool) -> dict[str, Any]:
    """Return the answer of `--json`; `ran`: whether the largest micro-batch was run, not reckoned alone."""
    parts = {name: getattr(found.parts, name) for name in PARTS}
    return {
        "schema": 1,
        "job": job,
        **{name: getattr(found, name) for name in JSON_FIELDS},
        "largest_micro_batch_ran": ran if found.largest_micro_batch is not None else None,
        "micro_batch": found.batch,
        "how": found.how,
        "parts": parts,
        "points": [{"micro_batch": point.batch, "bytes": point.peak_bytes} for point in points],
        "notes": notes,
    }


PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations, temporary tensors",
    "slack": "allocator's slack, workspace",
    "other": "context, other programs",
}


def report_lines(  # noqa: PLR0913 - what an answer says
    job: str, found: Estimate, points: list[Point], notes: list[str], pen: Pen, *, ran: bool
) -> list[str]:
    """Return the answer as lines for people; `ran` as for `as_json`."""
    highest = max(getattr(found.parts, name) for name in PARTS)
    rows = []
    for name, words in PARTS.items():
        part = getattr(found.parts, name)
        rows.append([Cell(words), Cell(size(part), right=True), Cell(bar(float(part), float(highest)) or "")])
    text = [_write_headline(job, found, ran=ran), "", pen.table(("PART", "BYTES", "".ljust(BAR_CELLS)), rows), ""]
    probed = ", ".join(f"{point.batch or '?'}: {size(point.peak_bytes)}" for point in points)
    text.append(f"{found.how}; tensors at their peak by micro-batch: {probed}")
    return text + [f"note: {one_line(note)}" for note in notes]


def _write_headline(job: str, found: Estimate, *, ran: bool) -> str:
    verdict = {True: "fits", False: "does not fit", None: "may fit" if found.card_bytes else "needs"}[found.fits]
    of = f" of {size(found.card_bytes)}" if found.card_bytes else ""
    batch = f" at micro-batch {found.batch}" if found.batch else ""
    text = f"{job}{batch}: {verdict}: {size(found.bytes)}{of} ({size(found.low)} to {size(found.high)})"
    if found.largest_micro_batch is not None:
        text += f"; at most micro-batch {found.largest_micro_batch}{'' if ran else ', reckoned and not run'}"
    return f"{text}; limited by {found.limited_by}"
