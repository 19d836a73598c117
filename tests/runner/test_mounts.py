"""A file system that a server or another process answers for is known by the kernel's list of mounts alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.runner.mounts import is_local

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/root rw
31 22 0:40 / /srv/far rw,relatime shared:1 - nfs4 server:/far rw
32 31 254:16 / /srv/far/near rw,relatime - xfs /dev/vdb rw
33 22 0:41 / /srv/with\\040space rw - fuse.sshfs user@host:/ rw
34 22 254:32 / /srv/covered rw - ext4 /dev/vdc rw
35 34 0:42 / /srv/covered rw - ceph 10.0.0.1:/ rw
"""


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/var/lib/rocm-supervisor/jobs", True),
        ("/srv/far/jobs", False),
        ("/srv/farther/jobs", True),
        ("/srv/far/near/jobs", True),
        ("/srv/with space/jobs", False),
        ("/srv/covered/jobs", False),
    ],
)
def test_the_innermost_mount_decides(tmp_path: Path, path: str, local: bool) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert is_local(Path(path), tmp_path / "mountinfo") is local


def test_where_the_mounts_are_not_known_no_path_is_local(tmp_path: Path) -> None:
    assert not is_local(Path("/"), tmp_path / "absent")
