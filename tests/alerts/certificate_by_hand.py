"""A certificate of one's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, name: str = "DNS:hooks.example") -> Path:
    """Return a file with a certificate for a name and its key."""
    file = folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(file), "-out", f"{file}.crt", "-days", "2", "-subj", "/CN=hooks.example"]
    try:
        subprocess.run([*command, "-addext", f"subjectAltName={name}"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    with file.open("ab") as opened:
        opened.write(Path(f"{file}.crt").read_bytes())
    return file
