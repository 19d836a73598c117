"""`supervisorctl web`: opens the page in a browser and serves it until it is ended."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import click

from supervisor.cli.app import App, end, pass_app
from supervisor.cli.errors import CliError
from supervisor.web.clock import now_unix_s
from supervisor.web.configured import IDLE_S, NotConfiguredError, PageSettings, SettingsReading
from supervisor.web.daemon import Daemon
from supervisor.web.door import LOOPBACK_NAMES, Door
from supervisor.web.login import REVOKE, TOKEN, ask_login
from supervisor.web.page_data import PageData
from supervisor.web.record import Record
from supervisor.web.sessions import Sessions

LOOPBACK = "127.0.0.1"
SERVICE = "rocm-supervisor-web"
EVERYWHERE = frozenset({"0.0.0.0", "::", "[::]"})  # noqa: S104  # compared, not bound
BROWSERS = ("xdg-open", "x-www-browser", "www-browser", "open")


@click.command("web")
@click.option("--listen", default=LOOPBACK, show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), metavar="PORT", help="Port; by default a free one.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A further name that the page answers to.")
@click.option("--tls-certificate", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE")
@click.option("--tls-key", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE")
@click.option("--no-browser", is_flag=True, help="Print the address only; the first line of the output.")
@click.option("--token", "asks_token", is_flag=True, help="Print a token for the page that runs as a service.")
@click.option("--revoke", is_flag=True, help="End every session of the page that runs as a service.")
@click.option("--activated", is_flag=True, hidden=True)
@click.option("--idle-s", default=IDLE_S, hidden=True)
@click.option("--ssh", is_flag=True, help="Print the command that forwards the port to your own machine.")
@pass_app
def command(  # noqa: PLR0913  # one argument each option
    app: App, *, listen: str, port: int, hosts: tuple[str, ...], tls_certificate: Path | None, tls_key: Path | None,
    no_browser: bool, ssh: bool, asks_token: bool, revoke: bool, activated: bool, idle_s: float,
) -> None:  # fmt: skip
    """Show trainings, charts and incidents in a browser, until Ctrl-C.

    The address holds a token that is good once, for ten minutes. Nothing can be changed from the page. An address other
    than the loopback's needs TLS: --tls-certificate and --tls-key.
    """
    if activated:
        reading = _begin_reading(app)
        from supervisor.web.service import run  # noqa: PLC0415 - imports a server, as the settings are being read

        settings = _await_settings(app, reading)
        end(run(_build_data(app, settings), settings, os.environ, idle_s))
    if asks_token or revoke:
        _ask_service(hosts, revoke=revoke)
        return
    tls = _pair_tls(tls_certificate, tls_key)
    door = _open_door(listen, port, hosts, tls=tls is not None)
    sessions = Sessions(now_unix_s)
    address = f"{'https' if tls else 'http'}://{_name(door, hosts)}/#{sessions.make_token()}"
    click.echo(address)
    if ssh:
        click.echo(f"on your own machine: ssh -N -L {door.port}:{LOOPBACK}:{door.port} {_destination()}")
    reading = _begin_reading(app)
    from supervisor.web.serve import serve  # noqa: PLC0415 - imports a server, as the settings are being read

    data = _build_data(app, _await_settings(app, reading))
    try:
        with tempfile.TemporaryDirectory(prefix="rocm-supervisor-web-") as folder:
            if not (no_browser or ssh):
                _open_browser(address, Path(folder))
            asyncio.run(serve([door], data, sessions, tls=tls))
    except OSError as error:
        raise CliError(f"{listen}: {error}", "", "not_served") from error


def _ask_service(hosts: tuple[str, ...], *, revoke: bool) -> None:
    """Print what the service answers: a token, as an address where its host is given, or how many sessions ended."""
    from supervisor.web.service import LOGIN  # noqa: PLC0415 - imports a server

    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", "/run"))
    places = (runtime / SERVICE / LOGIN, Path("/run") / SERVICE / LOGIN)
    path = next((place for place in places if place.exists()), places[-1])
    try:
        answer = ask_login(path, REVOKE if revoke else TOKEN)
    except OSError as error:
        remedy = "systemctl enable --now rocm-supervisor-web.socket; without a service use `supervisorctl web`"
        raise CliError(f"{path}: {error.strerror or error}", remedy, "not_served") from error
    if revoke:
        click.echo(f"{answer} sessions ended")
    else:
        click.echo(f"https://{hosts[0]}/#{answer}" if hosts else answer)


def _begin_reading(app: App) -> SettingsReading:
    try:
        return SettingsReading(app.config, must_exist=app.config_given is not None)
    except NotConfiguredError as error:
        raise _as_cli_error(app, error) from error


def _await_settings(app: App, reading: SettingsReading) -> PageSettings:
    try:
        return reading.await_settings()
    except NotConfiguredError as error:
        raise _as_cli_error(app, error) from error


def _as_cli_error(app: App, error: NotConfiguredError) -> CliError:
    return CliError(str(error), f"supervisorctl config check {app.config}", "bad_config")


def _pair_tls(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """Return both files, None where none is given. Raises UsageError for one alone, CliError for unusable ones."""
    if certificate is not None and key is not None:
        _check_tls(certificate, key)
        return certificate, key
    if certificate is not None or key is not None:
        raise click.UsageError("--tls-certificate and --tls-key must be given together")
    return None


def _check_tls(certificate: Path, key: Path) -> None:
    from supervisor.web.service import NotServableError, check_tls  # noqa: PLC0415 - imports a server

    try:
        check_tls(certificate, key)
    except NotServableError as error:
        raise CliError(str(error), "openssl x509 -in CERTIFICATE -noout -text shows what it holds", "no_tls") from error


def _build_data(app: App, settings: PageSettings) -> PageData:
    return PageData(Record(Path(settings.database)), Daemon(str(app.socket)), app.config)


def _open_door(listen: str, port: int, hosts: tuple[str, ...], *, tls: bool) -> Door:
    """Return the listening socket; raise CliError where it cannot be made, or would be open without TLS."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(listen, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.bind(address)
    except OSError as error:
        raise CliError(f"cannot listen on {listen} port {port}: {error.strerror or error}", "", "not_served") from error
    door = Door(listening, frozenset(name.lower() for name in hosts) | _own_name(listen), tls)
    if not door.is_loopback and not tls:
        listening.close()
        raise CliError(
            f"{listen} can be reached from other machines: without TLS the page and its token can be read on the way",
            "give --tls-certificate and --tls-key, or omit --listen and use --ssh",
            "needs_tls",
        )
    listening.listen()
    return door


def _own_name(listen: str) -> frozenset[str]:
    name = f"[{listen.lower()}]" if ":" in listen else listen.lower()
    if name in EVERYWHERE:
        return frozenset({socket.gethostname().lower()})
    return frozenset() if name in LOOPBACK_NAMES else frozenset({name})


def _name(door: Door, hosts: tuple[str, ...]) -> str:
    if hosts:
        return hosts[0] if ":" in hosts[0] else f"{hosts[0]}:{door.port}"
    address = str(door.listening.getsockname()[0])
    address = socket.gethostname() if address in EVERYWHERE else address
    return f"[{address}]:{door.port}" if ":" in address else f"{address}:{door.port}"


def _destination() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def _open_browser(address: str, folder: Path) -> None:
    """Open the address with the desktop's own program.

    Every user of the machine can read the arguments of a process: it is given a file of this user alone.
    """
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        click.echo("no browser was found here: open the address above, or use --ssh", err=True)
        return
    file = folder / "open.html"
    file.touch(mode=0o600)
    file.write_text(f'<meta http-equiv="refresh" content="0; url={address}">', encoding="utf-8")
    subprocess.Popen(
        [program, file.as_uri()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
