"""Attacks a daemon by a hostile training beside a healthy one, and shrinks what breaks an invariant to a script.

    python tests/attacks/campaign.py [--actions 500] [--seed 1] [--per-s 20] [--kinds KIND ...] [--restart-every-s 20]
                                     [--trainings 1] [--limit-s SECONDS] [--shard K/N] [--replay SCRIPT]
                                     [--shrink RUNS] [--strict] [--keep FOLDER] [--systemd]

Everything runs in a pid namespace of its own, so that a supervisor which is led to kill pid 1 or a stranger's process
hurts nobody; that needs root. `--trainings` divides the actions among so many hostile trainings at once, which is what
makes a long attack quick: most of its time goes into the restarts and the hangs that some actions cause. With
`--limit-s` the attack ends then; every ten seconds it says how far it came. `--replay` performs a script of lines
KIND SEED in place of a drawn list. A broken invariant is printed with what the hostile trainings had done last; with
`--shrink` the actions up to there are shortened in at most so many runs to those that it takes, and printed as such a
script. `--strict` asks for the figures that hold on an idle machine, `--slack` multiplies every limit of time, for a
machine that others use. `--systemd` attacks the installed units in a booted systemd: the trainings are the owner's, a
member of the control group and a stranger attack from outside. Exit status 1 where an invariant was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e"), str(HERE)]

from attack_plan import WEIGHTS, Action, from_script, plan, share, shrink, to_script  # noqa: E402 (after the path is set)
from observer import HEALTHY, STALL_LIMIT_S, SUITE, Limits, Observer, Violation, watched  # noqa: E402
from sites import Foreground, Installed, foreground, installed, wait_until_answered  # noqa: E402

from supervisor.control.client import ControlError  # noqa: E402

IN_NAMESPACE = "ROCM_SUPERVISOR_ATTACK_NAMESPACE"
SPEND_NOTHING = "restarts = 1000000\nrestarts_per_cause = 1000000\nrestarts_per_period = 1000000\nbackoff_s = [0.0]"
JUDGED = {"stall": "limit_s = 2.0", "start_timeout": "setup_limit_s = 20.0"}
LEFT_ALONE = {
    "stall": "limit_s = 6.0\nlearn = false", "start_timeout": "setup_limit_s = 20.0",
    "non_finite_loss": "enabled = false", "non_finite_grad": "enabled = false",
}  # fmt: skip
"""The rules of the hostile trainings beyond the first: a forged loss ends none, so that one attempt does more."""
SETTLE_S = 6.0
"""How long is looked on after the last action."""
STANDS_S = 45.0
"""After so long without an action a hostile training is started again: nothing in an attempt may take as long."""
STORY_LINES = 12
SHOWN_EVERY_S = 10.0


Attacked: TypeAlias = Foreground | Installed


def jobs(site: Attacked, wound_every: int) -> str:
    """Return the configuration of both jobs."""
    folder = site.place_of_trainings
    words = [site.python, str(HERE / "healthy_training.py"), f"{folder}/{HEALTHY}"]
    words += ["--wound-every", str(wound_every), "--every-s", "0.02"]
    rules = {
        "stall": f"limit_s = {STALL_LIMIT_S}\nlearn = false", "non_finite_loss": "tolerated = 0",
        "resumed_loss": "enabled = false",
    }  # fmt: skip
    healthy = site.job_of(HEALTHY, words, "remedies = { enabled = false }", **rules)
    hostile = ""
    for name in site.hostile:
        words = [site.python, str(HERE / "hostile_training.py"), f"{folder}/{name}.json"]
        hostile += site.job_of(name, words, "", **(JUDGED if name == site.hostile[0] else LEFT_ALONE))
    budgets = "".join(f"[jobs.{name}.budget]\n{SPEND_NOTHING}\n" for name in (HEALTHY, *site.hostile))
    budgets += f"[metrics]\nlisten = {json.dumps(site.metrics)}\n"
    return f"{healthy}{hostile}{budgets}[retention]\ndatabase_limit_mb = 64\noutput_limit_mb = 8\n"


class Campaign:
    """One attack on one installation."""

    def __init__(self, site: Attacked, actions: Sequence[Action], limits: Limits, per_s: float) -> None:
        self.site, self.actions = site, actions
        self.observer = Observer(site, limits)
        self._per_s = per_s
        self._shown_s = 0.0
        self._shares = [len(share(actions, number, len(site.hostile))) for number in range(len(site.hostile))]
        self._came_on: dict[str, tuple[int, float]] = {}
        """How many actions each hostile training had begun when it last began one, and when that was seen."""

    def run(self, restart_every_s: float, limit_s: float, *, first_only: bool = False) -> list[Violation]:
        """Attack until every action was begun or `limit_s` is over; return what was broken.

        With `first_only` it ends as soon as something is.
        """
        site = self.site
        site.plant(self.actions, self._per_s)
        site.write(jobs(site, wound_every=250))
        site.begin()
        self.observer.plant()
        found: list[Violation] = []
        restarted_s = time.perf_counter()
        began_s = time.perf_counter()
        end_s = began_s + limit_s
        done_s: float | None = None
        while done_s is None or time.perf_counter() < done_s + SETTLE_S:
            tick = time.perf_counter()
            broken = self.observer.look()
            found += broken
            for violation in () if first_only else broken:
                say(f"BROKEN {violation}")
            self._show(tick - began_s, found, quiet=first_only)
            if found and (first_only or self._is_over(found)):
                return found
            self._keep_going()
            self._end_stands(tick)
            if restart_every_s and tick > restarted_s + restart_every_s and done_s is None:
                found += self._restart()
                restarted_s = time.perf_counter()
            if done_s is None and (self.observer.actions >= len(self.actions) or tick > end_s):
                done_s = time.perf_counter()
            time.sleep(max(0.0, tick + 1.0 - time.perf_counter()))
        if not all(self.site.intrusions().values()):
            raise RuntimeError(f"a user without a training did nothing, {self.site.intrusions()}: see intruder-*")
        self.site.leave()  # a lease that a training holds on a file would stop whoever looks into it for 45 s
        return [*found, *self.observer.at_the_end()]

    def _show(self, passed_s: float, found: list[Violation], *, quiet: bool) -> None:
        """Say how far the attack is, for one that is cut off to count."""
        if not quiet and passed_s >= self._shown_s + SHOWN_EVERY_S:
            self._shown_s = passed_s
            actions, intrusions = self.observer.actions, sum(self.site.intrusions().values())
            reckoned = f"{actions} actions ({actions / passed_s:.0f}/s), {intrusions} of users without a training"
            say(f"after {passed_s:.0f} s: {reckoned}, {len(found)} invariants broken")

    def _is_over(self, found: list[Violation]) -> bool:
        """Whether nothing is left that could be looked at."""
        return self.site.daemon_process() is None

    def _keep_going(self) -> None:
        """Start a job that was given up: the attack goes on."""
        try:
            for job in self.site.client.get("/v1/status")["jobs"]:
                if job["phase"] in {"failed", "finished", "stopped"}:
                    # From the beginning: what a hostile training calls its checkpoints is no reason to end the attack.
                    self.site.client.post(f"/v1/jobs/{job['name']}/start", fresh=job["name"] != HEALTHY)
        except ControlError:
            return  # the observer says so

    def _end_stands(self, now_s: float) -> None:
        """Stop a hostile training that has brought itself to a stand, which `_keep_going` then starts again."""
        for name, begun, due in zip(self.site.hostile, self.observer.begun, self._shares, strict=True):
            before, since_s = self._came_on.setdefault(name, (begun, now_s))
            if begun != before or begun >= due:
                self._came_on[name] = (begun, now_s)
            elif now_s > since_s + STANDS_S:
                self._came_on[name] = (begun, now_s)
                self.observer.worst["stands ended"] = self.observer.worst.get("stands ended", 0.0) + 1
                say(f"STOOD {name} for {STANDS_S:.0f} s after {self._last_line(name)}")
                with suppress(ControlError):
                    self.site.client.post(f"/v1/jobs/{name}/stop")

    def _last_line(self, name: str) -> str:
        path = self.site.folder / f"{name}.progress"
        return path.read_text().splitlines()[-1] if path.exists() else "nothing"

    def _restart(self) -> list[Violation]:
        """Kill the daemon and start another; return what is wrong with it."""
        since_s = time.time()  # noqa: TID251 - compared with what the trainings noted
        self.site.replace_daemon()
        limit_s = self.observer.limits.ready_s
        with watched(lambda: process.pid if (process := self.site.daemon_process()) else None) as seen:
            ready_s = wait_until_answered(self.site, limit_s)
        self.observer.late += [f"restart of {ready_s:.1f} s {look}" for look in seen]
        self.observer.worst["restart s"] = max(self.observer.worst.get("restart s", 0.0), ready_s)
        self.observer.away(since_s)
        if ready_s >= limit_s:
            detail = f"no answer {limit_s:.0f} s after it was started"
            return [Violation(invariant="a restart answers", detail=detail, actions=self.observer.actions)]
        return []

    def story(self) -> str:
        """Return what the hostile training did last."""
        paths = [self.site.folder / f"{name}.said" for name in self.site.hostile]
        lines = [line for path in paths if path.exists() for line in path.read_text().splitlines()[-STORY_LINES:]]
        return "\n".join(lines)


def say(line: str) -> None:
    """Print it now."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def attack(
    actions: Sequence[Action], given: argparse.Namespace, *, first_only: bool = False, quiet: bool = False
) -> tuple[list[Violation], dict[str, float]]:
    """Attack once; return what was broken and the worst figure of each invariant."""
    limits = (Limits() if given.strict else SUITE).slackened(given.slack)
    trainings = given.trainings
    with installed(trainings) if given.systemd else foreground(given.keep, trainings) as site:
        campaign = Campaign(site, actions, limits, given.per_s)
        try:
            found = campaign.run(given.restart_every_s, given.limit_s, first_only=first_only)
        except AssertionError as error:  # the daemon did not even start
            found = [Violation(invariant="the daemon starts", detail=str(error)[-1500:], actions=0)]
        if found and not quiet:
            for violation in found:
                say(f"BROKEN {violation}")
            say(f"--- the hostile training's last actions\n{campaign.story()}")
            say(f"--- the daemon's log\n{site.log_text()[-given.log_chars :]}")
        worst = {**campaign.observer.worst, "actions": campaign.observer.actions}
        for name, count in [*zip(site.hostile, campaign.observer.begun, strict=True), *site.intrusions().items()]:
            worst[f"actions of {name}"] = count
        worst["healthy steps"] = len(campaign.observer.steps_made())
        worst["wounds"] = len(campaign.observer.wounds())
        if campaign.observer.crowd:
            say(f"  most threads: {campaign.observer.crowd}")
        for look in () if quiet else campaign.observer.late:
            say(f"LATE {look}")
        if campaign.observer.held_in:
            say(f"  late for: {campaign.observer.held_in}")
        return found, worst


def shortened(actions: Sequence[Action], broken: Violation, given: argparse.Namespace) -> list[Action]:
    """Return fewer actions that break the same invariant."""

    def breaks(tried: Sequence[Action]) -> bool:
        found, _ = attack(tried, given, first_only=True, quiet=True)
        again = any(violation.invariant == broken.invariant for violation in found)
        say(f"    {len(tried)} actions: {'broken' if again else 'holds'}")
        return again

    shares = [share(actions, number, given.trainings) for number in range(given.trainings)]
    begun = {action for mine, count in zip(shares, broken.begun, strict=True) for action in mine[:count]}
    return shrink([action for action in actions if action in begun], breaks, given.shrink)


def in_namespace(words: Sequence[str]) -> int:
    """Run this program again as a child of the first process of a new pid namespace; return its status."""
    inner = [sys.executable, str(Path(__file__).resolve()), *words]
    # bash, as the first process, reaps what is left to it.
    command = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
    return os.spawnvpe(
        os.P_WAIT,
        "unshare",
        [*command, "bash", "-c", '"$@"; exit $?', "bash", *inner],
        {**os.environ, IN_NAMESPACE: "1"},
    )


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-s", type=float, default=20.0)
    parser.add_argument("--kinds", nargs="+", choices=list(WEIGHTS), default=list(WEIGHTS))
    parser.add_argument("--without", nargs="+", choices=list(WEIGHTS), default=[])
    parser.add_argument("--restart-every-s", type=float, default=20.0, help="0: the daemon is not killed")
    parser.add_argument("--trainings", type=int, default=1, help="hostile ones at once, among which the actions go")
    parser.add_argument("--limit-s", type=float, help="the attack ends then, whatever is left")
    parser.add_argument("--shard", default="1/1", metavar="K/N", help="of N attacks that share a plan, the K-th part")
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--shrink", type=int, default=0, metavar="RUNS")
    parser.add_argument("--systemd", action="store_true")
    parser.add_argument("--slack", type=float, default=1.0, help="factor of every limit of time")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder for what is left of the attack")
    parser.add_argument("--log-chars", type=int, default=3000)
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Attack, print, shrink."""
    given = arguments(words)
    if not given.systemd and os.environ.get(IN_NAMESPACE) != "1":
        return in_namespace(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if given.limit_s is None:  # a hostile training that ends all the time comes on more slowly than its pace
        given.limit_s = 240 + given.actions / given.per_s * 6
    kinds = [kind for kind in given.kinds if kind not in given.without]
    actions = from_script(given.replay.read_text()) if given.replay else plan(given.seed, given.actions, kinds)
    part, parts = map(int, given.shard.split("/"))
    actions = actions[part - 1 :: parts]
    began = time.perf_counter()
    found, worst = attack(actions, given)
    say(f"{len(found)} invariants broken in {time.perf_counter() - began:.0f} s, seed {given.seed}, part {given.shard}")
    for invariant, value in sorted(worst.items()):
        say(f"  {invariant:<36} {value:.6g}")
    if found and given.shrink:
        script = to_script(shortened(actions, found[0], given))
        say(f"# breaks: {found[0].invariant}\n{script}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
