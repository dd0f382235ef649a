"""Outputs that are too long to travel with the report of an end, or whose task runs on: sent by pieces, in order.

Nothing is kept in memory but one piece. The server counts the bytes, so a piece that is sent twice is kept once.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from stoker.core.errors import Conflict, Unavailable, UserError
from stoker.worker.attempt import Attempt, Why
from stoker.worker.limits import FOLLOW_S, MOST_STREAMS, PIECE_BYTES
from stoker.worker.line import Line

log = structlog.get_logger()

STREAMS: Final = ("stdout", "stderr")
_RETRY_S: Final = 0.5


class Progress:
    """How far the two streams of an attempt are sent."""

    def __init__(self) -> None:
        self.sent = [0, 0]
        self.full = [False, False]
        self.busy: asyncio.Task[None] | None = None
        self.gaps = 0


class Follower:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._progress: dict[Attempt, Progress] = {}
        self._places = asyncio.Semaphore(MOST_STREAMS)

    def look(self, running: Iterable[Attempt], now: float) -> None:
        """Sends what those that run for a while have printed since."""
        for attempt in running:
            if now - attempt.began_at < FOLLOW_S:
                # The others began later.
                break
            if attempt.pair is None or attempt.stopping is Why.GONE:
                continue
            progress = self._progress.get(attempt)
            if progress is not None and progress.busy is not None and not progress.busy.done():
                continue
            if self._behind(attempt, progress):
                progress = self._progress.setdefault(attempt, Progress())
                attempt.followed = True
                progress.busy = asyncio.get_running_loop().create_task(self._try(attempt, progress))

    async def finish(self, attempt: Attempt) -> None:
        """Until all is sent that is wanted. A server that is away is waited for."""
        progress = self._progress.setdefault(attempt, Progress())
        attempt.followed = True
        try:
            if progress.busy is not None:
                await asyncio.wait([progress.busy])
            while attempt.stopping is not Why.GONE:
                if await self._sent(attempt, progress):
                    break
                await asyncio.sleep(_RETRY_S)
        finally:
            self._progress.pop(attempt, None)
        if any(progress.full):
            attempt.message = f"{attempt.message} Its output is not kept to its end.".strip()

    def forget(self, attempt: Attempt) -> None:
        progress = self._progress.pop(attempt, None)
        if progress is not None and progress.busy is not None:
            progress.busy.cancel()

    async def _try(self, attempt: Attempt, progress: Progress) -> None:
        await self._sent(attempt, progress)

    async def _sent(self, attempt: Attempt, progress: Progress) -> bool:
        """False: the server is away."""
        async with self._places:
            try:
                for stream in (0, 1):
                    await self._send(attempt, progress, stream)
            except Unavailable:
                return False
            except OSError as error:
                log.warning("output cannot be read", task=attempt.text, why=str(error))
        return True

    async def _send(self, attempt: Attempt, progress: Progress, stream: int) -> None:
        pair = attempt.pair
        while pair is not None and attempt.stopping is not Why.GONE:
            if progress.full[stream]:
                # Nobody wants it, and it must not fill the disk.
                pair.empty(stream)
                return
            piece = pair.read(stream, progress.sent[stream], PIECE_BYTES)
            if not piece:
                return
            try:
                kept = await self._line.keep(
                    attempt.work.id, attempt.work.attempt, STREAMS[stream], progress.sent[stream], piece
                )
            except Conflict:
                # The server has less than we thought, such as one that lost its disk.
                progress.gaps += 1
                progress.full[stream], progress.sent[stream] = progress.gaps > 2, 0
            except UserError as error:
                log.warning("output is not wanted", task=attempt.text, why=error.sentence)
                progress.full[stream] = True
            else:
                progress.sent[stream] = max(kept.size, progress.sent[stream])
                progress.full[stream] = kept.full

    def _behind(self, attempt: Attempt, progress: Progress | None) -> bool:
        assert attempt.pair is not None
        sent = progress.sent if progress is not None else (0, 0)
        return any(attempt.pair.size(stream) > sent[stream] for stream in (0, 1)) or (
            progress is not None and any(progress.full)
        )
