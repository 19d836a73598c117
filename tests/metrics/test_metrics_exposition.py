"""The exposition holds to the formats' grammar, and a value that is not known or too old has no line."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from supervisor.cli.metrics import RULES
from supervisor.core.moments import Moment
from supervisor.core.readings import DiskReading, GpuReading, HostReading
from supervisor.core.stats.histogram import Histogram, HistogramKnown
from supervisor.metrics.declared import METRICS, SAMPLES
from supervisor.metrics.exposition import text_of
from supervisor.metrics.formats import prefers_openmetrics
from supervisor.metrics.known import Known, ReceiverKnown, SourceKnown, TrainingKnown

NOW = Moment(1000.0, 1_763_164_900.0)


def counted(*seconds: float) -> HistogramKnown:
    histogram = Histogram(1.0, 10.0)
    for each in seconds:
        histogram.observe(each)
    return histogram.known()


GPU = GpuReading(
    at=NOW.plus(-1),
    gpu="0000:0a:00.0",
    source="sysfs",
    name="Radeon RX 5600 XT",
    unique_id="0x1",
    gfx_version="gfx1010",
    gpu_busy_percent=97.0,
    memory_busy_percent=40.0,
    vram_used_bytes=4_300_000_000,
    vram_total_bytes=6_000_000_000,
    edge_c=70.0,
    junction_c=83.0,
    memory_c=80.0,
    power_w=150.0,
    power_cap_w=160.0,
    fan_rpm=1800,
    sclk_hz=1_700_000_000,
    mclk_hz=875_000_000,
    runtime_status="active",
    pcie_replays=0,
    ecc_correctable=0,
    ecc_uncorrectable=0,
)
TRAINING = TrainingKnown(
    name="yolo",
    phase="running",
    attempt=3,
    hooked_conv2d=True,
    unit="rocm-run@yolo.service",
    device="cuda:0",
    epoch=31,
    epochs=50,
    loss=2.31,
    lr=0.01,
    steps_per_s=18.2,
    samples_per_s=291.2,
    tokens_per_s=149_094.4,
    data_wait_ratio=0.03,
    last_step_unix_s=NOW.unix_s,
    proven_unix_s=NOW.unix_s - 300,
    end_unix_s=NOW.unix_s + 86_400,
    rss_bytes=3_000_000_000,
    cpu_ratio=1.5,
    steps=100,
    seconds={"train": 12.5},
    restarts={"stall": 2},
    flags={"stall": 1},
    snapshots=counted(-1.0, 0.5, 5.0, 40.0),
)
ALL = Known(
    now=NOW,
    stale_after_s=3.0,
    version="0.1.0",
    python="3.11.2",
    sqlite="3.40.1",
    started_unix_s=NOW.unix_s - 1000,
    loop_lag_s=0.0004,
    database_bytes=28_500_000,
    database_writes=counted(0.002),
    trainings=(TRAINING,),
    gpus=(GPU,),
    host=HostReading(at=NOW, disks=(DiskReading(path="/s", free_bytes=41_000_000_000, total_bytes=1 << 40),)),
    sources=(SourceKnown(name="sysfs", answering=True, last_success_unix_s=NOW.unix_s - 1),),
    receivers=(ReceiverKnown(name="phone", waiting=3, retrying=1, sent=20, failed=2),),
)

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(\{{{LABEL}(?:,{LABEL})*\}})? (-?[0-9.e+-]+)")
HEAD = re.compile(rf"# (HELP|TYPE) ({NAME}) (.+)")


def parse(text: str) -> dict[str, float]:
    """Return the samples of an exposition; every line has to be of the grammar, each family in one piece, once."""
    assert text.endswith("\n")
    samples: dict[str, float] = {}
    family, seen = "", set()
    for line in text.splitlines():
        if found := HEAD.fullmatch(line):
            if found[1] == "HELP":
                family = found[2]
                assert family not in seen, "a family comes twice"
                seen.add(family)
            assert (found[2], found[1] == "HELP" or found[3] in ("gauge", "counter", "histogram")) == (family, True)
        elif line != "# EOF":
            sample = SAMPLE.fullmatch(line)
            assert sample is not None, line
            assert re.sub("_(total|bucket|sum|count)$", "", sample[1]) == family.removesuffix("_total")
            key = sample[1] + (sample[2] or "")
            assert key not in samples, key
            samples[key] = float(sample[3])
    return samples


def test_every_declared_metric_is_written_where_all_is_known() -> None:
    samples = parse(text_of(ALL))
    assert {key.partition("{")[0] for key in samples} == {name for _, name, _ in SAMPLES.values()}
    assert samples['rocm_supervisor_training_loss{training="yolo"}'] == 2.31
    assert samples['rocm_supervisor_gpu_busy_ratio{gpu="0000:0a:00.0"}'] == 0.97
    assert samples['rocm_supervisor_training_restarts_total{training="yolo",cause="stall"}'] == 2
    assert samples['rocm_supervisor_training_restarts_total{training="yolo",cause="oom_gpu"}'] == 0
    assert samples['rocm_supervisor_alerts_retrying{sink="phone"}'] == 1


def test_a_histogram_counts_what_is_not_above_each_limit() -> None:
    samples = parse(text_of(ALL))
    buckets = {key: value for key, value in samples.items() if key.startswith("rocm_supervisor_snapshot_seconds")}
    assert buckets == {
        'rocm_supervisor_snapshot_seconds_bucket{training="yolo",le="1.0"}': 2,
        'rocm_supervisor_snapshot_seconds_bucket{training="yolo",le="10.0"}': 3,
        'rocm_supervisor_snapshot_seconds_bucket{training="yolo",le="+Inf"}': 4,
        'rocm_supervisor_snapshot_seconds_sum{training="yolo"}': 45.5,
        'rocm_supervisor_snapshot_seconds_count{training="yolo"}': 4,
    }


def test_one_training_and_one_gpu_have_at_most_200_series() -> None:
    assert len(parse(text_of(ALL))) <= 200


def test_both_formats_have_the_same_samples() -> None:
    classic, openmetrics = text_of(ALL), text_of(ALL, openmetrics=True)
    assert parse(classic) == parse(openmetrics)
    assert openmetrics.endswith("# EOF\n")
    assert "# TYPE rocm_supervisor_flags counter\n" in openmetrics
    assert "# TYPE rocm_supervisor_flags_total counter\n" in classic
    assert "# EOF" not in classic


def test_an_unknown_value_has_no_line() -> None:
    unknown = replace(ALL, trainings=(TrainingKnown(name="yolo", phase="pending", attempt=0),), loop_lag_s=None)
    names = {key.partition("{")[0].removeprefix("rocm_supervisor_") for key in parse(text_of(unknown))}
    absent = {"training_loss", "training_epoch", "training_info", "training_last_step_timestamp_seconds"}
    assert not names & {*absent, "training_expected_end_timestamp_seconds", "loop_lag_seconds"}
    assert "training_phase" in names


def test_a_training_without_a_unit_of_its_own_names_none() -> None:
    without = parse(text_of(replace(ALL, trainings=(replace(TRAINING, unit=None),))))
    assert 'rocm_supervisor_training_info{training="yolo",unit="",device="cuda:0",conv2d="replaced"}' in without


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_has_no_line(loss: float) -> None:
    assert "training_loss" not in text_of(replace(ALL, trainings=(replace(TRAINING, loss=loss),)))


def test_a_reading_older_than_three_intervals_has_no_line_but_its_age() -> None:
    fresh = parse(text_of(replace(ALL, gpus=(replace(GPU, at=NOW.plus(-3)),))))
    assert 'rocm_supervisor_gpu_busy_ratio{gpu="0000:0a:00.0"}' in fresh
    old = replace(
        ALL,
        gpus=(replace(GPU, at=NOW.plus(-3.5)),),
        host=HostReading(at=NOW.plus(-3.5), disks=ALL.host.disks if ALL.host else ()),
    )
    stale = parse(text_of(old))
    assert [key for key in stale if "_gpu_" in key] == ['rocm_supervisor_gpu_reading_age_seconds{gpu="0000:0a:00.0"}']
    assert not [key for key in stale if "disk_free" in key]


def test_a_step_of_the_wall_clock_makes_no_reading_old() -> None:
    stepped = replace(ALL, now=Moment(NOW.monotonic_s, NOW.unix_s + 3600))
    assert parse(text_of(stepped))['rocm_supervisor_gpu_reading_age_seconds{gpu="0000:0a:00.0"}'] == 1.0


def test_text_from_outside_stays_within_its_label() -> None:
    hostile = 'a"} 1\nrocm_supervisor_up{x="\\\x1b[31m'
    known = replace(ALL, gpus=(replace(GPU, name=hostile),), trainings=(replace(TRAINING, device=hostile),))
    samples = parse(text_of(known))
    name = 'a\\"} 1 rocm_supervisor_up{x=\\"\\\\'
    assert [key for key in samples if key.startswith("rocm_supervisor_gpu_info")] == [
        f'rocm_supervisor_gpu_info{{gpu="0000:0a:00.0",name="{name}",uuid="0x1",gfx="gfx1010"}}'
    ]
    info = (
        'rocm_supervisor_training_info{training="yolo",unit="rocm-run@yolo.service",device="other",conv2d="replaced"}'
    )
    assert info in samples


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;q=0.5",
            True,
        ),
        ("text/plain;version=0.0.4;q=0.9, application/openmetrics-text;q=0.2", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=much", False),
    ],
)
def test_the_format_is_the_one_that_the_reader_prefers(accept: str, openmetrics: bool) -> None:
    assert prefers_openmetrics(accept) is openmetrics


def test_names_and_labels_are_prometheus_own() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"rocm_supervisor_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert not {"job", "instance"} & set(metric.labels), "Prometheus sets these itself"


def test_the_nine_alerts_use_metrics_that_exist() -> None:
    rules = files("supervisor.metrics").joinpath(RULES).read_text(encoding="utf-8")
    recorded = set(re.findall(r"record: (\S+)", rules))
    used = set(re.findall(r"(?<!:)\brocm_supervisor_[a-z0-9_]+", rules)) | set(
        re.findall(r"training:[a-z0-9_:]+", rules)
    )
    assert used - recorded <= {metric.name for metric in METRICS} | {"rocm_supervisor_"}
    assert len(re.findall(r"- alert: ", rules)) == 9
    assert rules.count("summary:") == rules.count("runbook:") == rules.count("severity:") == 9


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    """The cases themselves are for promtool, which says at the top of the file how."""
    rules = files("supervisor.metrics").joinpath(RULES).read_text(encoding="utf-8")
    cases = Path(__file__).with_name("rules_promtool.yml").read_text(encoding="utf-8")
    judged = re.findall(r"alertname: (\w+)\n +exp_alerts:( \[\])?", cases)
    alerts = set(re.findall(r"- alert: (\w+)", rules))
    assert alerts == {name for name, none in judged if none} == {name for name, none in judged if not none}
