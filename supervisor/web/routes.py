"""The routes of the page: its files, the session, and what it shows, as JSON; GET alone but for the session."""

from __future__ import annotations

import gzip
import logging
import math
from collections.abc import Awaitable, Callable
from http.cookies import CookieError, SimpleCookie
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from supervisor.control.client import ControlError
from supervisor.core.sanitize import sanitize
from supervisor.json_bytes import encode_json
from supervisor.metrics.formats import CLASSIC, OPENMETRICS, prefers_openmetrics
from supervisor.web.assets import load_assets
from supervisor.web.door import Application, Door, Guard
from supervisor.web.page_data import PageData
from supervisor.web.record import RecordError
from supervisor.web.sessions import SESSION_LIFE_S, Sessions

log = logging.getLogger(__name__)

KEY_HEADER = "x-page-key"
BODY_LIMIT_BYTES = 1024
COMPRESSED_FROM_BYTES = 1024
ANSWER_LIMIT_S = 20.0
T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]


class SessionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /session."""

    token: str


class Unauthorized(HTTPException):
    """The request belongs to no session."""

    def __init__(self) -> None:
        super().__init__(401, "no session: open the address that supervisorctl web prints; its token is good once")


def application(data: PageData, sessions: Sessions, door: Door) -> Guard:
    """Return the ASGI application that serves the page at one socket."""
    routes = [Route(path, endpoint, methods=["GET"]) for path, endpoint in _file_endpoints().items()]
    routes += [
        Route("/session", _session_endpoint(sessions), methods=["POST"]),
        Route("/metrics", _metrics_endpoint(data, sessions), methods=["GET"]),
        Route("/api/trainings/{training}/tune.png", _picture_endpoint(data, sessions), methods=["GET"]),
        *(Route(path, _data_endpoint(answer, sessions), methods=["GET"]) for path, answer in _ANSWERS(data).items()),
    ]
    handlers = {HTTPException: _answer_refusal, RecordError: _answer_trouble, ControlError: _answer_trouble}
    others = {ClientDisconnect: _answer_departed, Exception: _answer_defect}
    served = Starlette(routes=routes, exception_handlers={**handlers, **others})
    served.router.redirect_slashes = False
    return Guard(door, served, _refuse_foreign)


def _ANSWERS(data: PageData) -> dict[str, Callable[[Request], object]]:  # noqa: N802  # a table
    """Return what answers each route of data; called in a thread."""
    return {
        "/api/overview": lambda _: data.overview(),
        "/api/trainings/{training}": lambda request: data.training(_text(request, "training")),
        "/api/trainings/{training}/steps": lambda request: data.steps(
            _text(request, "training"), _number(request, "from"), _number(request, "to"), _points(request)
        ),
        "/api/trainings/{training}/samples": lambda request: data.samples(
            _text(request, "training"), _number(request, "from"), _number(request, "to"), _points(request)
        ),
        "/api/trainings/{training}/log": lambda request: data.output(
            _text(request, "training"), _integer(request, "after"), _integer(request, "attempt")
        ),
        "/api/trainings/{training}/account": lambda request: data.account(_text(request, "training")),
        "/api/trainings/{training}/tune": lambda request: data.tune(_text(request, "training")),
        "/api/incidents/{incident}": lambda request: data.incident(_text(request, "incident")),
        "/api/compare": lambda request: data.compare(_chosen(request), _points(request)),
        "/api/gpus": lambda request: data.gpus(_number(request, "from"), _number(request, "to"), _points(request)),
        "/api/alerts": lambda _: data.alerts(),
    }


# --- endpoints ------------------------------------------------------------------------------------------------------


def _file_endpoints() -> dict[str, Endpoint]:
    def serving(content: bytes, media_type: str, cached: str) -> Endpoint:
        headers = {"Content-Encoding": "gzip", "Cache-Control": cached, "Vary": "Accept-Encoding"}

        async def endpoint(request: Request) -> Response:
            if "gzip" in request.headers.get("accept-encoding", ""):
                return Response(content, headers={**headers, "Content-Type": media_type})
            plain = {"Content-Type": media_type, "Cache-Control": cached}
            return Response(gzip.decompress(content), headers=plain)

        return endpoint

    kept, asked = "private, max-age=31536000, immutable", "no-cache"
    return {
        path: serving(asset.content, asset.media_type, kept if asset.immutable else asked)
        for path, asset in load_assets().items()
    }


def _session_endpoint(sessions: Sessions) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_LIMIT_BYTES:
                raise HTTPException(413, f"the body is longer than {BODY_LIMIT_BYTES} bytes")
        try:
            token = msgspec.json.decode(body, type=SessionBody).token
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HTTPException(400, "the body must be a JSON object with the key token") from error
        if sessions.is_exhausted:
            raise HTTPException(429, "too many wrong tokens; try again in a minute")
        made = sessions.open(token)
        if made is None:
            log.warning("web.wrong_token")
            raise HTTPException(401, "this token is wrong, was used before, or is older than ten minutes")
        door: Door = request.scope["door"]
        answer = _as_json(request, {"key": made.key})
        answer.set_cookie(
            _cookie_name(request), made.cookie, max_age=int(SESSION_LIFE_S), httponly=True, samesite="strict",
            secure=door.tls, path="/",
        )  # fmt: skip
        log.info("web.session_opened")
        return answer

    return endpoint


def _metrics_endpoint(data: PageData, sessions: Sessions) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        door: Door = request.scope["door"]
        if not door.is_unix:  # a unix socket is reached by its group alone
            _check_session(request, sessions)
        openmetrics = prefers_openmetrics(request.headers.get("accept", ""))
        text = await _ask_in_thread(lambda: data.metrics(OPENMETRICS if openmetrics else CLASSIC))
        return Response(text, headers={"Content-Type": OPENMETRICS if openmetrics else CLASSIC})

    return endpoint


def _data_endpoint(answer: Callable[[Request], object], sessions: Sessions) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        _check_session(request, sessions)
        return await _ask_in_thread(lambda: _as_json(request, answer(request)))

    return endpoint


def _picture_endpoint(data: PageData, sessions: Sessions) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        _check_session(request, sessions)
        name, width, is_dark = _text(request, "training"), _integer(request, "width"), "dark" in request.query_params
        png = await _ask_in_thread(lambda: data.tune_picture(name, width, is_dark=is_dark))
        return Response(png, headers={"Cache-Control": "no-store", "Content-Type": "image/png"})

    return endpoint


def _check_session(request: Request, sessions: Sessions) -> None:
    """Raise Unauthorized unless the request has both secrets of a session."""
    key = request.headers.get(KEY_HEADER, "")
    if not sessions.is_open(_read_cookie(request), key):
        raise Unauthorized


def _cookie_name(request: Request) -> str:
    """Return the name of the session's cookie: browsers send the cookies of every port of a host to each of them."""
    port = request.url.port or (443 if request.url.scheme == "https" else 80)
    return f"rocm_supervisor_{port}"


def _read_cookie(request: Request) -> str:
    cookies: SimpleCookie = SimpleCookie()
    try:
        cookies.load(request.headers.get("cookie", ""))
    except CookieError:
        return ""
    found = cookies.get(_cookie_name(request))
    return "" if found is None else found.value


async def _ask_in_thread(call: Callable[[], T]) -> T:
    """Return the answer of a call that reads files, made in a thread."""
    try:
        with anyio.fail_after(ANSWER_LIMIT_S):
            return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    except TimeoutError:
        raise HTTPException(504, f"no answer within {ANSWER_LIMIT_S:.0f} s") from None


# --- parts of a request ---------------------------------------------------------------------------------------------


def _text(request: Request, name: str) -> str:
    return str(request.path_params[name])


def _number(request: Request, name: str) -> float | None:
    """Return a number of the query, Unix seconds; None where it is not given."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e11:
        raise HTTPException(400, f"{name} must be Unix seconds")
    return value


def _integer(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise HTTPException(400, f"{name} must be a whole number")
    return int(text)


def _points(request: Request) -> int:
    return max(10, min(_integer(request, "points") or 400, 1200))


def _chosen(request: Request) -> list[tuple[str, int | None]]:
    """Return the attempts to compare: `of=TRAINING` or `of=TRAINING:ATTEMPT`, each."""
    chosen: list[tuple[str, int | None]] = []
    for text in request.query_params.getlist("of"):
        training, _, attempt = text.partition(":")
        if attempt and not (attempt.isascii() and attempt.isdecimal() and len(attempt) < 10):
            raise HTTPException(400, "of must be TRAINING or TRAINING:ATTEMPT")
        chosen.append((training, int(attempt) if attempt else None))
    return chosen


# --- answers --------------------------------------------------------------------------------------------------------


def _as_json(request: Request, value: object, status: int = 200) -> Response:
    body = encode_json(value)
    headers = {"Cache-Control": "no-store", "Content-Type": "application/json"}
    if len(body) >= COMPRESSED_FROM_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, 5, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, headers)


def _answer_failure(request: Request, status: int, message: str, remedy: str = "") -> Response:
    error = {"message": sanitize(message), "remedy": sanitize(remedy)}
    return _as_json(request, {"error": error}, status)


async def _answer_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer_failure(request, error.status_code, error.detail)


async def _answer_departed(request: Request, _: Exception) -> Response:
    """Answer whoever left amid the body; it is not read, and is no defect of the page to be logged as such."""
    return _answer_failure(request, 400, "the body of the request broke off")


async def _answer_trouble(request: Request, error: Exception) -> Response:
    if isinstance(error, ControlError):
        status = 404 if error.code.startswith("no_such") else 503
        return _answer_failure(request, status, str(error), error.remedy)
    return _answer_failure(request, 503, str(error))


async def _answer_defect(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception; Starlette raises it again after this, so that the log has the traceback."""
    return _answer_failure(
        request, 500, f"the page failed: {type(error).__name__}", "see the journal of rocm-supervisor-web"
    )


def _refuse_foreign(why: str) -> Application:
    log.warning("web.foreign_request: %s", why)
    body = encode_json({"error": {"message": why, "remedy": "supervisorctl web prints the right address"}})
    return Response(body, 403, {"Content-Type": "application/json", "Cache-Control": "no-store"})
