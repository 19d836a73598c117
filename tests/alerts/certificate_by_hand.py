"""A certificate of one's own for hooks.example."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path) -> Path:
    """Return a file with a certificate for hooks.example and its key."""
    file = folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(file), "-out", f"{file}.crt", "-days", "2", "-subj", "/CN=hooks.example"]
    try:
        subprocess.run([*command, "-addext", "subjectAltName=DNS:hooks.example"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    with file.open("ab") as opened:
        opened.write(Path(f"{file}.crt").read_bytes())
    return file
