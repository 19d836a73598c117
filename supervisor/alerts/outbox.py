"""The threads that deliver, one for each receiver: a receiver that hangs delays no other; they keep no record."""

from __future__ import annotations

import logging
import queue
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from supervisor.alerts.channel import (
    Answer,
    Channel,
    EditingChannel,
    KeptNotice,
    PicturedChannel,
    PingedChannel,
    read_notice,
)
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


REPLACED = Answer(delivered=False, error="not sent yet: the receivers were changed by a reload")


@dataclass(frozen=True, slots=True)
class _Ping:
    status: str


_Queue: TypeAlias = "queue.SimpleQueue[Alert | _Ping | None]"


class AlertSender:
    """Delivers alerts that are offered; what came of each is put into the inbox as AlertTried, exactly once."""

    def __init__(
        self,
        channels: Mapping[str, Channel],
        put: Callable[[AlertTried], None],
        clock: Clock,
        draw: Callable[[KeptNotice], bytes | None] = lambda _: None,
    ) -> None:
        """`draw` returns the picture of a notice as PNG, None where there is none; called in a receiver's thread."""
        self._draw = draw
        self._pictured: dict[str, str] = {}
        """The last alert of each receiver that was tried with a picture: it is tried again without one."""
        self._channels = dict(channels)
        self._put = put
        self._clock = clock
        self._queues: dict[str, queue.SimpleQueue[Alert | _Ping | None]] = {
            name: queue.SimpleQueue() for name in channels
        }
        self._threads: list[threading.Thread] = []
        self._under_way: set[str] = set()
        self._covers: dict[str, tuple[str, ...]] = {}
        self._messages: dict[str, str] = {}
        """The message that an alert is written into, by its id."""
        self._pinged_at: dict[str, Moment] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._replaced = False

    def start(self) -> None:
        """Start one thread for each receiver."""
        for name in self._channels:
            # A daemon thread: a receiver that hangs must not hold up the end of the program.
            thread = threading.Thread(target=self._deliver_queued, args=(name,), name=f"alerts {name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def offer(self, alert: Alert, covers: tuple[str, ...] = (), message: str | None = None) -> bool:
        """Take an alert to be delivered; return False where it is under way already.

        `covers` has the ids of the alerts that it stands for, which its result is reported for in its place; `message`
        is one sent before that it is written into, where the service still has it.
        One whose receiver is no longer configured is answered for at once.
        """
        with self._lock:
            if alert.id in self._under_way:
                return False
            self._under_way.add(alert.id)
            if covers:
                self._covers[alert.id] = covers
            if message is not None:
                self._messages[alert.id] = message
        waiting = self._queues.get(alert.sink)
        if waiting is None:
            error = f"receiver {alert.sink!r} is no longer in the configuration"
            self._report_result(alert, Answer(delivered=False, error=error, final=True))
            return True
        waiting.put(alert)
        return True

    def ping_due(self, status: str, now: Moment) -> None:
        """Ping the receivers that expect it and whose interval is over; `status` is a line on how the daemon does."""
        for name, channel in self._channels.items():
            last = self._pinged_at.get(name)
            if isinstance(channel, PingedChannel) and (last is None or now.seconds_since(last) >= channel.ping_every_s):
                self._pinged_at[name] = now
                self._queues[name].put(_Ping(status))

    def stop(self, timeout_s: float, *, replaced: bool = False) -> None:
        """Finish what is being sent, leave the rest to the record, and wait at most `timeout_s`.

        `replaced`: another sender goes on in this process; what is left is reported as not delivered, so that the
        record hands it out again.
        """
        self._replaced = replaced
        self._stopping.set()
        for waiting in self._queues.values():
            waiting.put(None)
        for thread in self._threads:
            thread.join(timeout_s / max(1, len(self._threads)))

    def _deliver_queued(self, name: str) -> None:
        while True:
            item = self._queues[name].get()
            if item is None or (self._stopping.is_set() and not self._replaced):
                return
            answer = REPLACED if self._stopping.is_set() else self._try_delivery(name, item)
            if not isinstance(item, _Ping):
                self._report_result(item, answer)
            elif not answer.delivered:
                log.warning("alert.ping_failed", extra={"fields": {"sink": name, "error": answer.error}})

    def _try_delivery(self, name: str, item: Alert | _Ping) -> Answer:
        try:
            channel, unix_s = self._channels[name], self._clock.now().unix_s
            if isinstance(item, _Ping):
                assert isinstance(channel, PingedChannel)
                return channel.ping(item.status, unix_s)
            notice = read_notice(item.id, item.body)
            content, picture = channel.render(notice), self._draw_picture(name, notice)
            if (edited := self._try_edit(channel, notice, content, picture, unix_s)) is not None:
                return edited
            if picture is not None and isinstance(channel, PicturedChannel):
                return channel.send_with_picture(notice, content, picture, unix_s)
            return channel.send(notice, content, unix_s)
        except Exception as error:  # noqa: BLE001 - reported below, without its text
            # The fence: an alert that cannot be sent must end neither its thread nor the daemon. The place of the error
            # is reported and not its text, which may name the address.
            frames = [
                f"{Path(frame_summary.filename).name}:{frame_summary.lineno}"
                for frame_summary in traceback.extract_tb(error.__traceback__)
            ]
            about = "ping" if isinstance(item, _Ping) else item.id
            fields = {"alert": about, "sink": name, "error": type(error).__name__, "at": frames[-5:]}
            log.error("alert.attempt_failed", extra={"fields": fields})
            return Answer(delivered=False, error=f"{type(error).__name__} while sending")

    def _try_edit(
        self, channel: Channel, notice: KeptNotice, content: bytes, picture: bytes | None, unix_s: float
    ) -> Answer | None:
        """Return what came of writing a notice into a message sent before; None where it has to be a new one."""
        with self._lock:
            message = self._messages.pop(notice.id, None)
        if message is None or not isinstance(channel, EditingChannel):
            return None
        return channel.edit(notice, content, picture, message, unix_s)

    def _draw_picture(self, name: str, notice: KeptNotice) -> bytes | None:
        """Return the picture of a notice where its receiver takes one; a failure to draw it delays no text."""
        channel = self._channels[name]
        if not isinstance(channel, PicturedChannel) or not channel.picture or self._pictured.get(name) == notice.id:
            return None
        self._pictured[name] = notice.id
        try:
            return self._draw(notice)
        except Exception as error:  # noqa: BLE001 - reported, and the alert is sent without a picture
            fields = {"alert": notice.id, "sink": name, "error": f"{type(error).__name__}: {error}"}
            log.warning("alert.picture_failed", extra={"fields": fields})
            return None

    def _report_result(self, alert: Alert, answer: Answer) -> None:
        with self._lock:
            self._under_way.discard(alert.id)
            covers = self._covers.pop(alert.id, (alert.id,))
            self._messages.pop(alert.id, None)
        fields = {"alert": alert.id, "sink": alert.sink, "error": answer.error}
        log.log(logging.INFO if answer.delivered else logging.WARNING, "alert.tried", extra={"fields": fields})
        for alert_id in covers:
            self._put(
                AlertTried(
                    at=self._clock.now(),
                    alert=alert_id,
                    delivered=answer.delivered,
                    error=answer.error,
                    retry_after_s=answer.retry_after_s,
                    final=answer.final,
                    message=answer.message,
                )
            )
