"""What of the machine decides which remedies a job can have, put together for the core; it chooses none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from supervisor.config.settings import JobSettings, Settings
from supervisor.core.choosing import Experience, Ground
from supervisor.core.freed import CardMemory
from supervisor.core.job import ALIVE, ENDED, Phase
from supervisor.core.moments import Moment
from supervisor.core.resorts import Resort
from supervisor.daemon.cards import CardsAnswering
from supervisor.daemon.loop import Dossier
from supervisor.daemon.resorts import resorts_of
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
        if dossier.job.phase not in ALIVE and not dossier.job.examining:
            return Ground(memory=self._memory(dossier, now), resorts=self._resorts(dossier, job))
        answering = self._answering.answering_s(now)
        over = dossier.job.attempt is not None and dossier.job.attempt.over
        worst = over or dossier.job.phase is Phase.KILLING
        return Ground(
            agent=settings.supervisor.agent,
            conv2d_auto=job.conv2d == "auto",
            cpu_profile=job.profiles.cpu.enabled,
            free_cards=self._free([gpu for gpu, _ in answering]) if over else (),
            answering_s=answering,
            experience=self._experience() if over else (),
            memory=self._memory(dossier, now) if dossier.job.examining else (),
            resorts=self._resorts(dossier, job) if worst else (),
        )

    def _free(self, answering: list[str]) -> tuple[str, ...]:
        """Return the cards that no job has: one that names none has the first, as every framework takes it."""
        taken = {one for dossier in self._alive() for one in _cards_of(dossier) or answering[:1]}
        return tuple(one for one in answering if one not in taken)

    def _memory(self, dossier: Dossier, now: Moment) -> tuple[CardMemory, ...]:
        """Return what is taken of a job's cards, by readings that are not old.

        A card that another job has, or may have because it names none, says nothing about this one.
        """
        others = [one for one in self._alive() if one is not dossier]
        if dossier.job.on_cpu or any(not _cards_of(one) for one in others):
            return ()
        taken = {card for one in others for card in _cards_of(one)}
        mine = _cards_of(dossier)
        return tuple(
            CardMemory(gpu=gpu, used_bytes=used)
            for gpu, one in sorted(self._newest.gpus.items())
            if (used := one.memory_used_bytes) is not None
            and now.seconds_since(one.at) <= self._answering.gap_s()
            and gpu not in taken
            and (not mine or gpu in mine)
        )

    def _resorts(self, dossier: Dossier, job: JobSettings) -> tuple[Resort, ...]:
        others = [one for one in self._alive() if one is not dossier]
        card = _card_in_trouble(dossier, tuple(sorted(self._newest.gpus)))
        sharing = {one.job.name: not _cards_of(one) or card in _cards_of(one) for one in others}
        return resorts_of(job.last_resorts, card, tuple(self._newest.gpus.values()), sharing)

    def _alive(self) -> Iterator[Dossier]:
        return (one for one in self._dossiers.values() if one.job.phase in ALIVE or one.job.examining)


def _card_in_trouble(dossier: Dossier, known: tuple[str, ...]) -> str | None:
    """Return the card that the kernel's log last blamed, else the only one that the job has; None where it has more."""
    kernel = dossier.history.kernel if dossier.history is not None else ()
    blamed = next((one.gpu for one in reversed(kernel) if one.fatal and one.gpu is not None), None)
    cards = _cards_of(dossier) or known
    return blamed or (cards[0] if len(cards) == 1 else None)


def _cards_of(dossier: Dossier) -> tuple[str, ...]:
    """Return the cards that a job is on; empty where it names none."""
    return (dossier.job.card,) if dossier.job.card else dossier.gpus_used
