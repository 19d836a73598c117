"""What of the machine decides which remedies a job can have, put together for the core; it chooses none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from supervisor.config.settings import Settings
from supervisor.core.choosing import Experience, Ground
from supervisor.core.job import ALIVE
from supervisor.core.moments import Moment
from supervisor.daemon.cards import CardsAnswering
from supervisor.daemon.loop import Dossier


class Grounds:
    """Answers in the deciding thread."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        dossiers: Mapping[str, Dossier],
        answering: CardsAnswering,
        experience: Callable[[], tuple[Experience, ...]],
    ) -> None:
        self._settings = settings
        self._dossiers = dossiers
        self._answering = answering
        self._experience = experience

    def of(self, dossier: Dossier, now: Moment) -> Ground:
        """Return what there is for one job now."""
        settings = self._settings()
        job = settings.jobs.get(dossier.job.name)
        if job is None or dossier.job.phase not in ALIVE:
            return Ground()
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
        taken: set[str] = set()
        for dossier in self._dossiers.values():
            job = dossier.job
            if job.phase in ALIVE:
                named = (job.card,) if job.card else dossier.gpus_used
                taken.update(named or answering[:1])
        return tuple(one for one in answering if one not in taken)
