"""Uvicorn's server, woken at its end instead of looking for it ten times a second."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import uvicorn

DATE_EVERY_S = 1.0
"""The `Date` header is that of the second."""


class WokenServer(uvicorn.Server):
    """Uvicorn's server, woken at its end; uvicorn's own loop polls ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._woken: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def main_loop(self) -> None:
        """Serve until the end."""
        end = asyncio.Event()
        self._woken = (asyncio.get_running_loop(), end)
        while not await self.on_tick(0):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(end.wait(), DATE_EVERY_S)

    def end(self) -> None:
        """Have it end; for any thread."""
        self.should_exit = True
        if self._woken is not None:
            loop, end = self._woken
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(end.set)
