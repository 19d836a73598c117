"""A fault that the kernel tells of stops the training on that card, and no other."""

import os
from pathlib import Path

import pytest
from house import House

pytestmark = [pytest.mark.kernel, pytest.mark.long]

# The kernel's log is the machine's: what another run of the tests writes must be about other cards.
CARD = f"0000:{16 + os.getpid() % 200:02x}:{os.getpid() // 200 % 32:02x}.0"
OTHER = f"{CARD[:-1]}1"
KERNEL = "[kernel_log]\naccept_user_records = true\n"
GPUS = f'gpus = ["{CARD}"]'
SLOWLY = ("--every-s", "0.1")
"""So that what is saved while a hang is held leaves some of the kept checkpoints that are older."""


def tell(card: str, words: str = "ring gfx_0.0.0 timeout, signaled seq=114, emitted seq=116") -> None:
    """Write a line of a card's driver into the kernel log."""
    if os.geteuid() != 0 or not os.access("/dev/kmsg", os.W_OK):
        pytest.skip("needs root and a writable /dev/kmsg")
    line = f"<3>amdgpu {card}: amdgpu: {words}\n"
    Path("/dev/kmsg").write_bytes(line.encode())


def test_a_gpu_fault_stops_the_training_with_evidence_and_it_is_resumed(home: House) -> None:
    home.write(KERNEL + home.by_hand("one", *SLOWLY, table=GPUS))
    home.start()
    home.step("one", 30)
    tell(CARD)
    incident = home.resumed("one")
    assert (incident["rule"], incident["decision"], incident["outcome"]) == ("gpu_fault", "stop", "resumed")
    assert "ring gfx_0.0.0 timeout" in (Path(incident["evidence"]) / "kernel.txt").read_text()
    assert "remedy: wait until the reset has finished" in incident["message"]
    step = home.job("one")["step"]
    tell(CARD, "GPU reset(1) succeeded!")
    home.step("one", step + 30, attempt=2)
    assert [item["rule"] for item in home.incidents("one")] == ["gpu_fault"], "how it came out is no second incident"


def test_a_ring_that_the_driver_resets_in_time_is_reported_and_the_training_goes_on(home: House) -> None:
    """The second hang, which nobody says is over, shows that the first one was read."""
    home.write(KERNEL + home.by_hand("one", *SLOWLY, table=GPUS))
    home.start()
    home.step("one", 30)
    tell(CARD, "ring comp_1.1.0 timeout, signaled seq=7, emitted seq=9")
    tell(CARD, "Starting comp_1.1.0 ring reset")
    tell(CARD, "Ring comp_1.1.0 reset succeeded")
    step = home.step("one", 60)["step"]
    home.step("one", step + 30)
    assert home.incidents("one") == []
    warned = home.query("SELECT body FROM decisions WHERE kind = 'warn' AND body LIKE '%gpu_fault%'")
    assert "remedy: no action unless the training reports an error" in str(warned)
    tell(CARD)
    assert home.resumed("one")["rule"] == "gpu_fault"


def test_a_gpu_that_is_lost_is_reset_by_its_owners_command_before_the_training_goes_on(home: House) -> None:
    done = home.folder / "reset"
    command = f'["sh", "-c", "echo {{gpu}} >> {done}; echo reset of {{gpu}}"]'
    last_resorts = f"last_resorts = {{ reset_gpu = true, reset_command = {command} }}\n{GPUS}"
    home.write(KERNEL + home.by_hand("one", *SLOWLY, table=last_resorts))
    home.start()
    home.step("one", 30)
    tell(CARD, "GPU reset(2) failed")
    incident = home.resumed("one")
    assert (incident["cause"], incident["remedy"]) == ("gpu_lost", "reset_gpu")
    assert done.read_text().split() == [CARD]
    (body,) = home.query("SELECT body FROM events WHERE kind = 'resort_ended'")[0]
    assert f"reset of {CARD}" in body


def test_a_fault_of_another_gpu_is_no_concern_of_this_job(home: House) -> None:
    """The second job shows that the record was read."""
    other = home.by_hand("other", *SLOWLY, table=GPUS.replace(CARD, OTHER))
    home.write(KERNEL + home.by_hand("one", *SLOWLY, table=GPUS) + other)
    home.start()
    pid = home.step("one", 30)["pid"]
    home.step("other", 30)
    tell(OTHER)
    assert home.resumed("other")["rule"] == "gpu_fault"
    job = home.job("one")
    assert (job["phase"], job["attempt"], job["pid"]) == ("running", 1, pid)
    assert home.incidents("one") == []
