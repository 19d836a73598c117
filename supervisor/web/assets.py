"""The files of the page: a fixed table, compressed once, each named by its hash so that a browser keeps it for ever."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files

TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
NAMES = ("uPlot.iife.min.js", "uPlot.min.css", "page.css", "page.js", "icon.svg")
INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is sent."""

    content: bytes
    """Compressed by gzip."""
    media_type: str
    immutable: bool


def load_assets() -> dict[str, Asset]:
    """Return every file by the path that it is served at; a request's path is only ever looked up in here."""
    folder = files("supervisor.web").joinpath("static")
    index = folder.joinpath(INDEX).read_text(encoding="utf-8")
    served = {}
    for name in NAMES:
        content = folder.joinpath(name).read_bytes()
        path = f"/static/{hashlib.sha256(content).hexdigest()[:16]}/{name}"
        index = index.replace(f'"{name}"', f'"{path}"')
        served[path] = Asset(_compress(content), TYPES[name.rpartition(".")[2]], immutable=True)
    served["/"] = Asset(_compress(index.encode()), "text/html; charset=utf-8", immutable=False)
    return served


def _compress(content: bytes) -> bytes:
    return gzip.compress(content, 9, mtime=0)
