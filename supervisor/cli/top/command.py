"""`supervisorctl top`: trainings, GPUs, the newest incident, the loss and the last output, live."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.errors import explained
from supervisor.cli.top.frame import compose
from supervisor.cli.top.state import Answer, TopState, press, read_keys, take
from supervisor.control.client import Client, ControlError, quoted

ANSWER_LIMIT_S = 5.0
INCIDENTS = 20
OUTPUT_LINES = 60
PLAIN_SIZE = (100, 30)


@click.command("top")
@click.option("--once", is_flag=True, help="Print one frame and exit, as without a terminal.")
@click.option("--interval", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, metavar="SECONDS")
@pass_app
def command(app: App, interval: float, *, once: bool) -> None:
    """Show trainings, GPUs, the newest incident, the loss and the last output, live.

    Keys: arrows or j and k select a training, enter shows it alone, / filters by name, ? lists the keys, q ends.
    The view asks again while the daemon restarts. It changes nothing.
    """
    terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if once or not terminal:
        _print_frame(app)
        return
    from supervisor.cli.top.screen import Screen  # noqa: PLC0415 - termios and signals: for a terminal only

    with Screen(app.pen) as screen:
        feed = Feed(lambda selected: ask(app, selected), interval, screen.wake)
        feed.begin()
        state: TopState | None = TopState()
        while state is not None:
            if (answer := feed.newest()) is not None:
                state = take(state, answer)
            feed.selected = state.job["name"] if state.job else None
            screen.draw(compose(state, app.now(), *screen.size))
            state = _read_state(state, screen.read(interval), feed)


def _read_state(state: TopState, typed: bytes | None, feed: Feed) -> TopState | None:
    """Return the state after what was typed; None: the view ends, or the terminal is gone."""
    if typed is None:
        return None
    after: TopState | None = state
    for key in read_keys(typed):
        if after is not None:
            after = press(after, key)
    if after is not None and after.selected != state.selected:
        feed.ask_now()
    return after


def _print_frame(app: App) -> None:
    client = Client(app.socket)
    try:
        answer = _ask(client, app, None)
    except ControlError as error:
        raise explained(error) from error
    columns, rows = (app.pen.width or PLAIN_SIZE[0]), PLAIN_SIZE[1]
    state = take(TopState(), answer)
    if state.job is not None and answer.output_of is None:
        state = replace(state, answer=_with_output(client, state.answer, state.job["name"]))
    lines = compose(state, app.now(), columns, rows)[:-1]
    texts = ["".join(app.pen.paint(text, style) for text, style in line).rstrip() for line in lines]
    app.print("\n".join(texts).rstrip())


def ask(app: App, selected: str | None) -> Answer:
    """Return what the daemon answers now; an answer without a status says why there is none."""
    try:
        return _ask(Client(app.socket, ANSWER_LIMIT_S), app, selected)
    except ControlError as error:
        return Answer(problem=str(error))


def _ask(client: Client, app: App, selected: str | None) -> Answer:
    status = client.get("/v1/status")
    incidents = client.get("/v1/incidents", limit=INCIDENTS)["incidents"]
    answer = Answer(status=status, incidents=tuple(incidents), answered_unix_s=app.now())
    return _with_output(client, answer, selected) if selected is not None else answer


def _with_output(client: Client, answer: Answer, job: str) -> Answer:
    try:
        text = client.get(f"/v1/jobs/{quoted(job)}/output", lines=OUTPUT_LINES)["text"]
    except ControlError:
        return answer  # it has none yet
    return replace(answer, output=tuple(line for line in text.splitlines() if line.strip()), output_of=job)


class Feed:
    """Asks the daemon in a thread of its own, so that keys are answered while it is away."""

    def __init__(self, ask_daemon: Callable[[str | None], Answer], interval_s: float, wake: Callable[[], None]) -> None:
        """`wake` is called after each answer."""
        self._ask, self._interval_s, self._wake = ask_daemon, interval_s, wake
        self._at_once = threading.Event()
        self._newest: Answer | None = None
        self._lock = threading.Lock()
        self.selected: str | None = None

    def begin(self) -> None:
        """Ask from now on."""
        threading.Thread(target=self._run, name="feed", daemon=True).start()

    def newest(self) -> Answer | None:
        """Return an answer that was not returned before, or None."""
        with self._lock:
            answer, self._newest = self._newest, None
        return answer

    def ask_now(self) -> None:
        """Do not wait for the interval."""
        self._at_once.set()

    def _run(self) -> None:
        while True:
            answer = self._ask(self.selected)
            with self._lock:
                self._newest = answer
            self._wake()
            self._at_once.wait(0.05 if self.selected is None and answer.status else self._interval_s)
            self._at_once.clear()
