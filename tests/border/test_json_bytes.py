"""A process that encodes JSON where no memory is left goes on with MemoryError."""

from __future__ import annotations

import subprocess
import sys

import pytest

from supervisor.json_bytes import encode_json

WITHOUT_MEMORY = """
import resource
from pathlib import Path
from supervisor.json_bytes import encode_json

state = ["step"] * 1_000_000
status = Path("/proc/self/status").read_text().splitlines()
mapped = int(next(line for line in status if line.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (mapped - 10_000_000, resource.RLIM_INFINITY))
try:
    encode_json(state)
except MemoryError:
    raise SystemExit(3)
"""


@pytest.mark.slow
def test_without_memory_an_exception_is_raised_and_the_process_goes_on() -> None:
    assert subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], check=False).returncode == 3


def test_what_is_encoded_is_json_whatever_was_encoded_before() -> None:
    assert encode_json({"name": "night", "losses": [1.5, float("nan")]}) == b'{"name":"night","losses":[1.5,null]}'
    assert encode_json([]) == b"[]"
    with pytest.raises(TypeError, match="object"):
        encode_json(object())
    assert encode_json("\u00e9") == '"\u00e9"'.encode()
