"""The routes of the control socket: the live state, the record (READS), and the actions of those who may act."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from supervisor.children.worker_threads import WorkerThreads, is_without_room
from supervisor.control import types
from supervisor.control.origin import OriginGuard
from supervisor.control.peers import Peer
from supervisor.control.record_view import READS, Parameters, Read
from supervisor.control.refusals import BadRequest, NoRoom, NotAllowed, Refusal, TooLarge, TooSlow
from supervisor.control.view import Tuning, View
from supervisor.core.events import Ask
from supervisor.json_bytes import encode_json
from supervisor.metrics.exposition import text_of
from supervisor.metrics.formats import CLASSIC, OPENMETRICS, prefers_openmetrics
from supervisor.store.errors import ArchiveError

log = logging.getLogger(__name__)

BODY_LIMIT_BYTES = 16 * 1024
BODY_LIMIT_S = 5.0
VIEW_LIMIT_S = 10.0
ANSWER_LIMIT_BYTES = 32 << 20
"""Half of what supervisorctl reads."""

RECORD_UNREADABLE = "record_unreadable"
RECORD_REMEDY = (
    "trainings are supervised without it; supervisorctl status names the problem of the record, dmesg that of the disk"
)

NO_ROOM_REMEDY = (
    "try again; trainings are supervised meanwhile. `ulimit -u`, and TasksMax= and MemoryMax= of the daemon's unit or "
    "control group, limit it"
)

_live = WorkerThreads("answer", 8)
_looking = WorkerThreads("answer by files", 8)
"""Threads of what reads files of trainings."""
_recorded = WorkerThreads("answer by the record", 4)
"""Threads of what reads the record."""
ANSWERING = (_live, _looking, _recorded)

T = TypeVar("T")
Body = TypeVar("Body", bound=msgspec.Struct)
Endpoint = Callable[[Request], Awaitable[Response]]


def application(view: View, socket_gid: int, tuning: Tuning | None = None) -> OriginGuard:
    """Return the ASGI application that serves `view`; `socket_gid` is the group whose members may act."""
    reading = {**_live_endpoints(view), **{read.route: _record_endpoint(view, read) for read in READS}}
    routes = [Route(path, answer, methods=["GET"]) for path, answer in reading.items()]
    actions = {**_job_actions(view, socket_gid), **_alert_actions(view, socket_gid)}
    routes += [Route(path, answer, methods=["POST"]) for path, answer in actions.items()]
    if tuning is not None:
        routes += _tuning_routes(tuning, socket_gid)
    served = Starlette(
        routes=routes,
        exception_handlers={
            Refusal: _answer_refusal,
            ArchiveError: _answer_unreadable_record,
            HTTPException: _not_served,
            Exception: _answer_defect,
        },
    )
    served.router.redirect_slashes = False
    return OriginGuard(served, _as_failure)


def _live_endpoints(view: View) -> dict[str, Endpoint]:
    async def status(request: Request) -> Response:
        # The gauges are most of the work and of the answer: who looks again and again can do without them.
        watched = request.query_params.get("watched") != "0"
        return answer(await asked(lambda: view.status(watched=watched)))

    async def doctor(request: Request) -> Response:
        return answer(types.Doctor(lines=list(await asked(view.doctor, _looking))))

    async def metrics(request: Request) -> Response:
        openmetrics = prefers_openmetrics(request.headers.get("accept", ""))
        text = text_of(await asked(view.metrics), openmetrics=openmetrics)
        return Response(text, headers={"Content-Type": OPENMETRICS if openmetrics else CLASSIC})

    return {"/v1/status": status, "/v1/doctor": doctor, "/metrics": metrics}


def _record_endpoint(view: View, read: Read) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        given = Parameters(request.path_params, request.query_params)
        threads = _looking if read.looks_at_files else _recorded
        return answer(await asked(lambda: read.answer(view.record, given), threads))

    return endpoint


def _job_actions(view: View, socket_gid: int) -> dict[str, Endpoint]:
    def asking(ask: Ask) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            peer, job = actor(request, socket_gid), request.path_params["job"]
            fresh = (await body(request, types.StartBody)).fresh if ask is Ask.START else False
            if ask is not Ask.START:
                await body(request, types.EmptyBody)
            await asked(lambda: view.ask(job, ask, peer.name, fresh=fresh))
            _log_action("control.asked", peer, job=job, ask=ask.value, fresh=fresh)
            return answer(types.Accepted(job=job, ask=ask.value, by=peer.name), status=202)

        return endpoint

    async def reload(request: Request) -> Response:
        peer = actor(request, socket_gid)
        dry_run = (await body(request, types.ReloadBody)).dry_run
        report = await asked(lambda: view.reload(dry_run=dry_run), _looking)
        counts = {"applied": len(report.applied), "problems": len(report.problems)}
        _log_action("control.reload_tried" if dry_run else "control.reloaded", peer, **counts)
        return answer(report)

    async def forget(request: Request) -> Response:
        peer, job = actor(request, socket_gid), request.path_params["job"]
        await body(request, types.EmptyBody)
        forgotten = await asked(lambda: view.forget(job), _looking)
        _log_action("control.forgotten", peer, job=job, rows=forgotten.rows)
        return answer(forgotten)

    async def keep_estimate(request: Request) -> Response:
        peer, job = actor(request, socket_gid), request.path_params["job"]
        given = await body(request, types.EstimateBody)
        kept = await asked(lambda: view.keep_estimate(job, given))
        _log_action("control.estimate_kept", peer, job=job, largest=given.largest)
        return answer(kept)

    jobs = {f"/v1/jobs/{{job}}/{ask.value}": asking(ask) for ask in (Ask.START, Ask.STOP, Ask.RESTART)}
    others = {"/v1/jobs/{job}/forget": forget, "/v1/jobs/{job}/estimate": keep_estimate, "/v1/reload": reload}
    return {**jobs, **others}


def _alert_actions(view: View, socket_gid: int) -> dict[str, Endpoint]:
    async def test_alert(request: Request) -> Response:
        peer, receiver = actor(request, socket_gid), request.path_params["receiver"]
        await body(request, types.EmptyBody)
        queued = await asked(lambda: view.send_test_alert(receiver))
        _log_action("control.alert_tested", peer, receiver=receiver)
        return answer(types.AlertQueued(id=queued, receiver=receiver), status=202)

    async def mute_alerts(request: Request) -> Response:
        peer, given = actor(request, socket_gid), await body(request, types.MuteBody)
        muted = await asked(lambda: view.mute_alerts(given.receiver, given.seconds))
        _log_action("control.alerts_muted", peer, receivers=muted.receivers, seconds=given.seconds)
        return answer(muted)

    async def acknowledge(request: Request) -> Response:
        peer, given = actor(request, socket_gid), await body(request, types.AcknowledgeBody)
        acknowledged = await asked(lambda: view.acknowledge_alert(given.incident))
        _log_action("control.alert_acknowledged", peer, job=acknowledged.job, incident=acknowledged.incident)
        return answer(acknowledged)

    alerts = {"/v1/alerts/{receiver}/test": test_alert, "/v1/alerts/mute": mute_alerts}
    return {**alerts, "/v1/alerts/ack": acknowledge}


def _tuning_routes(tuning: Tuning, socket_gid: int) -> list[Route]:
    path = "/v1/jobs/{job}/tune"

    async def report(request: Request) -> Response:
        return answer(await asked(lambda: tuning.tune_report(request.path_params["job"])))

    async def tune(request: Request) -> Response:
        peer, job = actor(request, socket_gid), request.path_params["job"]
        given = await body(request, types.TuneBody)
        found = await asked(lambda: tuning.tune(job, given), _looking)
        _log_action("control.tuned", peer, job=job, dry_run=given.dry_run, stop=given.stop, undo=given.undo)
        return answer(found)

    return [Route(path, report, methods=["GET"]), Route(path, tune, methods=["POST"])]


# --- parts of a request -------------------------------------------------------------------------------------------


def actor(request: Request, socket_gid: int) -> Peer:
    """Return the peer where it may act; raise NotAllowed, and log it, where it may only read."""
    peer: Peer = request.scope["peer"]
    if not peer.may_act(socket_gid):
        log.warning("control.refused", extra={"fields": {"uid": peer.uid, "pid": peer.pid, "path": request.url.path}})
        raise NotAllowed(
            f"{peer.name} may read but not act",
            f"needed: root, the daemon's own user, or a member of group {socket_gid} (the socket's)",
        )
    return peer


async def body(request: Request, kind: type[Body]) -> Body:
    """Return the typed body; an empty body stands for `{}`."""
    raw = b""
    try:
        with anyio.fail_after(BODY_LIMIT_S):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > BODY_LIMIT_BYTES:
                    raise TooLarge(f"the request body is longer than {BODY_LIMIT_BYTES} bytes")
    except TimeoutError:
        raise TooSlow(f"the request body was not received within {BODY_LIMIT_S:.0f} s") from None
    except ClientDisconnect:
        raise BadRequest("the connection ended before the request body was complete") from None
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the request body is not valid: {error}") from None


async def asked(call: Callable[[], T], threads: WorkerThreads = _live) -> T:
    """Return the View's answer, called in a thread so that a slow call delays no other request.

    Calls that may hang, because they read a disk, have threads of their own.
    """
    try:
        with anyio.fail_after(VIEW_LIMIT_S):
            return await asyncio.wrap_future(threads.do(call))
    except TimeoutError:
        raise TooSlow(f"the daemon did not answer within {VIEW_LIMIT_S:.0f} s", "see the daemon's log") from None
    except (RuntimeError, MemoryError) as error:
        if not is_without_room(error):
            raise
        log.warning("control.no_room", extra={"fields": {"error": str(error) or "no memory"}})
        raise NoRoom("the daemon has no room for the thread that would answer", NO_ROOM_REMEDY) from None


def answer(value: msgspec.Struct, status: int = 200) -> Response:
    """Return `value` as JSON, or a failure where that is longer than the client reads."""
    body = encode_json(value)
    if len(body) > ANSWER_LIMIT_BYTES:
        log.error("control.answer_too_long", extra={"fields": {"kind": type(value).__name__, "bytes": len(body)}})
        long = types.ErrorBody(
            code="too_long",
            message=f"the answer has {len(body)} bytes, limit {ANSWER_LIMIT_BYTES}",
            remedy="set a lower limit, or ask for one job",
        )
        body, status = encode_json(types.Failure(error=long)), 500
    return Response(body + b"\n", status, media_type="application/json")


# --- failures -------------------------------------------------------------------------------------------------------


async def _answer_refusal(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    return _as_failure(refusal)


def _as_failure(refusal: Refusal) -> Response:
    return _answer_failure(refusal.status, refusal.code, str(refusal), refusal.remedy)


async def _answer_unreadable_record(request: Request, error: Exception) -> Response:
    log.error("control.record_unreadable", extra={"fields": {"path": request.url.path, "error": str(error)}})
    return _answer_failure(503, RECORD_UNREADABLE, str(error), RECORD_REMEDY)


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer_failure(error.status_code, "not_served", f"{request.method} {request.url.path}: {error.detail}")


async def _answer_defect(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception; Starlette raises it again after this, so that the log has the traceback."""
    return _answer_failure(500, "failed", f"the daemon failed: {type(error).__name__}", "see the daemon's log")


def _answer_failure(status: int, code: str, message: str, remedy: str = "") -> Response:
    return answer(types.Failure(error=types.ErrorBody(code=code, message=message, remedy=remedy)), status)


def _log_action(event: str, peer: Peer, **fields: object) -> None:
    log.info(event, extra={"fields": {"uid": peer.uid, "pid": peer.pid, **fields}})
