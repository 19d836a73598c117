"""A daemon's end as its service manager sees it: until the record is closed it is asked for more time."""

from __future__ import annotations

import socket
import threading

from house import House


def test_the_manager_is_asked_for_time_until_the_record_is_closed(home: House) -> None:
    home.write(home.by_hand("night"))
    address = str(home.folder / "notify")
    messages: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)

        def receive() -> None:
            while message := manager.recv(4096).decode():
                messages.append(message)

        reader = threading.Thread(target=receive)
        reader.start()
        home.start(env={"NOTIFY_SOCKET": address})
        home.step("night", 20)
        assert home.stop() == 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(b"", address)
        reader.join()
    asked = [message for message in messages if message.startswith("EXTEND_TIMEOUT_USEC=")]
    assert messages.count("STOPPING=1") == 2
    assert messages[-1] in asked, "it is on its way out for some time after the last part"
    assert asked.count("EXTEND_TIMEOUT_USEC=60000000") >= 10
