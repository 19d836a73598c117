"""The rig itself: a test that boots a systemd must not hurt the machine that it runs on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rigs.systemd_box import BoxError, SystemdBox, unavailable

pytestmark = pytest.mark.systemd


def test_a_box_keeps_only_what_it_was_ordered_to_keep(tmp_path: Path) -> None:
    reason = unavailable()
    if reason:
        pytest.skip(reason)
    kept, shown = tmp_path / "kept", tmp_path / "shown"
    kept.mkdir()
    shown.mkdir()
    (shown / "there").write_text("from outside\n")
    hostname, target = Path("/proc/sys/kernel/hostname").read_text(), Path("/etc/systemd/system/box.target")
    with SystemdBox(keep=[kept], show={shown: "/srv/shown"}) as box:
        assert box.run("cat /proc/1/comm").output == "systemd\n"
        assert box.run("systemctl list-units --failed --no-legend").output == ""
        box.run(f"touch /etc/inside /var/tmp/inside; echo kept >{kept}/word; hostname boxed", check=True)
        assert box.run("cat /srv/shown/there", check=True).output == "from outside\n"
        for damage in ("touch /srv/shown/x", "echo 1 >/proc/sys/kernel/sysrq", "echo mem >/sys/power/state"):
            assert not box.run(damage).ok
        box.write("/var/run/by-link", "inside")
        assert box.read("/run/by-link") == "inside"
        with pytest.raises(BoxError, match=r"sleep 60' ran past 0.2 s"):
            box.run("sleep 60", timeout_s=0.2)
        with pytest.raises(BoxError, match="status 3"):
            box.run("exit 3", check=True)
        init = box.init_pid
    assert (kept / "word").read_text() == "kept\n"
    assert Path("/proc/sys/kernel/hostname").read_text() == hostname
    for path in (Path("/etc/inside"), Path("/var/tmp/inside"), Path("/run/by-link"), target):
        assert not path.exists()
    assert not Path(f"/proc/{init}").exists()
    mounts = Path("/proc/self/mountinfo").read_text()
    assert "systemd-box" not in mounts
