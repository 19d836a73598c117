"""`rocm-supervisord --role node` and `--role leader`: the daemon of one node of a training, and the leader of all.

srun rocm-supervisord --role node --training NAME --leader HOST:PORT --secret-file FILE --state-dir FOLDER -- COMMAND
rocm-supervisord --role leader --training NAME --nodes N --listen HOST:PORT --secret-file FILE --state-dir FOLDER
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import hashlib
import logging
import os
import platform
import resource
import secrets
import signal
import socket
import sqlite3
import stat
import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from supervisor.children.files_apart import apart_within, keep_files_apart
from supervisor.children.path_looks import PathLooks, SilentPathError
from supervisor.children.shared_files import copy_over
from supervisor.children.start import keep_apart
from supervisor.cluster.leader import Engine, Leader
from supervisor.cluster.leader_link import NodeSettings
from supervisor.cluster.leader_record import LeaderRecord
from supervisor.cluster.leader_state import find_ranks_end, read_alerts, read_begin, read_known
from supervisor.cluster.rendezvous import find_overriding
from supervisor.cluster.secret import SecretError, read_secret
from supervisor.cluster.slurm import Allocation, SlurmEngine, list_nodes, read_allocation
from supervisor.cluster.static_nodes import StaticNodes
from supervisor.config.derive import database_url, loads_itself, snapshot_replicas, socket_path
from supervisor.config.load import check
from supervisor.config.settings import JobSettings, Settings, SupervisorSettings
from supervisor.control.listen import ListenError
from supervisor.core.fleet.epoch import Epoch, check_job
from supervisor.core.fleet.ladder import FleetLimits
from supervisor.core.fleet.leading import Leading
from supervisor.core.fleet.training import Known, LeaderLimits
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.settings import Remedies
from supervisor.daemon.clock import SystemClock, boot_id, read_asleep_s
from supervisor.daemon.launch.launchers import LauncherError
from supervisor.daemon.process import logging_setup
from supervisor.daemon.process.startup import StateLockedError, keep_one_heap, wait_for_state
from supervisor.daemon.process.systemd import Notifier
from supervisor.daemon.roles.leader_alerts import LeaderAlerts
from supervisor.daemon.roles.member import Member
from supervisor.daemon.roles.resume_offers import LOOK_LIMIT_S, OwnCheckpoints, ResumeOffers
from supervisor.daemon.service import Service
from supervisor.daemon.wiring import Assembly, assemble
from supervisor.runner.proving import Prover
from supervisor.store.errors import StoreError
from supervisor.store.files import copy, database_path

log = logging.getLogger(__name__)

EX_UNAVAILABLE, EX_CONFIG = 69, 78
PROVE_LIMIT_S = 1500.0
"""Of a node's share of a generation; the leader waits longer than that."""
COPY_LIMIT_S = 60.0
"""For the copy of a node's database to a folder that all nodes share."""
DATABASE = "supervisor.db"
DESCRIPTORS = 16_384
"""Of the leader, as the daemon's unit has them."""
IDENTITY_BYTES = 8
"""Of a process that leads: another one in the same pod is another."""
UNLIMITED = 1_000_000_000
"""A node's own budget: restarts of all ranks are counted by the leader."""


def main(arguments: list[str]) -> int:
    """Run the role; return 0 after its end, 64, 69 or 78 for what has to be corrected before a start.

    69 too for a node to which no leader came.
    """
    command: list[str] = []
    if "--" in arguments:
        arguments, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    asked = _parser().parse_args(arguments)
    faulthandler.enable()
    logging_setup.begin("info", journal="JOURNAL_STREAM" in os.environ)
    try:
        check_job(asked.training)
        return _run_leader(asked) if asked.role == "leader" else _run_node(asked, command)
    except (SecretError, LauncherError, ValueError) as error:
        return _refuse(asked, str(error), EX_CONFIG)
    except (StoreError, StateLockedError, ListenError) as error:
        return _refuse(asked, str(error), EX_UNAVAILABLE)
    except SilentPathError as error:
        return _refuse(asked, f"{error.explanation}; see to its file system, or name another", EX_UNAVAILABLE)
    except OSError as error:
        return _refuse(asked, f"{error.filename or ''}: {error.strerror or error}", EX_UNAVAILABLE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rocm-supervisord", description="A part of a training on several nodes.")
    add = parser.add_argument
    add("--role", choices=["node", "leader"], required=True)
    add("--training", required=True, help="name of the training: letters, digits, - and _")
    add("--secret-file", type=Path, required=True, help="the secret that all nodes of the training share")
    add("--state-dir", type=Path, required=True, help="of a node: a folder of its own; of the leader: its record")
    add("--node", default=os.environ.get("SLURMD_NODENAME") or platform.node(), help="name of this node")
    add("--config", type=Path, help="node: a configuration with a job of the training's name; leader: its [alerts]")
    add(
        "--local-dir",
        type=Path,
        help="node: a folder on a disk of its own for its database, where --state-dir is shared",
    )
    add("--snapshots", type=Path, help="node: folder that all nodes share, for snapshots of all ranks")
    add("--leader", metavar="HOST:PORT", help="node: where the leader is")
    add("--host", help="node: where other nodes reach it; unset: the address from which it reaches the leader")
    add("--listen", metavar="HOST:PORT", default="0.0.0.0:29300", help="leader: where nodes reach it")
    add("--nodes", type=int, help="leader: how many nodes train")
    add("--engine", choices=["none", "slurm", "kubernetes"], default="none", help="leader: what gives nodes")
    add("--engine-restarts", type=int, default=0, help="leader: how often the engine has started the job again")
    add("--lease-s", type=float, default=5.0, help="leader: how long a node goes on without it")
    add("--evidence-s", type=float, default=1.0, help="leader: time for evidence before all ranks end; 0 for none")
    add("--gather-s", type=float, default=600.0, help="leader: how long nodes are waited for")
    add(
        "--spares-s",
        type=float,
        default=3.0,
        help="leader: how long further nodes are waited for, once there are enough",
    )
    add("--port", type=int, default=29400, help="leader: first port of the rendezvous")
    add("--restarts", type=int, default=20, help="leader: restarts in a row without progress")
    add("--restarts-per-hour", type=int, default=60, help="leader: restarts within an hour, whatever progress is made")
    return parser


def _refuse(asked: argparse.Namespace, text: str, status: int) -> int:
    print(f"rocm-supervisord ({asked.role} {asked.node}): {text}", file=sys.stderr)  # noqa: T201 - for the person who starts it
    return status


def _refuse_silent(asked: argparse.Namespace) -> None:
    """Raise SilentPathError where the configuration or the secret does not answer: the start is tried again."""
    with PathLooks() as looks:
        for path in filter(None, (asked.config, asked.secret_file)):
            try:
                looks.look(path)
            except SilentPathError:
                raise
            except OSError:
                continue  # what is wrong there is said by whoever reads it


def read_address(text: str | None, option: str) -> tuple[str, int]:
    """Return host and port. Raises ValueError."""
    host, _, port = (text or "").rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or not 0 < int(port) <= 65535:
        raise ValueError(f"{option} {text!r}: give HOST:PORT")
    return host, int(port)


# --- the leader ---------------------------------------------------------------------------------------------------


def _run_leader(asked: argparse.Namespace) -> int:
    raise_descriptors()
    keep_files_apart()
    _refuse_silent(asked)
    allocation = _find_allocation(asked)
    clock = SystemClock()
    engine = _find_engine(asked, allocation, clock)
    restarts = allocation.restarts if allocation is not None else asked.engine_restarts
    wait_for_state(asked.state_dir, Notifier.take_from_environment())
    known = replace(_read_training(asked, restarts, clock), fence=engine.fence)
    limits = _limits_of(asked, allocation)
    alerts = {} if asked.config is None else read_settings(asked.config).alerts
    secret, address = read_secret(asked.secret_file), read_address(asked.listen, "--listen")
    listening = _listen(*address)
    left = read_alerts(asked.state_dir)
    record = LeaderRecord(asked.state_dir, clock.now, boot_id())
    leading = Leading.take_over(known, limits, clock.now().monotonic_s)
    leading.question.clocks.is_begin_recorded = read_begin(asked.state_dir) is not None
    leader = Leader(
        leading=leading,
        job=asked.training,
        name=asked.node,
        secret=secret,
        listening=listening,
        record=record,
        engine=engine,
        announcer=LeaderAlerts(alerts, asked.training, asked.node, clock, keep=record.write_alerts, left=left),
        now=clock.now,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: leader.ask_to_stop(f"the engine sent {signal.Signals(number).name}"))
    return leader.run()


def raise_descriptors() -> None:
    """Have a descriptor for each node: the soft limit is 1,024 on most machines, whatever the hard one is.

    Whatever the leader starts has it too; none of that is a training.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _find_allocation(asked: argparse.Namespace) -> Allocation | None:
    """Return what Slurm gives the training, None without Slurm. Raises ValueError where it is too little."""
    allocation = read_allocation(os.environ) if asked.engine == "slurm" else None
    if asked.nodes is None or asked.nodes < 1:
        raise ValueError("--nodes: give the number of nodes that train")
    if allocation is not None and allocation.nodes < asked.nodes:
        text = f"the allocation {allocation.job} has {allocation.nodes} nodes ({allocation.node_list})"
        raise ValueError(f"{text}, {asked.nodes} are needed: submit it with --nodes={asked.nodes} or more")
    return allocation


def _read_training(asked: argparse.Namespace, restarts: int, clock: SystemClock) -> Known:
    """Return what the leaders before this one wrote down of the training; `restarts`: of the job by its engine."""
    known = read_known(asked.state_dir, asked.training, clock.now(), boot_id())
    if known is None or (restarts > known.epoch.engine_restarts and not known.is_finished):
        ranks_until_s = find_ranks_end(known, restarts)
        known = Known(epoch=Epoch(asked.training, restarts, 0), is_live=False, ranks_until_s=ranks_until_s)
    began = read_begin(asked.state_dir)
    now_unix_s = clock.now().unix_s
    return replace(known, began_unix_s=now_unix_s if began is None else min(began, now_unix_s))


def _limits_of(asked: argparse.Namespace, allocation: Allocation | None) -> LeaderLimits:
    return LeaderLimits(
        nodes=asked.nodes,
        given=() if allocation is None else list_nodes(allocation.node_list),
        evidence_s=asked.evidence_s,
        lease_s=asked.lease_s,
        gather_s=asked.gather_s,
        spares_s=asked.spares_s if allocation is None or allocation.nodes > asked.nodes else 0.0,  # else none can come
        port=asked.port,
        fleet=FleetLimits(
            restarts_per_cause=asked.restarts,
            restarts_per_period=asked.restarts_per_hour,
            may_requeue=allocation is not None,
        ),
    )


def _find_engine(asked: argparse.Namespace, allocation: Allocation | None, clock: SystemClock) -> Engine:
    """Return what gives nodes; under Kubernetes once this process is the one that leads. Raises ValueError."""
    if asked.engine != "kubernetes":
        return StaticNodes() if allocation is None else SlurmEngine(allocation)
    from supervisor.cluster import kubernetes  # noqa: PLC0415 - no other leader needs urllib3 for it

    leases = kubernetes.Leases(kubernetes.find_server(os.environ), kubernetes.name_lease(asked.training))
    own = f"{asked.node}_{secrets.token_hex(IDENTITY_BYTES)}"
    engine = kubernetes.KubernetesEngine(leases, own, kubernetes.DURATION_S, clock.now, read_asleep_s)
    engine.wait_to_lead()  # before the record is read: until then another leader may write it
    return engine


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(target)
        listening.listen(1024)
    except OSError as error:
        in_use = "; another program has it: give another port" if error.errno == errno.EADDRINUSE else ""
        raise OSError(error.errno, f"{error.strerror}{in_use}", f"--listen {host}:{port}") from error
    return listening


# --- a node -------------------------------------------------------------------------------------------------------


def _run_node(asked: argparse.Namespace, command: list[str]) -> int:
    keep_one_heap()  # before the first thread
    keep_apart()  # before the first file
    keep_files_apart()
    _refuse_silent(asked)
    settings = settings_of_node(asked.training, asked.state_dir.absolute(), asked.config, command, asked.snapshots)
    if asked.local_dir is not None:
        settings = move_database(settings, asked.local_dir)
    notifier = Notifier.take_from_environment()
    leader = read_address(asked.leader, "--leader")
    node = NodeSettings(
        node=asked.node,
        job=asked.training,
        leader=leader,
        secret=read_secret(asked.secret_file),
        host=asked.host or find_own_address(*leader),
    )
    wait_for_state(asked.state_dir, notifier, database_path(database_url(settings.supervisor)))
    with assemble(settings) as parts:
        member = Member(parts, asked.training, node, _offers_of(parts, settings.jobs[asked.training], asked.training))
        socket_file = socket_path(settings.supervisor, os.environ)
        service = Service(parts, asked.config or parts.state, socket_file, notifier)
        member.start()
        try:
            status = service.run()
        finally:
            member.end()
            if asked.local_dir is not None:
                copy_database(settings, asked.local_dir)
        return status if member.given_up is None else _refuse(asked, member.given_up, EX_UNAVAILABLE)


def _offers_of(parts: Assembly, job: JobSettings, training: str) -> ResumeOffers:
    """Return what finds and proves the states that the node can resume from."""
    shared = snapshot_replicas(job, training)
    prover = Prover(
        limit_s=PROVE_LIMIT_S,
        program=lambda: parts.code_copies.current_or_installed().prover,
        look_limit_s=LOOK_LIMIT_S,
    )
    own = OwnCheckpoints(
        globs=tuple(job.checkpoints.paths),
        cwd=job.cwd or ".",
        examine=prover.examine,
        loads_itself=loads_itself(job, None),
    )
    return ResumeOffers(None if shared is None else Path(shared), prover.examine_share, own)


def read_settings(config: Path) -> Settings:
    """Return the settings in a file. Raises ValueError with all that is wrong with them."""
    checked = check(config)
    if checked.settings is None:
        raise ValueError("; ".join(map(str, checked.problems)))
    return checked.settings


def settings_of_node(
    training: str,
    state: Path,
    config: Path | None,
    command: list[str],
    snapshots: Path | None = None,
) -> Settings:
    """Return the configuration of a node: the file's, as far as not all nodes must agree. Raises ValueError."""
    settings = Settings() if config is None else read_settings(config)
    job = settings.jobs.get(training)
    if job is None and not command:
        raise ValueError(f"give the command after --, or a configuration with [jobs.{training}]")
    job = job or JobSettings(command=command)
    overriding = find_overriding(command or job.command)
    if overriding:
        raise ValueError(f"omit {', '.join(overriding)}: the leader decides that, and the command line outweighs it")
    shared = job.snapshot_replicas if snapshots is None else str(snapshots.absolute())
    job = msgspec.structs.replace(
        job,
        command=command or job.command,
        cwd=job.cwd or str(Path.cwd()),
        autostart=True,
        standby=False,
        # One node's snapshot is no state of all ranks: they are taken only where all nodes share a folder.
        snapshot_every_s=0.0 if shared is None else job.snapshot_every_s,
        snapshot_replicas=shared,
        remedies=Remedies(enabled=False),  # ranks that run with different settings are no training
        budget=Budget(
            restarts=UNLIMITED, restarts_per_cause=UNLIMITED, restarts_per_period=UNLIMITED, backoff_s=(0.0,)
        ),
    )
    own = msgspec.structs.replace(
        settings.supervisor if config is not None else SupervisorSettings(),
        state_dir=str(state),
        launcher="held",
    )
    # The leader sends one alert for an incident, whatever number of nodes see it.
    return msgspec.structs.replace(settings, supervisor=own, jobs={training: job}, alerts={})


def move_database(settings: Settings, folder: Path) -> Settings:
    """Return the settings with the database on a disk of this node, whatever its state folder lies on.

    SQLite's log is shared memory, which no network file system keeps alike. Raises OSError, or ValueError where the
    folder is another user's: anyone may make one in /tmp.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ValueError(f"--local-dir {folder}: is not a folder of this user alone; `chmod 700` it, or name another")
    own = msgspec.structs.replace(settings.supervisor, database=f"sqlite:///{database_of(settings, folder)}")
    return msgspec.structs.replace(settings, supervisor=own)


def database_of(settings: Settings, folder: Path) -> Path:
    """Return where the database of a state folder lies in the folder of the node's own disk."""
    name = hashlib.sha256(os.fsencode(settings.supervisor.state_dir)).hexdigest()[:16]
    return folder.absolute() / f"{name}.db"


def copy_database(settings: Settings, folder: Path) -> None:
    """Copy a database that was moved to where it would have been: a node may be given back with its disk erased."""
    moved, place = database_of(settings, folder), Path(settings.supervisor.state_dir) / DATABASE
    whole = moved.with_suffix(".copy")
    try:
        copy(moved, whole)
        apart_within(COPY_LIMIT_S, copy_over, whole, place)
    except (OSError, RuntimeError, sqlite3.Error) as error:
        log.warning("node.database_not_copied", extra={"fields": {"from": str(moved), "why": str(error)}})
    finally:
        whole.unlink(missing_ok=True)


def find_own_address(host: str, port: int) -> str:
    """Return the address from which this node reaches the leader; nothing is sent. Raises OSError."""
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
