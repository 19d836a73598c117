"""`supervisorctl alerts`: the receivers and the newest alerts; it sends test alerts, mutes, and ends reminders."""

from __future__ import annotations

import time
from typing import Any

import click

from supervisor.cli import exit_codes
from supervisor.cli.app import App, end, json_option, pass_app
from supervisor.cli.errors import CliError
from supervisor.cli.formatting import ago, clock_time
from supervisor.cli.since import Given, Since
from supervisor.cli.table import Cell, Pen
from supervisor.core.sanitize import one_line

RECEIVERS = ("RECEIVER", "CHANNEL", "STATE", "FROM", "WAITING", "DELIVERED", "GIVEN UP", "LAST DELIVERED", "PROBLEM")
ALERTS = ("WHEN", "RECEIVER", "STATE", "TRIES", "TYPE", "JOB", "ERROR")
STYLES = {
    "ok": "green",
    "failing": "yellow",
    "unusable": "red",
    "delivered": "green",
    "failed": "red",
    "muted": "yellow",
}
POLL_INTERVAL_S = 0.25
LONGEST_MUTE_S = 86_400


@click.group("alerts", invoke_without_command=True)
@click.option("-n", "--limit", type=click.IntRange(0, 1000), default=10, show_default=True, help="Newest alerts shown.")
@json_option
@pass_app
@click.pass_context
def command(context: click.Context, app: App, limit: int) -> None:
    """Show the receivers of alerts and the newest alerts; exits with 1 if a receiver is unusable."""
    if context.invoked_subcommand is not None:
        return
    answer = app.get_recorded("/v1/alerts", limit=limit)
    if app.json:
        app.print_json(answer)
    else:
        app.print("\n".join(lines(answer, app.now(), app.pen)))
    if any(receiver["problem"] for receiver in answer["receivers"]):
        end(exit_codes.FAILED)


@command.command("test", short_help="Send a test alert to RECEIVER and wait for its response.")
@click.argument("receiver")
@click.option("--timeout", "limit_s", type=click.FloatRange(0.1, 3600), default=60.0, show_default=True, metavar="S")
@json_option
@pass_app
def test_command(app: App, receiver: str, limit_s: float) -> None:
    """Send a test alert to RECEIVER and wait for its response; exits with 1 if it was not delivered."""
    sent = app.post(f"/v1/alerts/{receiver}/test")["id"]
    deadline_s = time.perf_counter() + limit_s
    while time.perf_counter() < deadline_s:
        found = [alert for alert in app.get("/v1/alerts", limit=100)["alerts"] if alert["id"] == sent]
        if found and found[0]["state"] != "waiting":
            _print_result(app, receiver, found[0])
            return
        time.sleep(POLL_INTERVAL_S)
    raise CliError(f"no response from {receiver} within {limit_s:g} s", "supervisorctl alerts shows its state")


@command.command("mute", short_help="Send RECEIVER, or all, nothing for DURATION.")
@click.argument("duration", type=Since())
@click.argument("receiver", required=False)
@json_option
@pass_app
def mute_command(app: App, duration: Given, receiver: str | None) -> None:
    """Send RECEIVER, or all, nothing for DURATION (2h, 90min; at most 24h); what waits is sent afterwards."""
    seconds = duration[0]
    if seconds is None or not 0 < seconds <= LONGEST_MUTE_S:
        raise click.UsageError("DURATION is from 1s to 24h, as in 90min or 2h")
    _request_mute(app, seconds, receiver)


@command.command("unmute")
@click.argument("receiver", required=False)
@json_option
@pass_app
def unmute_command(app: App, receiver: str | None) -> None:
    """End the mute of RECEIVER, or of all receivers."""
    _request_mute(app, 0, receiver)


@command.command("ack", short_help="Send no more reminders of a training that was given up.")
@click.argument("incident")
@json_option
@pass_app
def acknowledge_command(app: App, incident: str) -> None:
    """Send no more reminders of a training that was given up, by its INCIDENT or name; a new one is sent again."""
    answer = app.post("/v1/alerts/ack", incident=incident)
    if app.json:
        app.print_json(answer)
    else:
        app.print(f"{one_line(answer['job'])}: no more reminders until it is given up again")


def _request_mute(app: App, seconds: float, receiver: str | None) -> None:
    answer = app.post("/v1/alerts/mute", seconds=seconds, receiver=receiver)
    if app.json:
        app.print_json(answer)
        return
    names = ", ".join(one_line(name) for name in answer["receivers"]) or "no receiver is configured"
    until = answer["until"]
    app.print(f"{names}: not muted" if until is None else f"{names}: muted until {clock_time(until)}")


def _print_result(app: App, receiver: str, alert: dict[str, Any]) -> None:
    if alert["state"] != "delivered":
        raise CliError(
            f"the test alert was not delivered to {receiver}: {alert['error']}", "see [alerts] in config.toml"
        )
    if app.json:
        app.print_json(alert)
    else:
        app.print(f"delivered to {one_line(receiver)}")


def lines(answer: dict[str, Any], now: float, pen: Pen) -> list[str]:
    """Return the answer to GET /v1/alerts as lines of text."""
    if not answer["receivers"]:
        text = ["no receiver is configured; add [alerts.NAME] to config.toml"]
    else:
        text = [pen.table(RECEIVERS, [_receiver_cells(receiver, now) for receiver in answer["receivers"]])]
    if answer["alerts"]:
        text += ["", pen.table(ALERTS, [_alert_cells(alert, now) for alert in answer["alerts"]])]
    return text


def _receiver_cells(receiver: dict[str, Any], now: float) -> list[Cell]:
    state, muted = receiver["state"], receiver["muted_until"]
    if state == "ok" and (muted is not None or receiver["quiet"]):
        state = "quiet" if muted is None else "muted"
    remark = receiver["problem"] or receiver.get("warning")
    if remark is None and muted is not None:
        remark = f"muted until {clock_time(muted)}"
    return [
        Cell(one_line(receiver["name"]), "bold"),
        Cell(one_line(receiver["kind"])),
        Cell(one_line(state), STYLES.get(state)),
        Cell(one_line(receiver["min_severity"] or "-")),
        Cell(str(receiver["waiting"]), right=True),
        Cell(str(receiver["delivered"]), right=True),
        Cell(str(receiver["given_up"]), right=True),
        Cell(ago(receiver["last_delivered_at"], now) if receiver["last_delivered_at"] is not None else "never"),
        Cell(one_line(remark or "")),
    ]


def _alert_cells(alert: dict[str, Any], now: float) -> list[Cell]:
    return [
        Cell(ago(alert["queued_at"], now), right=True),
        Cell(one_line(alert["receiver"])),
        Cell(one_line(alert["state"]), STYLES.get(alert["state"])),
        Cell(str(alert["tries"]), right=True),
        Cell(one_line(alert["type"])),
        Cell(one_line(alert["job"] or "-")),
        Cell(one_line(alert["error"] or "")),
    ]
