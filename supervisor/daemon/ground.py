"""What of the machine decides which remedies a job can have, put together for the core; it chooses none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from supervisor.config.settings import Settings
from supervisor.core.choosing import Experience, Ground
from supervisor.core.freed import CardMemory
from supervisor.core.job import ALIVE, ENDED
from supervisor.core.moments import Moment
from supervisor.daemon.cards import GAP_S, CardsAnswering
from supervisor.daemon.loop import Dossier
from supervisor.daemon.view import Newest


class Grounds:
    """Answers in the deciding thread."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        dossiers: Mapping[str, Dossier],
        answering: CardsAnswering,
        experience: Callable[[], tuple[Experience, ...]],
        newest: Newest,
    ) -> None:
        self._settings = settings
        self._dossiers = dossiers
        self._answering = answering
        self._experience = experience
        self._newest = newest

    def of(self, dossier: Dossier, now: Moment) -> Ground:
        """Return what there is for one job now."""
        settings = self._settings()
        job = settings.jobs.get(dossier.job.name)
        if job is None or dossier.job.phase in ENDED:
            return Ground()
        if dossier.job.phase not in ALIVE:
            return Ground(memory=self._memory(dossier, now))
        answering = self._answering.answering_s(now)
        over = dossier.job.attempt is not None and dossier.job.attempt.over
        return Ground(
            agent=settings.supervisor.agent,
            conv2d_auto=job.conv2d == "auto",
            cpu_profile=job.profiles.cpu.enabled,
            free_cards=self._free([gpu for gpu, _ in answering]) if over else (),
            answering_s=answering,
            experience=self._experience() if over else (),
        )

    def _free(self, answering: list[str]) -> tuple[str, ...]:
        """Return the cards that no job has: one that names none has the first, as every framework takes it."""
        taken = {one for dossier in self._alive() for one in _cards_of(dossier) or answering[:1]}
        return tuple(one for one in answering if one not in taken)

    def _memory(self, dossier: Dossier, now: Moment) -> tuple[CardMemory, ...]:
        """Return what is taken of a job's cards, by readings that are not old.

        A card that another job has, or may have because it names none, says nothing about this one.
        """
        others = list(self._alive())
        if dossier.job.course.has("cpu_profile") or any(not _cards_of(one) for one in others):
            return ()
        taken = {card for one in others for card in _cards_of(one)}
        mine = _cards_of(dossier)
        return tuple(
            CardMemory(gpu=gpu, used_bytes=used)
            for gpu, one in sorted(self._newest.gpus.items())
            if (used := one.memory_used_bytes) is not None
            and now.seconds_since(one.at) <= GAP_S
            and gpu not in taken
            and (not mine or gpu in mine)
        )

    def _alive(self) -> Iterator[Dossier]:
        return (one for one in self._dossiers.values() if one.job.phase in ALIVE)


def _cards_of(dossier: Dossier) -> tuple[str, ...]:
    """Return the cards that a job is on; empty where it names none."""
    return (dossier.job.course.card,) if dossier.job.course.card else dossier.gpus_used
