"""`supervisorctl training jobset` prints what a JobSet's schema accepts and what starts programs that exist.

`jobset_schema.json` has, of the schema of jobset.x-k8s.io/v1alpha2 (kubernetes-sigs/jobset, commit 08dfbdfd, its
`config/components/crd/bases`), the types, limits and required keys of the fields that the manifest uses; the manifest
was accepted by the whole schema as well, with no field that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from supervisor.cli.app import App
from supervisor.cli.doctor import checks
from supervisor.cli.main import cli
from supervisor.cluster.kubernetes import name_lease
from supervisor.daemon.roles import program

SCHEMA = json.loads((Path(__file__).parent / "jobset_schema.json").read_text())
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}


def read_manifest() -> dict[str, Any]:
    printed = CliRunner().invoke(cli, ["training", "jobset"], obj=App())
    items = json.loads(printed.stdout)["items"]
    return {item["kind"]: item for item in items}


def find_problems(schema: dict[str, Any], value: Any, place: str) -> Iterator[str]:
    """Yield what a schema of Kubernetes (without references) does not accept."""
    if "anyOf" in schema and "type" not in schema:
        if all(list(find_problems(choice, value, place)) for choice in schema["anyOf"]):
            yield f"{place}: none of the types"
        return
    wanted = TYPES.get(schema.get("type", ""), object)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        yield f"{place}: not of type {schema['type']}"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from find_problems(schema["items"], item, f"{place}[{number}]")
    elif isinstance(value, dict):
        yield from find_problems_of_fields(schema, value, place)
    elif value not in schema.get("enum", [value]):
        yield f"{place}: {value!r} is none of {schema['enum']}"
    elif isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{place}: {value} is not within its limits"


def find_problems_of_fields(schema: dict[str, Any], value: dict[str, Any], place: str) -> Iterator[str]:
    yield from (f"{place}: lacks {key}" for key in schema.get("required", []) if key not in value)
    for key, item in value.items():
        known = schema.get("properties", {}).get(key, schema.get("additionalProperties", True))
        if known is False:
            yield f"{place}: has no field {key}"
        elif isinstance(known, dict):
            yield from find_problems(known, item, f"{place}.{key}")


def test_the_schema_of_a_jobset_accepts_it() -> None:
    jobset = read_manifest()["JobSet"]
    assert list(find_problems(SCHEMA, jobset, "JobSet")) == []
    assert jobset["spec"]["failurePolicy"]["restartStrategy"] == "InPlaceRestart"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"failurePolicy": {"restartStrategy": "InPlace"}}, "is none of"),
        ({"failurePolicy": {"maxRestarts": "3"}}, "not of type integer"),
        ({"successPolicy": {}}, "lacks operator"),
        ({"replicas": 1}, "has no field replicas"),
    ],
)
def test_the_check_finds_what_is_wrong(change: dict[str, Any], problem: str) -> None:
    jobset = read_manifest()["JobSet"]
    assert any(problem in found for found in find_problems(SCHEMA, {**jobset, "spec": change}, "JobSet"))


def test_what_its_pods_start_is_what_the_program_reads() -> None:
    jobs = read_manifest()["JobSet"]["spec"]["replicatedJobs"]
    for job in jobs:
        (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        words = container["command"][1:]
        asked = program._parser().parse_args(words[: words.index("--")] if "--" in words else words)
        assert asked.role == {"leader": "leader", "nodes": "node"}[job["name"]]
        if asked.role == "node":
            assert program.read_address(asked.leader, "--leader") == ("training-leader-0-0.training", 29300)


def test_the_leaders_role_may_hold_a_lease() -> None:
    rules = read_manifest()["Role"]["rules"]
    (rule,) = [rule for rule in rules if rule["resources"] == ["leases"]]
    assert rule == {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}
    assert name_lease("My_run") == "rocm-supervisor-my-run"


def test_doctor_says_in_a_pod_that_it_was_not_run_on_a_cluster() -> None:
    (line,) = checks.engine({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert line.level == "warn"
    assert "not run on a cluster" in line.found
    assert list(checks.engine({})) == []
