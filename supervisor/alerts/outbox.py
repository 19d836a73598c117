"""The threads that deliver, one for each receiver: a receiver that hangs delays no other; they keep no record."""

from __future__ import annotations

import logging
import queue
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from supervisor.alerts.channel import Answer, Channel, read_notice
from supervisor.core.events import AlertTried
from supervisor.core.moments import Moment

log = logging.getLogger(__name__)


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> Moment:
        """Return the present moment."""
        ...


class Alert(Protocol):
    """What is to be delivered."""

    @property
    def id(self) -> str:
        """Unique for each notice and receiver."""
        ...

    @property
    def sink(self) -> str:
        """Name of the receiver that it goes to."""
        ...

    @property
    def body(self) -> bytes:
        """The notice as the record keeps it, JSON."""
        ...


class AlertSender:
    """Delivers alerts that are offered; what came of each is put into the inbox as AlertTried, exactly once."""

    def __init__(
        self,
        channels: Mapping[str, Channel],
        put: Callable[[AlertTried], None],
        clock: Clock,
    ) -> None:
        self._channels = dict(channels)
        self._put = put
        self._clock = clock
        self._queues: dict[str, queue.SimpleQueue[Alert | None]] = {name: queue.SimpleQueue() for name in channels}
        self._threads: list[threading.Thread] = []
        self._under_way: set[str] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start one thread for each receiver."""
        for name in self._channels:
            # A daemon thread: a receiver that hangs must not hold up the end of the program.
            thread = threading.Thread(target=self._deliver_queued, args=(name,), name=f"alerts {name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def offer(self, alert: Alert) -> bool:
        """Take an alert to be delivered; return False where it is under way already.

        One whose receiver is no longer configured is answered for at once.
        """
        with self._lock:
            if alert.id in self._under_way:
                return False
            self._under_way.add(alert.id)
        waiting = self._queues.get(alert.sink)
        if waiting is None:
            error = f"receiver {alert.sink!r} is no longer in the configuration"
            self._report_result(alert, Answer(delivered=False, error=error, final=True))
            return True
        waiting.put(alert)
        return True

    def stop(self, timeout_s: float) -> None:
        """Finish what is being sent, leave the rest to the record, and wait at most `timeout_s`."""
        self._stopping.set()
        for waiting in self._queues.values():
            waiting.put(None)
        for thread in self._threads:
            thread.join(timeout_s / max(1, len(self._threads)))

    def _deliver_queued(self, name: str) -> None:
        while True:
            alert = self._queues[name].get()
            if alert is None or self._stopping.is_set():
                return
            self._report_result(alert, self._try_delivery(alert))

    def _try_delivery(self, alert: Alert) -> Answer:
        try:
            channel, notice = self._channels[alert.sink], read_notice(alert.id, alert.body)
            return channel.send(notice, channel.render(notice), self._clock.now().unix_s)
        except Exception as error:  # noqa: BLE001 - reported below, without its text
            # The fence: an alert that cannot be sent must end neither its thread nor the daemon. The place of the error
            # is reported and not its text, which may name the address.
            frames = [
                f"{Path(frame_summary.filename).name}:{frame_summary.lineno}"
                for frame_summary in traceback.extract_tb(error.__traceback__)
            ]
            fields = {"alert": alert.id, "sink": alert.sink, "error": type(error).__name__, "at": frames[-5:]}
            log.error("alert.attempt_failed", extra={"fields": fields})
            return Answer(delivered=False, error=f"{type(error).__name__} while sending")

    def _report_result(self, alert: Alert, answer: Answer) -> None:
        with self._lock:
            self._under_way.discard(alert.id)
        fields = {"alert": alert.id, "sink": alert.sink, "error": answer.error}
        log.log(logging.INFO if answer.delivered else logging.WARNING, "alert.tried", extra={"fields": fields})
        self._put(
            AlertTried(
                at=self._clock.now(),
                alert=alert.id,
                delivered=answer.delivered,
                error=answer.error,
                retry_after_s=answer.retry_after_s,
                final=answer.final,
            )
        )
