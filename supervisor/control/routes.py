"""Every route of the control socket and how a request becomes a call of the View; no other name is served."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from supervisor.control import types
from supervisor.control.peers import Peer
from supervisor.control.view import BadRequest, NoSuchIncident, NotAllowed, Refusal, TooLarge, TooSlow, View
from supervisor.core.events import Ask

log = logging.getLogger(__name__)

BODY_LIMIT_BYTES = 16 * 1024
BODY_LIMIT_S = 5.0
VIEW_LIMIT_S = 10.0
INCIDENTS_AT_ONCE = 1000
LINES_AT_ONCE = 10_000

T = TypeVar("T")
Body = TypeVar("Body", bound=msgspec.Struct)
Endpoint = Callable[[Request], Awaitable[Response]]


def application(view: View, socket_gid: int) -> Starlette:
    """Return the ASGI application that serves `view`; `socket_gid` is the group whose members may act."""
    routes = [Route(path, answer, methods=["GET"]) for path, answer in _reading(view).items()]
    routes += [Route(path, answer, methods=["POST"]) for path, answer in _acting(view, socket_gid).items()]
    served = Starlette(
        routes=routes,
        exception_handlers={Refusal: _refused, HTTPException: _not_served, Exception: _failed},
    )
    served.router.redirect_slashes = False
    return served


def _reading(view: View) -> dict[str, Endpoint]:
    async def status(request: Request) -> Response:
        return answer(await asked(view.status))

    async def incidents(request: Request) -> Response:
        job, limit = request.query_params.get("job"), whole(request, "limit", 50, INCIDENTS_AT_ONCE)
        return answer(types.History(incidents=list(await asked(view.incidents, job, limit))))

    async def incident(request: Request) -> Response:
        wanted = request.path_params["id"]
        found = await asked(view.incident, wanted)
        if found is None:
            raise NoSuchIncident(f"no incident {wanted!r} is recorded", "supervisorctl history lists them")
        return answer(found)

    async def checkpoints(request: Request) -> Response:
        job = request.path_params["job"]
        return answer(types.Checkpoints(job=job, checkpoints=list(await asked(view.checkpoints, job))))

    async def account(request: Request) -> Response:
        return answer(await asked(view.account, request.path_params["job"]))

    async def output(request: Request) -> Response:
        after, attempt = whole(request, "after", None, 1 << 62), whole(request, "attempt", None, 1 << 31)
        lines = whole(request, "lines", 100, LINES_AT_ONCE)
        return answer(await asked(view.output, request.path_params["job"], after, attempt, lines))

    async def doctor(request: Request) -> Response:
        return answer(types.Doctor(lines=list(await asked(view.doctor))))

    return {
        "/v1/status": status,
        "/v1/incidents": incidents,
        "/v1/incidents/{id}": incident,
        "/v1/jobs/{job}/checkpoints": checkpoints,
        "/v1/jobs/{job}/account": account,
        "/v1/jobs/{job}/output": output,
        "/v1/doctor": doctor,
    }


def _acting(view: View, socket_gid: int) -> dict[str, Endpoint]:
    def asking(ask: Ask) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            peer, job = actor(request, socket_gid), request.path_params["job"]
            fresh = (await body(request, types.StartBody)).fresh if ask is Ask.START else False
            if ask is not Ask.START:
                await body(request, types.EmptyBody)
            await asked(view.ask, job, ask, peer.name, fresh=fresh)
            _note("control.asked", peer, job=job, ask=ask.value, fresh=fresh)
            return answer(types.Accepted(job=job, ask=ask.value, by=peer.name), status=202)

        return endpoint

    async def reload(request: Request) -> Response:
        peer = actor(request, socket_gid)
        await body(request, types.EmptyBody)
        report = await asked(view.reload)
        _note("control.reloaded", peer, applied=len(report.applied), problems=len(report.problems))
        return answer(report)

    jobs = {f"/v1/jobs/{{job}}/{ask.value}": asking(ask) for ask in (Ask.START, Ask.STOP, Ask.RESTART)}
    return {**jobs, "/v1/reload": reload}


# --- parts of a request -------------------------------------------------------------------------------------------


def actor(request: Request, socket_gid: int) -> Peer:
    """Return the peer where it may act; raise NotAllowed, and log it, where it may only look."""
    peer: Peer = request.scope["peer"]
    if not peer.may_act(socket_gid):
        log.warning("control.refused", extra={"fields": {"uid": peer.uid, "pid": peer.pid, "path": request.url.path}})
        raise NotAllowed(
            f"{peer.name} may look but not act",
            f"needed: root, the daemon's own user, or a member of group {socket_gid} (the socket's)",
        )
    return peer


async def body(request: Request, kind: type[Body]) -> Body:
    """Return the typed body; no bytes at all stand for `{}`."""
    raw = b""
    try:
        with anyio.fail_after(BODY_LIMIT_S):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > BODY_LIMIT_BYTES:
                    raise TooLarge(f"the body is longer than {BODY_LIMIT_BYTES} bytes")
    except TimeoutError:
        raise TooSlow(f"the body did not come within {BODY_LIMIT_S:.0f} s") from None
    except ClientDisconnect:
        raise BadRequest("the body ended early") from None
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not what is wanted: {error}") from None


def whole(request: Request, name: str, default: T, largest: int) -> int | T:
    """Return a whole number of the query, or `default` where it is not given."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= largest):
        raise BadRequest(f"{name} is no whole number from 0 to {largest}")
    return int(text)


async def asked(call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Return the View's answer, called in a thread so that a slow one holds up nobody else."""
    try:
        with anyio.fail_after(VIEW_LIMIT_S):
            return await anyio.to_thread.run_sync(partial(call, *arguments, **named), abandon_on_cancel=True)
    except TimeoutError:
        raise TooSlow(f"the daemon did not answer within {VIEW_LIMIT_S:.0f} s", "see its log") from None


def answer(value: types.Answer, status: int = 200) -> Response:
    """Return `value` as JSON."""
    return Response(msgspec.json.encode(value) + b"\n", status, media_type="application/json")


# --- what is no success ---------------------------------------------------------------------------------------------


async def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    return _failure(refusal.status, refusal.code, str(refusal), refusal.remedy)


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _failure(error.status_code, "not_served", f"{request.method} {request.url.path}: {error.detail}")


async def _failed(request: Request, error: Exception) -> Response:
    """Answer a defect of ours; Starlette raises it on after this, so that the log has the traceback."""
    return _failure(500, "failed", f"the daemon failed: {type(error).__name__}", "see its log")


def _failure(status: int, code: str, message: str, remedy: str = "") -> Response:
    return answer(types.Failure(error=types.ErrorBody(code=code, message=message, remedy=remedy)), status)


def _note(event: str, peer: Peer, **fields: object) -> None:
    log.info(event, extra={"fields": {"uid": peer.uid, "pid": peer.pid, **fields}})
